"""Many signatures at once: in order, all or none, and no more at a time than the bound."""

from __future__ import annotations

import asyncio

import pytest

from headrace.core.errors import SignerUnavailable
from headrace.core.typed_data import Domain, digest, signer_of
from headrace.services.signing import MAX_AT_ONCE, sign_all
from tests.fakes import MARKET, FakeSigner

DOMAIN = Domain(31337, MARKET)
HASHES = [number.to_bytes(32, "big") for number in range(3 * MAX_AT_ONCE)]


class Remote(FakeSigner):
    """A key that takes a while, and of which one signature may fail."""

    def __init__(self, number: int, fails_on: bytes = b"") -> None:
        super().__init__(number)
        self.fails_on = fails_on
        self.now = self.most = self.signed = 0

    async def sign_typed(self, domain: Domain, struct_hash: bytes) -> bytes:
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            await asyncio.sleep(0)
            if struct_hash == self.fails_on:
                raise SignerUnavailable("gone")
            self.signed += 1
            return await super().sign_typed(domain, struct_hash)
        finally:
            self.now -= 1


@pytest.mark.parametrize("signer", [FakeSigner(7), Remote(7)])
async def test_sign_all__many__are_in_order(signer: FakeSigner) -> None:
    signatures = await sign_all(signer, DOMAIN, HASHES)
    assert signatures == [signer.sign_digest(digest(DOMAIN, each)) for each in HASHES]
    assert signer_of(digest(DOMAIN, HASHES[5]), signatures[5]) == signer.address


async def test_sign_all__remote__is_asked_for_many_at_once_and_not_for_more() -> None:
    signer = Remote(7)
    await sign_all(signer, DOMAIN, HASHES)
    assert signer.most == MAX_AT_ONCE


async def test_sign_all__one_fails__gives_none_and_leaves_nothing_running() -> None:
    signer = Remote(7, fails_on=HASHES[10])
    with pytest.raises(SignerUnavailable):
        await sign_all(signer, DOMAIN, HASHES)
    assert signer.now == 0 and signer.signed < len(HASHES)


async def test_sign_all__none() -> None:
    assert await sign_all(FakeSigner(7), DOMAIN, []) == []
