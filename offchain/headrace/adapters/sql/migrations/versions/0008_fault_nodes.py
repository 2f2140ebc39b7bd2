"""Faults of relayers are told apart by the node that they were done to."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

_NOBODY = "0x" + "00" * 20


def upgrade() -> None:
    """Add the column to the key. Nothing was deployed, so no fault of the older kind can be proven any more."""
    op.execute(sa.text("DELETE FROM faults"))
    with op.batch_alter_table("faults") as table:
        table.drop_constraint("pk_faults", type_="primary")
        table.add_column(sa.Column("node", sa.String(length=42), nullable=False, server_default=_NOBODY))
        table.create_primary_key("pk_faults", ["fault", "culprit", "request_id", "node"])


def downgrade() -> None:
    """Take it out again, with what it told apart."""
    op.execute(sa.text("DELETE FROM faults"))
    with op.batch_alter_table("faults") as table:
        table.drop_constraint("pk_faults", type_="primary")
        table.drop_column("node")
        table.create_primary_key("pk_faults", ["fault", "culprit", "request_id"])
