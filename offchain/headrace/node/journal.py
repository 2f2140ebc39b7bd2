"""The ports to a node's own durable store."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from headrace.core.journal import JournalEntry, TaskState
from headrace.core.self_settlement import Settlement, SettlementAttempt, SettlementState
from headrace.core.types import Address, Hash32, Result


class NodeJournal(Protocol):
    """What a node knows, durably. Each call is one transaction that is on the disk when it returns."""

    async def entry(self, request_id: Hash32) -> JournalEntry | None:
        """What is known of a request."""
        ...

    async def put(self, entry: JournalEntry) -> None:
        """Write a task down as refused or accepted, in place of an earlier try that ended without a result.

        Raises:
            IllegalTransition: there is a result of this request already.
        """
        ...

    async def add_result(
        self,
        request_id: Hash32,
        result: Result,
        payload: bytes,
        output_tokens: int,
        compute_ms: int,
        at_ms: int,
        deadline_s: int,
        proof: bytes = b"",
    ) -> JournalEntry:
        """Fix the answer of an accepted task, and begin to look after its settling: by `deadline_s`, the assignment's,
        it is the relayer's to see to. Its proof, if it needs one, is kept with it. Returns the entry as it stands now.

        Raises:
            IllegalTransition: the task is not accepted, or another result of it is fixed already.
        """
        ...

    async def move_to_round(
        self, request_id: Hash32, round_: int, task: str, accept_signature: bytes, reward_wei: int, at_ms: int
    ) -> JournalEntry:
        """Let a newer round ask for an answer that is being computed or is fixed: its hash and bytes stay, and it is
        to be delivered (again). Returns the entry as it stands now.

        Raises:
            IllegalTransition: the task is refused or given up, or is of that round or a newer one already.
        """
        ...

    async def end_delivery(self, request_id: Hash32, round_: int, state: TaskState, detail: str, at_ms: int) -> None:
        """Note what became of the delivery of an answer that was made for this round. An answer that was moved to a
        newer round meanwhile, or is not on its way, is left alone."""
        ...

    async def set_state(self, request_id: Hash32, state: TaskState, detail: str, at_ms: int) -> None:
        """Move a task. What is not known is left alone."""
        ...

    async def accepted(self) -> list[JournalEntry]:
        """Tasks that wait for their answer, oldest first."""
        ...

    async def undelivered(self, relayer: Address, limit: int) -> list[JournalEntry]:
        """Answers that this relayer has not acknowledged, oldest first."""
        ...

    async def results(self, request_ids: Sequence[Hash32]) -> dict[Hash32, Result]:
        """The results of these requests that the node has fixed, whatever became of them."""
        ...

    async def prune(self, before_ms: int) -> int:
        """Drop refusals and the bulk of finished tasks that are older. Which result was signed is kept for ever.
        Returns how many tasks it touched."""
        ...

    async def close(self) -> None:
        """Let go of the file."""
        ...


class SettlementJournal(Protocol):
    """What a node knows of the settling of its answers, durably. Each call is one transaction, as of the journal."""

    async def unsettled(self, limit: int) -> list[Settlement]:
        """Those that have not ended: what is under way first, then by deadline."""
        ...

    async def begin(
        self, request_id: Hash32, payer: Address, nonce: int, data: bytes, gas_limit: int, at_ms: int
    ) -> Settlement:
        """Write down what is about to be sent, by whom and under which nonce.

        Raises:
            IllegalTransition: something of this answer is under way already, or it has ended.
        """
        ...

    async def add_attempt(self, request_id: Hash32, nonce: int, attempt: SettlementAttempt) -> None:
        """Write down a signed transaction, before it is sent.

        Raises:
            IllegalTransition: the answer's intent is not open, or has another nonce.
        """
        ...

    async def step_back(self, request_id: Hash32, detail: str, reverted: bool, at_ms: int) -> None:
        """End an open intent whose nonce is used up, by its own transaction if that `reverted`. It may begin anew."""
        ...

    async def note(self, request_id: Hash32, detail: str, at_ms: int) -> None:
        """Say why an answer that is watched is not settled now."""
        ...

    async def end(self, request_id: Hash32, state: SettlementState, detail: str, at_ms: int) -> None:
        """Look after an answer no more."""
        ...
