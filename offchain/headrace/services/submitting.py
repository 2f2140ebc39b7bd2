"""Who sends what a relayer puts on the chain: its own key, or a submitter that its key signs for.

The relayer's key stands for a bond. With a submitter it only signs, and another key holds the ether for gas.
"""

from __future__ import annotations

from collections.abc import Sequence

from headrace.core.typed_data import Domain, hash_round_record, hash_submitter
from headrace.core.types import Address, RoundRecord
from headrace.ports import Call, Chain, Clock, ResultSetCall, Signer

MANDATE_S = 3_600
"""How long a submitter's mandate counts, and so how long a lost submitter's key can do harm."""


class Submitting:
    """Builds a relayer's calls for who sends them.

    Args:
        chain: encodes them.
        clock: tells until when a mandate counts.
        relayer: the relayer's key.
        submitter: who sends instead, if anyone.
    """

    def __init__(self, chain: Chain, clock: Clock, relayer: Signer, submitter: Address | None) -> None:
        self._chain = chain
        self._clock = clock
        self._relayer = relayer
        self._submitter = submitter

    @property
    def sender(self) -> Address:
        """Who sends."""
        return self._submitter or self._relayer.address

    async def record_round_call(self, record: RoundRecord) -> Call:
        """`recordRound`, signed by the relayer when it does not send it."""
        signature = b""
        if self._submitter is not None:
            domain = Domain(self._chain.chain_id, self._chain.schedule_log)
            signature = await self._relayer.sign_typed(domain, hash_round_record(record))
        return self._chain.record_round_call(self._relayer.address, record, signature)

    async def submit_results_call(self, sets: Sequence[ResultSetCall]) -> Call:
        """`submitResults`, or `submitResultsFor` with a mandate that begins now."""
        relayer = self._relayer.address
        if self._submitter is None:
            return self._chain.submit_results_call(relayer, sets)
        valid_until_s = self._clock.now_ms() // 1000 + MANDATE_S
        domain = Domain(self._chain.chain_id, self._chain.market)
        mandate = await self._relayer.sign_typed(domain, hash_submitter(relayer, self._submitter, valid_until_s))
        return self._chain.submit_results_for_call(relayer, sets, valid_until_s, mandate)
