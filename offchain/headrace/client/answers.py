"""An answer, and the checks that make it one: its hash, and the market's word."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from headrace.client.errors import Untrue
from headrace.core.envelope import content_of, hash_payload
from headrace.core.errors import InvalidInput
from headrace.core.nesting import read_json
from headrace.core.types import Hash32, ResultRef


class ResultVerifier(Protocol):
    """What of the Chain port proves a result."""

    async def verify_result(self, request_id: Hash32, ref: ResultRef, payload: bytes) -> bool:
        """Whether the market settled the request with this result and these bytes."""
        ...


@dataclass(frozen=True, slots=True)
class Answer:
    """A settled answer. `verified` tells whether the chain was asked as well, not only the hash."""

    request_id: Hash32
    text: str
    content: bytes
    ref: ResultRef
    verified: bool


def ref_of(proof: Mapping[str, Any]) -> ResultRef:
    """A result's reference from the API's form."""
    ref = proof["ref"]
    return ResultRef(
        result_hash=str(ref["result_hash"]),
        relayer=str(ref["relayer"]),
        round=int(ref["round"]),
        nodes=tuple(str(node) for node in ref["nodes"]),
        settled_at_s=int(ref["settled_at_s"]),
    )


def answer_of(request_id: Hash32, ref: ResultRef, payload: bytes, *, verified: bool) -> Answer:
    """An answer from its payload.

    Raises:
        Untrue: the bytes do not have the hash that was settled, or are no answer.
    """
    if hash_payload(payload) != ref.result_hash:
        raise Untrue("the bytes that the relayer served are not those of the settled answer")
    try:
        content = content_of(payload)
    except InvalidInput as exc:
        raise Untrue(str(exc)) from exc
    return Answer(request_id, _text_of(content), content, ref, verified)


def _text_of(content: bytes) -> str:
    """What the model said: the content itself, or the message in a chat completion."""
    text = content.decode(errors="replace")
    try:
        choice = read_json(text)["choices"][0]["message"]["content"]
    except (ValueError, LookupError, TypeError):
        return text
    return str(choice)
