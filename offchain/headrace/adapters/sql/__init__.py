"""The store: what a relayer knows, in SQL. SQLite by default; nothing but its connection set-up is peculiar to it."""
