"""A relayer's API over fakes, with a node that serves a model and a request in its first block."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import httpx
from fastapi import FastAPI

from headrace.api import ApiContext, Contracts, create_app
from headrace.core import typed_data
from headrace.core.envelope import hash_payload
from headrace.core.errors import sentence
from headrace.core.lifecycle import RequestState
from headrace.core.scheduling import Offer, Policy
from headrace.core.tasks import Heartbeat, LinkedNode
from headrace.core.types import Address, Assignment, Hash32, Price, Request, Result
from headrace.ports import ModelFacts, NodeFacts, StoredAssignment, StoredRequest, StoredResult
from headrace.services.intake import Intake
from headrace.services.policies import Policies
from tests.api.memory import FakeLink, MemoryStore
from tests.fakes import (
    MARKET,
    MODEL_ID,
    START_S,
    FakeChain,
    FakeClock,
    FakeMetrics,
    FakeSigner,
    make_request,
)

RELAYER_SIGNER = FakeSigner(1)
REQUESTER_SIGNER = FakeSigner(2)
NODE_SIGNER = FakeSigner(3)
STRANGER_SIGNER = FakeSigner(4)
REGISTRY = "0x" + "a4" * 20
MODEL = ModelFacts(
    MODEL_ID, "smollm2-135m-instruct", "gguf", "0x" + "0b" * 32, "Q4_1", 300, 23_040, 100, "output_token"
)
PRICE = Price(per_prompt_kib_wei=10**12, per_thousand_tokens_wei=10**13)
TRANSACTION: Hash32 = "0x" + "7a" * 32


@dataclass
class Relayer:
    """Everything behind the API, to be arranged by a test."""

    store: MemoryStore
    chain: FakeChain
    clock: FakeClock
    link: FakeLink
    context: ApiContext
    client: httpx.AsyncClient
    held: dict[Hash32, int]

    def add_request(self, request: Request | None = None, **changes: Any) -> StoredRequest:
        """A request as the indexer would have stored it."""
        request = request or make_request(requester=REQUESTER_SIGNER.address, relayer=RELAYER_SIGNER.address)
        id_ = self.chain.id_of(request)
        stored = StoredRequest(
            request_id=id_,
            request=request,
            state=RequestState.ELIGIBLE,
            block_number=1,
            block_hash=self.store.blocks[1].hash,
            transaction_hash=TRANSACTION,
            included_at_s=self.store.blocks[1].timestamp_s,
            priority_fee_added_wei=0,
            effective_deadline_s=request.deadline_s,
            released_until_s=0,
            closed=None,
        )
        stored = replace(stored, **changes)
        self.store.all_requests[id_] = stored
        return stored

    def assign(
        self, stored: StoredRequest, state: str = "accepted", node: Address = NODE_SIGNER.address, round_: int = 1
    ) -> StoredAssignment:
        assignment = Assignment(
            stored.request_id, RELAYER_SIGNER.address, node, round_, 10**13, stored.effective_deadline_s
        )
        number = len(self.store.all_assignments[stored.request_id]) + 1
        attempt = StoredAssignment(
            stored.request_id, number, assignment, state, START_S * 1000, START_S * 1000 + 30_000, b"", b"", ""
        )
        self.store.all_assignments[stored.request_id].append(attempt)
        return attempt

    async def answer(self, stored: StoredRequest, payload: bytes) -> StoredResult:
        """A verified result that waits for its settlement."""
        return self.answer_at_once(stored, payload)

    def answer_at_once(
        self, stored: StoredRequest, payload: bytes, node: Address = NODE_SIGNER.address, round_: int = 1
    ) -> StoredResult:
        """As `answer`, for tests that run no loop."""
        self.assign(stored, "delivered", node, round_)
        payload_hash = hash_payload(payload)
        self.store.payloads[payload_hash] = payload
        result = Result(stored.request_id, payload_hash, 10**13, RELAYER_SIGNER.address, round_)
        kept = StoredResult(node, result, bytes(65), payload_hash, len(payload), START_S * 1000)
        self.store.all_results[stored.request_id].append(kept)
        return kept

    def settle(self, stored: StoredRequest, result_hash: Hash32, block: int = 2) -> StoredRequest:
        escrow = stored.request.escrow_wei
        node_paid = min(9 * 10**13, escrow)
        relayer_paid = min(10**15, (escrow - node_paid) // 2)
        closed = {
            "requestId": stored.request_id,
            "resultHash": result_hash,
            "nodePaid": node_paid,
            "relayerPaid": relayer_paid,
            "refund": escrow - node_paid - relayer_paid,
            "transaction_hash": "0x" + "7b" * 32,
            "block_number": block,
        }
        settled = replace(stored, state=RequestState.FULFILLED, closed=closed)
        self.store.all_requests[stored.request_id] = settled
        return settled

    def headers(self, signer: FakeSigner, valid_for_s: int = 600, **changes: Any) -> Mapping[str, str]:
        """A sign-in."""
        fields = {"account": signer.address, "at_relayer": RELAYER_SIGNER.address, **changes}
        until_s = self.clock.now_ms() // 1000 + valid_for_s
        struct_hash = typed_data.hash_access(fields["account"], fields["at_relayer"], until_s)
        signature = signer.sign_digest(typed_data.digest(typed_data.Domain(31337, MARKET), struct_hash))
        return {"Authorization": f"Headrace {fields['account']}:{until_s}:0x{signature.hex()}"}


def linked_node(signer: FakeSigner = NODE_SIGNER, **changes: Any) -> LinkedNode:
    fields: dict[str, Any] = {
        "node": signer.address,
        "sequence": 4,
        "sent_at_ms": START_S * 1000,
        "free_memory_mb": 4_000,
        "in_flight": 0,
        "max_in_flight": 2,
        "load_milli": 120,
        "models": (MODEL_ID,),
        "warm_models": (MODEL_ID,),
        "avg_latency_ms": 700,
        "region": "local",
    }
    return LinkedNode(signer.address, Heartbeat(**{**fields, **changes}), bytes(65), START_S * 1000 + 5)


@asynccontextmanager
async def make_relayer() -> AsyncIterator[Relayer]:
    """A relayer with one node, three blocks and no requests."""
    clock = FakeClock()
    chain = FakeChain(clock)
    store, link = MemoryStore(), FakeLink(linked_node())
    chain.registered_models = [MODEL]
    chain.bonded = {RELAYER_SIGNER.address}
    owner = STRANGER_SIGNER.address
    chain.facts[NODE_SIGNER.address] = NodeFacts(
        NODE_SIGNER.address, owner, 10**18, 0, True, owner, START_S - 90_000, 12, 0, 0
    )
    chain.node_offers[NODE_SIGNER.address] = [Offer(MODEL_ID, MODEL.name, PRICE)]
    chain.mine_many(3)
    store.blocks = {block.number: block for block in chain.all_blocks()}
    held: dict[Hash32, int] = {}

    async def hold(request_id: Hash32, until_ms: int) -> bool:
        held[request_id] = until_ms
        return True

    context = ApiContext(
        store=store,  # type: ignore[arg-type]
        chain=chain,
        link=link,  # type: ignore[arg-type]
        clock=clock,
        signer=RELAYER_SIGNER,
        policies=Policies(store, clock, Policy(realtime_fee_floor_wei=10**12)),  # type: ignore[arg-type]
        confirmations=1,
        contracts=Contracts(REGISTRY),
        metrics_text=lambda: "headrace_up 1\n",
        hold=hold,
        intake=Intake(chain, store, clock, FakeMetrics(), RELAYER_SIGNER.address, chain.terms, lambda: None),  # type: ignore[arg-type]
    )
    app = create_app(context)
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    hooks = {"response": [partial(require_documented, app)]}
    async with httpx.AsyncClient(transport=transport, base_url="http://relayer", event_hooks=hooks) as client:
        yield Relayer(store, chain, clock, link, context, client, held)


_documents: list[dict[str, Any]] = []


def document_of(app: FastAPI) -> dict[str, Any]:
    """What /openapi.json says. It takes long to make, and says the same of every relayer."""
    if not _documents:
        _documents.append(app.openapi())
    return _documents[0]


async def require_documented(app: FastAPI, response: httpx.Response) -> None:
    """Fail when the document does not say that a route answers like that. A fault of the program is never promised."""
    document = document_of(app)
    method, path = response.request.method.lower(), response.request.url.path
    forms = {
        form: re.sub(r"{\w+}", "[^/]+", form) for form, operations in document["paths"].items() if method in operations
    }
    form = path if path in forms else next((form for form in forms if re.fullmatch(forms[form], path)), None)
    if form is not None and response.status_code != 500:
        documented = document["paths"][form][method]["responses"]
        assert str(response.status_code) in documented, f"{method} {form} answers {response.status_code}"


def error_of(response: httpx.Response, status: int) -> dict[str, str]:
    """The error of a response, in the one shape that all errors have."""
    assert response.status_code == status, response.text
    assert set(response.json()) == {"error"}
    error: dict[str, str] = response.json()["error"]
    assert set(error) == {"code", "message", "hint"}
    assert error["message"] == sentence(error["message"])
    assert "\n" not in error["message"]
    assert "Traceback" not in response.text
    return error
