"""Who handed in a prompt: a request gets the bytes of its own requester's hash only."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the table. Prompts that were handed in before count for everybody who asked with them by then."""
    op.create_table(
        "prompt_holders",
        sa.Column("payload_hash", sa.String(length=66), nullable=False),
        sa.Column("account", sa.String(length=42), nullable=False),
        sa.PrimaryKeyConstraint("payload_hash", "account", name="pk_prompt_holders"),
    )
    op.execute(
        "INSERT INTO prompt_holders (payload_hash, account) SELECT DISTINCT prompt_hash, requester FROM requests "
        "WHERE prompt_hash IN (SELECT payload_hash FROM payloads)"
    )


def downgrade() -> None:
    """Drop it."""
    op.drop_table("prompt_holders")
