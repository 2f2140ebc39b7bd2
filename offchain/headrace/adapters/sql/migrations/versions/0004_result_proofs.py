"""A node's proof of its result, for the request's verifier."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column. Results from before have no proof."""
    empty = "x''" if op.get_bind().dialect.name == "sqlite" else "''"
    op.add_column("results", sa.Column("proof", sa.LargeBinary(), nullable=False, server_default=sa.text(empty)))


def downgrade() -> None:
    """Drop it."""
    op.drop_column("results", "proof")
