"""The tables of a watcher, beside those of `tables`."""

from __future__ import annotations

from typing import Any

from sqlalchemy import BigInteger, Column, Index, Integer, LargeBinary, String, Table, Text

from headrace.adapters.sql.tables import WideInt, leaves, metadata


def _text(name: str, length: int, **options: Any) -> Column[str]:
    return Column(name, String(length), nullable=False, **options)


def _number(name: str, **options: Any) -> Column[int]:
    return Column(name, BigInteger, nullable=False, **options)


Index("ix_leaves_request_id", leaves.c.request_id)

# Results that nodes signed, beside those in `results`: the signature is here, or in the calldata of a transaction.
signed_results = Table(
    "signed_results",
    metadata,
    Column("entry_id", BigInteger().with_variant(Integer, "sqlite"), primary_key=True),
    _text("request_id", 66),
    _text("node", 42),
    _text("result_hash", 66),
    Column("reward_wei", WideInt, nullable=False),
    _text("relayer", 42),
    _number("round"),
    Column("signature", LargeBinary, nullable=False),
    _text("transaction_hash", 66),
    Index("uq_signed_results_request_id_node_result_hash", "request_id", "node", "result_hash", unique=True),
    Index("ix_signed_results_round", "round"),
)

faults = Table(
    "faults",
    metadata,
    Column("fault", Integer, primary_key=True, autoincrement=False),
    _text("culprit", 42, primary_key=True),
    _text("request_id", 66, primary_key=True),
    _text("node", 42, primary_key=True),
    _text("state", 16),
    _number("round"),
    _text("to", 42),
    Column("data", LargeBinary, nullable=False),
    _text("transaction_hash", 66),
    Column("detail", Text, nullable=False),
    _number("found_at_ms"),
    _number("tried_at_ms"),
    Index("ix_faults_state_tried_at_ms", "state", "tried_at_ms"),
)

# How far a loop has read the blocks in the store.
cursors = Table(
    "cursors",
    metadata,
    _text("name", 32, primary_key=True),
    _number("block_number"),
)
