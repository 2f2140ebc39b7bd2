"""Who sends an intent: a relayer may have another key send for it, and each key counts its own nonces."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

_NOBODY = "0x" + "00" * 20


def upgrade() -> None:
    """Add the column. Until now the relayer sent everything itself; its assignments tell who it is."""
    op.add_column("intents", sa.Column("sender", sa.String(length=42), nullable=False, server_default=_NOBODY))
    op.execute("UPDATE intents SET sender = COALESCE((SELECT relayer FROM assignments LIMIT 1), sender)")
    _index_nonces("sender", "nonce")


def downgrade() -> None:
    """Drop it."""
    _index_nonces("nonce")
    op.drop_column("intents", "sender")


def _index_nonces(*columns: str) -> None:
    op.drop_index("uq_intents_nonce", "intents")
    is_kept = sa.text("state <> 'dropped'")
    op.create_index("uq_intents_nonce", "intents", columns, unique=True, sqlite_where=is_kept, postgresql_where=is_kept)
