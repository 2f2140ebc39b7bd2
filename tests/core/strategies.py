"""What Hypothesis draws for the core: valid values, from small sets where ties and limits matter."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from headrace.core.fairness import Account
from headrace.core.scheduling import Anchor, CycleInputs, NodeView, Offer, Policy, WaitingRequest
from headrace.core.types import (
    ZERO_ADDRESS,
    Decision,
    DecisionKind,
    GasQuote,
    Lane,
    MarketTerms,
    Mode,
    Price,
    Reason,
    Request,
)

NOW_S = 1_800_000_000
NOW_MS = NOW_S * 1000
GWEI = 10**9
MODELS = ("gpt-2", "llama-7b", "llama-70b")
VERIFIER = "0x" + "5e" * 20
REQUESTERS = tuple("0x" + digit * 40 for digit in "cde")


def model_id(name: str) -> str:
    return f"0x{MODELS.index(name) + 1:064x}"


def hash_number(number: int) -> str:
    return f"0x{number:064x}"


def address_number(number: int) -> str:
    return f"0x{number:040x}"


hashes = st.binary(min_size=32, max_size=32).map(lambda value: "0x" + value.hex())
addresses = st.binary(min_size=20, max_size=20).map(lambda value: "0x" + value.hex())


def uints(bits: int) -> st.SearchStrategy[int]:
    return st.integers(0, 2**bits - 1)


requests = st.builds(
    Request,
    requester=addresses,
    relayer=addresses,
    model_id=hashes,
    prompt_hash=hashes,
    salt=uints(64),
    deadline_s=uints(40),
    prompt_bytes=uints(32),
    max_output_tokens=uints(24),
    callback_gas=uints(24),
    lane=st.sampled_from(Lane),
    batchable=st.booleans(),
    inline_result=st.booleans(),
    mode=st.sampled_from(Mode),
    k=uints(8),
    n=uints(8),
    verifier=addresses,
    max_reward_wei=uints(80),
    gas_budget_wei=uints(80),
    priority_fee_wei=uints(80),
)

# Few ids and nodes, so that one request comes with several nodes.
_assigned = st.builds(
    Decision,
    request_id=st.integers(0, 6).map(hash_number),
    node=st.integers(1, 4).map(address_number),
    kind=st.just(DecisionKind.ASSIGNED),
    reason=st.just(Reason.LOWEST_COST),
    reward_wei=uints(96),
    supersedes_round=uints(64),
)
_unassigned = st.builds(
    Decision,
    request_id=st.integers(0, 6).map(hash_number),
    node=st.just(ZERO_ADDRESS),
    kind=st.sampled_from([DecisionKind.SKIPPED, DecisionKind.TOO_LATE]),
    reason=st.sampled_from([Reason.NODES_TAKEN, Reason.LANE_FULL, Reason.DEADLINE_PASSED]),
    reward_wei=st.just(0),
    supersedes_round=st.just(0),
)
decisions = st.one_of(_assigned, _unassigned)
decision_lists = st.lists(
    decisions, min_size=1, max_size=20, unique_by=lambda decision: (decision.request_id, decision.node)
)

terms = st.builds(
    MarketTerms,
    grace_s=st.just(300),
    min_ttl_s=st.just(10),
    max_ttl_s=st.just(86_400),
    max_inline_prompt_bytes=st.just(8192),
    max_callback_gas=st.just(2_000_000),
    verifier_gas=st.just(400_000),
    tip_cap_wei=st.integers(0, 3 * GWEI),
    fixed_gas=st.integers(0, 200_000),
    item_gas=st.integers(0, 30_000),
    node_gas=st.integers(0, 30_000),
    assigned_gas=st.integers(0, 300_000),
    gas_per_result_byte=st.just(40),
    relayer_fee_share_bps=st.just(2000),
    relayer_saving_share_bps=st.just(1000),
    probation_max_reward_wei=st.sampled_from([0, 10**14, 2**80]),
    probation_settled_count=st.sampled_from([0, 10]),
    probation_duration_s=st.sampled_from([0, 86_400]),
)
quotes = st.builds(GasQuote, base_fee_wei=st.integers(0, 100 * GWEI), tip_wei=st.integers(0, 4 * GWEI))


# What may stand in a request's or a node's way: at most one thing for most, or nothing would ever be assigned.
_REQUEST_OBSTACLES: tuple[dict[str, Any], ...] = (
    *[{}] * 8,
    {"max_reward_wei": 0},
    {"max_reward_wei": 10**12},
    {"gas_budget_wei": 10**14},
    {"prompt_available": False},
    {"assignments": 3},
    {"deadline_s": NOW_S},
    {"callback_gas": 2_000_000, "answer_bytes": 200_000},
    {"verifier": VERIFIER, "verifier_gas": 25_000},
)
_NODE_OBSTACLES: tuple[dict[str, Any], ...] = (
    *[{}] * 8,
    {"offers": ()},
    {"free_memory_mb": 1},
    {"max_in_flight": 0},
    {"settled_count": 9},
    {"joined_at_s": NOW_S - 86_399},
    {"heartbeat_at_ms": NOW_MS - 15_001},
    {"verifiers": (VERIFIER,)},
    {"stake_wei": 10**12, "exposure_wei": 10**11},
)


@st.composite
def waiting_requests(draw: st.DrawFn, number: int, lane: Lane | None = None) -> WaitingRequest:
    name = draw(st.sampled_from(MODELS))
    fields: dict[str, Any] = {
        "request_id": hash_number(number),
        "model_id": model_id(name),
        "model_name": name,
        "lane": draw(st.sampled_from(Lane)) if lane is None else lane,
        "priority_fee_wei": draw(st.integers(0, 3)) * 10**16,
        "included_at_s": NOW_S - draw(st.integers(-2, 3)),
        "deadline_s": NOW_S + draw(st.integers(1, 40)),
        "prompt_bytes": draw(st.integers(1, 5000)),
        "max_output_tokens": draw(st.integers(1, 3000)),
        "required_memory_mb": draw(st.integers(0, 4)),
        "batchable": draw(st.booleans()),
        "max_reward_wei": 2**80 - 1,
        "gas_budget_wei": 2**80 - 1,
        "prompt_available": True,
        "assignments": draw(st.integers(0, 2)),
        "excluded_nodes": tuple(sorted(draw(st.sets(st.integers(1, 6), max_size=2).map(_addresses)))),
        "supersedes_round": draw(st.integers(0, 11)),
        "k": 0,
        "n": 0,
        "kept_nodes": (),
        "tried_owners": (),
        "deterministic": True,
        "released_until_s": 0,
        "callback_gas": draw(st.sampled_from([0, 0, 100_000])),
        "answer_bytes": draw(st.sampled_from([0, 0, 5_000])),
        "requester": draw(st.sampled_from(REQUESTERS)),
        "work": draw(st.sampled_from([1, 100, 2_000])),
        "complexity_milli": {"gpt-2": 300, "llama-7b": 1_000, "llama-70b": 5_000}[name],
    }
    if draw(st.sampled_from((False, False, True))):
        fields |= draw(quorum_terms())
    return WaitingRequest(**fields | draw(st.sampled_from(_REQUEST_OBSTACLES)))


@st.composite
def quorum_terms(draw: st.DrawFn) -> dict[str, Any]:
    """A quorum as it may come to a cycle: new, or with nodes that it keeps and such that it lost."""
    k = draw(st.integers(2, 4))
    n = draw(st.integers(k, 6))
    listings = draw(st.sampled_from((0, 0, 1, 2, 3)))
    tried = draw(st.sets(st.integers(1, 6), min_size=k, max_size=n)) if listings else set()
    kept = draw(st.sets(st.sampled_from(sorted(tried)), max_size=k)) if tried else set()
    return {
        "k": k,
        "n": n,
        "assignments": listings,
        "supersedes_round": draw(st.integers(1, 11)) if listings else 0,
        "kept_nodes": tuple(sorted(_addresses(kept))),
        "excluded_nodes": tuple(sorted(_addresses(tried - kept))),
        "tried_owners": tuple(sorted({owner_of(number) for number in tried})),
        "deterministic": draw(st.sampled_from((True, True, True, False))),
    }


def owner_of(number: int) -> str:
    """Some nodes have an owner in common."""
    return address_number(100 + number // 2)


def unrestrained(request: WaitingRequest) -> dict[str, object]:
    """The changes that make every filter of the protocol let a request pass."""
    return {
        "max_reward_wei": 2**80 - 1,
        "gas_budget_wei": 2**80 - 1,
        "prompt_available": True,
        "assignments": 0,
        "excluded_nodes": (),
        "answer_bytes": 0,
        "verifier": ZERO_ADDRESS,
        "k": 0,
    }


@st.composite
def node_views(draw: st.DrawFn, number: int) -> NodeView:
    prices = st.builds(Price, st.integers(0, 10**12), st.integers(0, 10**12))
    missing = draw(st.sampled_from((None, None, *MODELS)))
    fields: dict[str, Any] = {
        "node": address_number(number),
        "owner": owner_of(number),
        "offers": tuple(
            Offer(model_id(name), name, draw(prices), draw(st.booleans()), draw(st.sampled_from([0, 100, 20_000])))
            for name in MODELS
            if name != missing
        ),
        "free_memory_mb": draw(st.integers(2, 5)),
        "in_flight": draw(st.integers(0, 3)),
        "max_in_flight": draw(st.integers(3, 5)),
        "avg_latency_ms": draw(st.sampled_from([100, 200, 5000])),
        "settled_count": draw(st.sampled_from([10, 10**6])),
        "joined_at_s": NOW_S - draw(st.sampled_from([86_400, 10**6])),
        "heartbeat_at_ms": NOW_MS - draw(st.sampled_from([-50, 0, 14_000])),
        "heartbeat": draw(st.sampled_from(["{}", '{"region":"Zürich"}', '"\\\u2028\u0007'])),
        "heartbeat_signature": "0x" + "11" * 65,
        "answered": draw(st.sampled_from([0, 20])),
        "missed": draw(st.sampled_from([0, 5])),
    }
    return NodeView(**fields | draw(st.sampled_from(_NODE_OBSTACLES)))


policies = st.builds(
    Policy,
    realtime_capacity=st.sampled_from([200, 200, 3, 1, 0]),
    bulk_capacity=st.sampled_from([1000, 1000, 3, 1, 0]),
    realtime_streak=st.sampled_from([0, 1, 2, 20]),
    realtime_fee_floor_wei=st.sampled_from([0, 10**16]),
    max_assignments=st.sampled_from([3, 3, 1]),
    expected_batch_size=st.integers(1, 8),
)
balanced_policies = st.builds(
    Policy,
    name=st.just("balanced"),
    lanes=st.just("shared"),
    realtime_capacity=st.sampled_from([200, 200, 3, 1, 0]),
    bulk_capacity=st.sampled_from([1000, 1000, 3, 1, 0]),
    realtime_fee_floor_wei=st.sampled_from([0, 10**16]),
    max_assignments=st.sampled_from([3, 3, 1]),
    expected_batch_size=st.integers(1, 8),
    realtime_max_wait_ms=st.sampled_from([1, 2_000, 10_000]),
    bulk_max_wait_ms=st.sampled_from([1, 2_000, 120_000]),
    least_delay_wei_per_s=st.sampled_from([0, 10**12]),
    exploration_milli=st.sampled_from([0, 500, 1_000]),
)
_accounts = st.lists(
    st.builds(Account, st.sampled_from(REQUESTERS), st.integers(101, 5_000)),
    max_size=3,
    unique_by=lambda account: account.requester,
).map(lambda accounts: tuple(sorted(accounts, key=lambda account: account.requester)))


@st.composite
def cycle_inputs(
    draw: st.DrawFn,
    max_requests: int = 8,
    max_nodes: int = 6,
    lane: Lane | None = None,
    policies: st.SearchStrategy[Policy] = policies,
) -> CycleInputs:
    numbers = sorted(draw(st.sets(st.integers(1, 99), min_size=draw(st.integers(0, 3)), max_size=max_requests)))
    nodes = sorted(draw(st.sets(st.integers(1, 9), min_size=draw(st.integers(0, 3)), max_size=max_nodes)))
    return CycleInputs(
        chain_id=31337,
        market="0x" + "aa" * 20,
        relayer="0x" + "bb" * 20,
        round=draw(st.integers(1, 2**53 - 1)),
        cycle=draw(st.integers(0, 100)),
        now_ms=NOW_MS + draw(st.integers(0, 999)),
        anchor=Anchor(draw(st.integers(0, 10**9)), draw(hashes), NOW_S),
        gas=draw(quotes),
        terms=draw(terms),
        policy=draw(policies),
        lane_streak=draw(st.integers(0, 25)),
        requests=tuple(draw(waiting_requests(number, lane)) for number in numbers),
        nodes=tuple(draw(node_views(number)) for number in nodes),
        lane_lag=draw(st.sampled_from([-5_000, 0, 5_000])),
        floor_work=draw(st.sampled_from([0, 100])),
        accounts=draw(_accounts),
        median_fee_wei=draw(st.sampled_from([0, 10**16])),
    )


def _addresses(numbers: set[int]) -> list[str]:
    return [address_number(number) for number in numbers]
