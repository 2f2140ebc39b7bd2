"""Policies that an operator adopted over the settings'."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the table."""
    op.create_table(
        "policies",
        sa.Column("entry_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("configured_hash", sa.String(length=66), nullable=False),
        sa.Column("policy", sa.JSON(), nullable=False),
        sa.Column("adopted_at_ms", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("entry_id", name=op.f("pk_policies")),
    )


def downgrade() -> None:
    """Drop it."""
    op.drop_table("policies")
