"""What a transaction may cost, until when it is of use, and attempts that only take its nonce."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the columns. Older intents are of use for ever, at any price; no attempt was a no-op."""
    op.add_column("intents", sa.Column("until_s", sa.BigInteger(), nullable=False, server_default="0"))
    op.add_column("intents", sa.Column("worth_wei", sa.Text(), nullable=False, server_default="0"))
    op.add_column("attempts", sa.Column("is_noop", sa.Boolean(), nullable=False, server_default=sa.false()))


def downgrade() -> None:
    """Drop them."""
    op.drop_column("attempts", "is_noop")
    op.drop_column("intents", "worth_wei")
    op.drop_column("intents", "until_s")
