"""What is asked for, and the check that a relayer drafted just that. Nobody signs what a server made up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from headrace.client.errors import Untrue
from headrace.core.calls import request_inference_data
from headrace.core.envelope import content_of, hash_payload
from headrace.core.errors import InvalidInput, Refused
from headrace.core.prompts import prompt_content
from headrace.core.requests import PackedRequest, request_id, unpack
from headrace.core.types import ZERO_ADDRESS, Address, Hash32, Lane, Mode, Request
from headrace.ports import Call


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is asked for. None of an amount leaves it to the relayer's draft, within `max_escrow_wei`.

    `callback_gas` is for the call of the requester's contract with the answer; `verifier` is a contract that must take
    the node's proof of it; `quorum` is (k, n): k nodes of at most n must give one answer. `force` takes a draft that no
    node would take at today's prices.
    """

    model: str
    prompt: str | None = None
    messages: tuple[Mapping[str, str], ...] | None = None
    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None
    stop: tuple[str, ...] | None = None
    max_output_tokens: int = 256
    lane: Lane = Lane.BULK
    ttl_s: int | None = None
    deadline_s: int | None = None
    max_reward_wei: int | None = None
    gas_budget_wei: int | None = None
    priority_fee_wei: int | None = None
    max_escrow_wei: int | None = None
    callback_gas: int = 0
    verifier: Address | None = None
    quorum: tuple[int, int] | None = None
    public: bool = False
    force: bool = False

    def body(self, requester: Address) -> dict[str, Any]:
        """As the API takes it."""
        amounts = {
            name: "auto" if getattr(self, name) is None else str(getattr(self, name))
            for name in ("max_reward_wei", "gas_budget_wei", "priority_fee_wei")
        }
        optional = {
            "prompt": self.prompt,
            "messages": [dict(message) for message in self.messages] if self.messages else None,
            **self.options(),
            "ttl_s": self.ttl_s,
            "deadline_s": self.deadline_s,
            "callback_gas": self.callback_gas or None,
            "verifier": self.verifier,
            **({"k": self.quorum[0], "n": self.quorum[1]} if self.quorum else {}),
        }
        return {
            "requester": requester,
            "model": self.model,
            "max_output_tokens": self.max_output_tokens,
            "lane": "realtime" if self.lane is Lane.REALTIME else "bulk",
            "public": self.public,
            **amounts,
            **{name: value for name, value in optional.items() if value is not None},
        }

    @property
    def mode(self) -> Mode:
        """How an answer is to earn its pay."""
        if self.quorum:
            return Mode.QUORUM
        return Mode.VERIFIER if self.verifier else Mode.SIGNATURE

    def options(self) -> dict[str, Any]:
        """How the model shall answer, where that is said."""
        stop = list(self.stop) if self.stop is not None else None
        return {"temperature": self.temperature, "top_p": self.top_p, "seed": self.seed, "stop": stop}


@dataclass(frozen=True, slots=True)
class Network:
    """What a client must know of where it posts."""

    chain_id: int
    market: Address
    relayer: Address
    max_ttl_s: int
    confirmations: int = 0


@dataclass(frozen=True, slots=True)
class Draft:
    """A checked request that is ready to be sent.

    Args:
        request: all its terms.
        request_id: its id, which is known before it is sent.
        call: the transaction that posts it.
        warnings: what may keep it from being answered, one sentence each.
        is_published: its prompt goes on-chain.
        relayer_fee_wei: what its relayer asks for posting it; None = its requester must send it.
    """

    request: Request
    request_id: Hash32
    call: Call
    warnings: tuple[str, ...]
    is_published: bool = False
    relayer_fee_wei: int | None = None


def checked_draft(
    wanted: Wanted, body: Mapping[str, Any], network: Network, requester: Address, model_id: Hash32, now_s: int
) -> Draft:
    """A draft that says what was asked, with call data made here.

    Raises:
        Untrue: it says something else; the message names the field.
        Refused: it would wait in vain, since an amount is too low.
    """
    try:
        request = unpack(packed_of(body["request"]))
        payload = bytes.fromhex(body["payload"][2:])
        messages = list(wanted.messages) if wanted.messages else None
        if content_of(payload) != prompt_content(wanted.prompt, messages, wanted.options()):
            raise Untrue("the relayer drafted another prompt than was asked")
    except (InvalidInput, KeyError, TypeError, ValueError) as exc:
        raise Untrue(f"the relayer's draft cannot be read: {exc}") from exc
    expected: dict[str, object] = {
        "requester": requester,
        "relayer": network.relayer,
        "model_id": model_id,
        "prompt_hash": hash_payload(payload),
        "prompt_bytes": len(payload),
        "max_output_tokens": wanted.max_output_tokens,
        "callback_gas": wanted.callback_gas,
        "lane": wanted.lane,
        "inline_result": wanted.public,
        "mode": wanted.mode,
        "k": wanted.quorum[0] if wanted.quorum else 0,
        "n": wanted.quorum[1] if wanted.quorum else 0,
        "verifier": wanted.verifier or ZERO_ADDRESS,
    }
    amounts = ("max_reward_wei", "gas_budget_wei", "priority_fee_wei")
    expected |= {name: getattr(wanted, name) for name in amounts if getattr(wanted, name) is not None}
    if wanted.deadline_s is not None:
        expected["deadline_s"] = wanted.deadline_s
    for name, value in expected.items():
        if getattr(request, name) != value:
            raise Untrue(f"the relayer drafted {name} = {getattr(request, name)}, and {value} was asked")
    if not now_s <= request.deadline_s <= now_s + network.max_ttl_s:
        raise Untrue(f"the relayer drafted the deadline {request.deadline_s}, and it is {now_s} now")
    if wanted.max_escrow_wei is not None and request.escrow_wei > wanted.max_escrow_wei:
        raise Untrue(
            f"the request would escrow {request.escrow_wei} wei, more than the {wanted.max_escrow_wei} wei that it "
            "may: raise --max-escrow, or lower --max-tokens"
        )
    obstacles = [str(each) for each in body.get("obstacles", ())]
    if obstacles and not wanted.force:
        raise Refused(
            f"{' '.join(obstacles)} Nothing was sent, since it would wait in vain: {_remedy(wanted)}, or send it all "
            "the same with --force"
        )
    call = Call(network.market, request_inference_data(request, payload if wanted.public else b""), request.escrow_wei)
    id_ = request_id(request, network.chain_id, network.market)
    warnings = tuple(str(each) for each in body.get("warnings", ()))
    return Draft(request, id_, call, warnings, wanted.public, _relayer_fee_wei(body))


def _remedy(wanted: Wanted) -> str:
    """What of a draft that would wait in vain can be changed: amounts that the relayer chose are enough."""
    raised = [
        option
        for option, amount in (("--max-reward", wanted.max_reward_wei), ("--gas-budget", wanted.gas_budget_wei))
        if amount is not None
    ]
    remedies = [f"raise {' or '.join(raised)}"] if raised else []
    if wanted.quorum:
        remedies.append("ask for a smaller --quorum")
    return ", or ".join(remedies) or "try again later"


def _relayer_fee_wei(body: Mapping[str, Any]) -> int | None:
    """What the relayer asks for posting. Whoever signs says how much is too much."""
    signing = body.get("gasless")
    try:
        return None if signing is None else int(signing["relayer_fee_wei"])
    except (KeyError, TypeError, ValueError) as exc:
        raise Untrue(f"the relayer's fee cannot be read: {exc}") from exc


def packed_of(words: Mapping[str, Any]) -> PackedRequest:
    """A request's seven words from the API's form."""
    return PackedRequest(
        requester=words["requester"],
        relayer=words["relayer"],
        model_id=bytes.fromhex(words["model_id"][2:]),
        prompt_hash=bytes.fromhex(words["prompt_hash"][2:]),
        amounts=int(words["amounts"]),
        terms=int(words["terms"]),
        verifier=words["verifier"],
    )
