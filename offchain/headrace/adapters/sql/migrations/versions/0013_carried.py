"""What a cycle of policy `balanced` leaves to the next: the lag of its lanes and the accounts of served work."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add them; of cycles before there was nothing."""
    op.add_column("cycles", sa.Column("lane_lag", sa.BigInteger(), nullable=False, server_default="0"))
    op.add_column("cycles", sa.Column("floor_work", sa.BigInteger(), nullable=False, server_default="0"))
    op.add_column("cycles", sa.Column("accounts", sa.JSON(), nullable=False, server_default="[]"))


def downgrade() -> None:
    """Drop them."""
    op.drop_column("cycles", "accounts")
    op.drop_column("cycles", "floor_work")
    op.drop_column("cycles", "lane_lag")
