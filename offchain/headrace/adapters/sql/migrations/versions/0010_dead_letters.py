"""Results that are not settled any more, and why."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the table."""
    op.create_table(
        "dead_letters",
        sa.Column("request_id", sa.String(length=66), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("error", sa.Text(), nullable=False),
        sa.Column("to", sa.String(length=42), nullable=False),
        sa.Column("data", sa.LargeBinary(), nullable=False),
        sa.Column("block_number", sa.BigInteger(), nullable=False),
        sa.Column("at_ms", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("request_id", name="pk_dead_letters"),
    )


def downgrade() -> None:
    """Drop it."""
    op.drop_table("dead_letters")
