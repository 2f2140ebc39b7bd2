"""What a watcher keeps: results that nodes signed, faults with their proofs, and how far it has looked."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the tables."""
    op.create_index("ix_leaves_request_id", "leaves", ["request_id"])
    op.create_table(
        "signed_results",
        sa.Column("entry_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("request_id", sa.String(length=66), nullable=False),
        sa.Column("node", sa.String(length=42), nullable=False),
        sa.Column("result_hash", sa.String(length=66), nullable=False),
        sa.Column("reward_wei", sa.Text(), nullable=False),
        sa.Column("relayer", sa.String(length=42), nullable=False),
        sa.Column("round", sa.BigInteger(), nullable=False),
        sa.Column("signature", sa.LargeBinary(), nullable=False),
        sa.Column("transaction_hash", sa.String(length=66), nullable=False),
        sa.PrimaryKeyConstraint("entry_id", name="pk_signed_results"),
    )
    op.create_index(
        "uq_signed_results_request_id_node_result_hash",
        "signed_results",
        ["request_id", "node", "result_hash"],
        unique=True,
    )
    op.create_index("ix_signed_results_round", "signed_results", ["round"])
    op.create_table(
        "faults",
        sa.Column("fault", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("culprit", sa.String(length=42), nullable=False),
        sa.Column("request_id", sa.String(length=66), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("round", sa.BigInteger(), nullable=False),
        sa.Column("to", sa.String(length=42), nullable=False),
        sa.Column("data", sa.LargeBinary(), nullable=False),
        sa.Column("transaction_hash", sa.String(length=66), nullable=False),
        sa.Column("detail", sa.Text(), nullable=False),
        sa.Column("found_at_ms", sa.BigInteger(), nullable=False),
        sa.Column("tried_at_ms", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("fault", "culprit", "request_id", name="pk_faults"),
    )
    op.create_index("ix_faults_state_tried_at_ms", "faults", ["state", "tried_at_ms"])
    op.create_table(
        "cursors",
        sa.Column("name", sa.String(length=32), nullable=False),
        sa.Column("block_number", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_cursors"),
    )


def downgrade() -> None:
    """Drop them."""
    op.drop_table("cursors")
    op.drop_table("faults")
    op.drop_table("signed_results")
    op.drop_index("ix_leaves_request_id", "leaves")
