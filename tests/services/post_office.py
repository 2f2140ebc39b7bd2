"""A relayer's intake and poster around the services' world, and requesters that only sign."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from headrace.core import typed_data
from headrace.core.postings import SignedRequest
from headrace.core.types import Hash32, Request
from headrace.ports import StoredPosting
from headrace.services.intake import HandedIn, Intake, IntakeSettings
from headrace.services.poster import Poster
from tests.fakes import FakeSigner
from tests.services.world import PROMPT, World, a_world

KEY = FakeSigner(7)
OTHER_KEY = FakeSigner(8)
FEE_WEI = 10**15
CREDIT_WEI = 10**17


@dataclass
class PostOffice:
    """Everything together."""

    world: World
    intake: Intake
    poster: Poster
    rings: list[None] = field(default_factory=list)

    def request(self, key: FakeSigner = KEY, **changes: object) -> Request:
        return self.world.request(**{"requester": key.address, "deadline_s": self.now_s + 600, **changes})

    @property
    def now_s(self) -> int:
        return self.world.clock.now_ms() // 1000

    def signed(
        self, request: Request, key: FakeSigner = KEY, fee_wei: int = FEE_WEI, valid_for_s: int = 120
    ) -> SignedRequest:
        until_s = self.now_s + valid_for_s
        domain = typed_data.Domain(self.world.chain.chain_id, self.world.chain.market)
        digest = typed_data.digest(domain, typed_data.hash_request_for(request, fee_wei, until_s))
        return SignedRequest(request, fee_wei, until_s, key.sign_digest(digest))

    async def hand_in(self, request: Request, key: FakeSigner = KEY, **changes: int) -> StoredPosting:
        return await self.intake.take(HandedIn(self.signed(request, key, **changes), PROMPT, False))

    async def the(self, id_: Hash32) -> StoredPosting:
        found = await self.world.store.posting(id_)
        assert found is not None
        return found

    async def block(self) -> None:
        """A block with what waits, indexed and confirmed."""
        self.world.chain.mine()
        await self.world.sender.confirm()
        await self.world.index()

    def sent(self) -> int:
        return len(self.world.chain.sent)


@asynccontextmanager
async def post_office(nodes: int = 0, settings: IntakeSettings | None = None) -> AsyncIterator[PostOffice]:
    """A relayer with an intake and a poster, and two requesters with credit and no wei."""
    async with a_world(nodes=nodes) as world:
        for key in (KEY, OTHER_KEY):
            world.chain.credits[key.address] = CREDIT_WEI
            world.chain.balances[key.address] = 0
        await world.index()
        rings: list[None] = []
        relayer, terms = world.signer.address, world.chain.terms
        has_bond = world.bonding.holds
        intake = Intake(
            world.chain,
            world.store,
            world.clock,
            world.metrics,
            relayer,
            terms,
            lambda: rings.append(None),
            settings,
            has_bond=has_bond,
        )
        poster = Poster(
            world.chain, world.store, world.sender, world.clock, world.metrics, relayer, terms, has_bond=has_bond
        )
        yield PostOffice(world, intake, poster, rings)
