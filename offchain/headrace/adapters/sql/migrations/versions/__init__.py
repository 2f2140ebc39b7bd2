"""One step each, named by its number and what it does."""
