"""Where Alembic gets its connection: from the store that is being opened, so there is no setting of its own."""

from __future__ import annotations

from alembic import context

from headrace.adapters.sql.tables import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    render_as_batch=True,
)
with context.begin_transaction():
    context.run_migrations()
