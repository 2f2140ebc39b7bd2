"""Several results of a request: one of each node of a quorum, for each round that it was listed in."""

from __future__ import annotations

from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Let a result be known by its request, node and round."""
    _key_by("request_id", "node", "round")


def downgrade() -> None:
    """Let it be known by its request alone. Of a quorum only the result of one node can be kept."""
    op.execute(
        "DELETE FROM results WHERE EXISTS (SELECT 1 FROM results AS other WHERE other.request_id = results.request_id "
        "AND (other.round > results.round OR (other.round = results.round AND other.node < results.node)))"
    )
    _key_by("request_id")


def _key_by(*columns: str) -> None:
    with op.batch_alter_table("results") as table:
        table.drop_constraint("pk_results", type_="primary")
        table.create_primary_key("pk_results", list(columns))
