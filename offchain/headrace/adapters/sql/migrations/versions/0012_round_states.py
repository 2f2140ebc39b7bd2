"""An index on the states of rounds: those that wait for their record are looked for in each cycle."""

from __future__ import annotations

from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create it."""
    op.create_index("ix_rounds_state", "rounds", ["state"])


def downgrade() -> None:
    """Drop it."""
    op.drop_index("ix_rounds_state", table_name="rounds")
