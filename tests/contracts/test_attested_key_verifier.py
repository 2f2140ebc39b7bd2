"""AttestedKeyVerifier: whom the registrar vouches for, and which proofs hold."""

from __future__ import annotations

from dataclasses import dataclass

import ape
import pytest
from eth_account import Account
from eth_account.messages import encode_typed_data
from eth_utils import keccak

from tests.contracts.builders import CHAIN_ID, ZERO, ItemStatus, Mode, Posted, Status, item
from tests.contracts.conftest import OTHER_NODE_KEY

ENCLAVE_KEY, OTHER_ENCLAVE_KEY = "0x" + "e5" * 32, "0x" + "f6" * 32
ENCLAVE, OTHER_ENCLAVE = (Account.from_key(key).address for key in (ENCLAVE_KEY, OTHER_ENCLAVE_KEY))
MODEL, OTHER_MODEL = keccak(text="tiny"), keccak(text="small")
RESULT_HASH = keccak(text="an answer")
HALF_OF_CURVE = 0x7FFFFFFFFFFFFFFFFFFFFFFFFFFFFFFF5D576E7357A4501DDFE92F46681B20A0
CURVE = 0xFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFEBAAEDCE6AF48A03BBFD25E8CD0364141
FOR_A_WEEK_S = 7 * 86_400

DOMAIN = {"name": "Headrace AttestedKeyVerifier", "version": "1", "chainId": CHAIN_ID}
TYPES = {
    "Attestation": [
        {"name": "requestId", "type": "bytes32"},
        {"name": "node", "type": "address"},
        {"name": "resultHash", "type": "bytes32"},
    ]
}


def attestation(verifier, request_id, node, result_hash, key=ENCLAVE_KEY, **domain) -> bytes:
    """What an attested key signs, from the protocol's text."""
    whole = {**DOMAIN, "verifyingContract": verifier.address} | domain
    message = {"requestId": request_id, "node": node, "resultHash": result_hash}
    return bytes(Account.sign_message(encode_typed_data(whole, TYPES, message), key).signature)


@dataclass
class Registry:
    """A verifier whose registrar is the owner, and a request that names it."""

    verifier: object
    world: object
    posted: Posted

    def attest(self, key=ENCLAVE, model=MODEL, valid_until=None, sender=None):
        valid_until = valid_until or self.world.now + FOR_A_WEEK_S
        return self.verifier.attest(key, model, valid_until, sender=sender or self.world.owner)

    def sign(self, **changes) -> bytes:
        asked = {"request_id": self.posted.id, "node": self.world.node, "result_hash": RESULT_HASH}
        return attestation(self.verifier, **(asked | changes))

    def holds(self, proof: bytes, node=None, result_hash=RESULT_HASH, request=None, request_id=None) -> bool:
        request = request or self.posted.request
        answer = self.verifier.verifyInference(
            tuple(request.values()), request_id or self.posted.id, node or self.world.node, result_hash, proof
        )
        assert bytes(answer) in (self.magic, bytes(4))
        return bytes(answer) == self.magic

    @property
    def magic(self) -> bytes:
        """The function's own selector."""
        kind = "(address,address,bytes32,bytes32,uint256,uint256,address)"
        return keccak(text=f"verifyInference({kind},bytes32,address,bytes32,bytes)")[:4]


@pytest.fixture
def registry(project, world):
    verifier = world.owner.deploy(project.AttestedKeyVerifier, world.owner)
    return Registry(verifier, world, world.prepare(mode=Mode.VERIFIER, verifier=verifier.address))


# THE REGISTRAR


def test_attest__registrar__vouches_for_the_key(registry, world):
    assert tuple(registry.verifier.attestedOf(ENCLAVE)) == (bytes(32), 0)
    until = world.now + FOR_A_WEEK_S
    (event,) = registry.attest(valid_until=until).decode_logs(registry.verifier.KeyAttested)
    assert (event.key, event.modelId, event.validUntil) == (ENCLAVE, MODEL, until)
    assert tuple(registry.verifier.attestedOf(ENCLAVE)) == (MODEL, until)


def test_attest__again__changes_for_what_and_how_long(registry, world):
    registry.attest()
    registry.attest(model=OTHER_MODEL, valid_until=world.now + 100)
    assert registry.verifier.attestedOf(ENCLAVE).modelId == OTHER_MODEL
    assert not registry.holds(registry.sign())


def test_attest_and_revoke__by_another__are_refused(registry, world):
    with ape.reverts(registry.verifier.OwnableUnauthorizedAccount, account=world.stranger.address):
        registry.attest(sender=world.stranger)
    registry.attest()
    with ape.reverts(registry.verifier.OwnableUnauthorizedAccount, account=world.stranger.address):
        registry.verifier.revoke(ENCLAVE, sender=world.stranger)
    assert registry.holds(registry.sign())


def test_attest__zero_address__invalid_key(registry):
    with ape.reverts(registry.verifier.InvalidKey, key=ZERO):
        registry.attest(key=ZERO)


@pytest.mark.parametrize(("ahead", "is_taken"), [(-1, False), (0, False), (1, True)])
def test_attest__until_a_time_that_has_passed__already_expired(registry, world, ahead, is_taken):
    now = world.now + 50
    world.next_block_at(now)
    if is_taken:
        registry.attest(valid_until=now + ahead)
        return
    with ape.reverts(registry.verifier.AlreadyExpired, validUntil=now + ahead, blockTimestamp=now):
        registry.attest(valid_until=now + ahead)


def test_revoke__attested__ends_it_at_once(registry):
    registry.attest()
    (event,) = registry.verifier.revoke(ENCLAVE, sender=registry.world.owner).decode_logs(registry.verifier.KeyRevoked)
    assert event.key == ENCLAVE
    assert tuple(registry.verifier.attestedOf(ENCLAVE)) == (bytes(32), 0)
    assert not registry.holds(registry.sign())
    registry.attest()
    assert registry.holds(registry.sign())


@pytest.mark.parametrize("was_revoked", [False, True])
def test_revoke__not_attested__not_attested(registry, was_revoked):
    if was_revoked:
        registry.attest()
        registry.verifier.revoke(ENCLAVE, sender=registry.world.owner)
    with ape.reverts(registry.verifier.NotAttested, key=ENCLAVE):
        registry.verifier.revoke(ENCLAVE, sender=registry.world.owner)


# PROOFS


def test_verify__attested_key_s_word__holds(registry):
    registry.attest()
    assert registry.holds(registry.sign())


def test_verify__nobody_vouches_for_the_key__does_not_hold(registry):
    assert not registry.holds(registry.sign())
    registry.attest(key=OTHER_ENCLAVE)
    assert not registry.holds(registry.sign())
    assert registry.holds(registry.sign(key=OTHER_ENCLAVE_KEY))


def test_verify__expiry__holds_up_to_its_second(registry, world):
    until = world.now + 1000
    registry.attest(valid_until=until)
    proof = registry.sign()
    world.mine_at(until)
    assert registry.holds(proof)
    world.mine_at(until + 1)
    assert not registry.holds(proof)


def test_verify__key_of_another_model__does_not_hold(registry):
    registry.attest(model=OTHER_MODEL)
    assert not registry.holds(registry.sign())


@pytest.mark.parametrize("field", ["request", "node", "result"])
def test_verify__proof_of_something_else__does_not_hold(registry, world, field):
    registry.attest()
    other = {"request": {"request_id": keccak(b"another")}, "node": {"node": world.relayer.address}}
    other["result"] = {"result_hash": keccak(b"another")}
    assert not registry.holds(registry.sign(**other[field]))
    assert registry.holds(registry.sign(**other[field]), **other[field])


@pytest.mark.parametrize(
    "domain",
    [{"chainId": 1}, {"verifyingContract": "0x" + "11" * 20}, {"name": "Headrace"}, {"version": "2"}],
    ids=lambda domain: next(iter(domain)),
)
def test_verify__signed_for_another_chain_or_contract__does_not_hold(registry, domain):
    registry.attest()
    assert not registry.holds(registry.sign(**domain))


def test_verify__second_verifier__does_not_take_the_first_one_s_proofs(registry, project, world):
    registry.attest()
    proof = registry.sign()
    twin = Registry(world.owner.deploy(project.AttestedKeyVerifier, world.owner), world, registry.posted)
    twin.attest()
    assert registry.holds(proof)
    assert not twin.holds(proof)


def test_verify__other_half_of_the_signature__does_not_hold(registry):
    """Each ECDSA signature has a twin that recovers to the same key; only the one with the low s is taken."""
    registry.attest()
    proof = registry.sign()
    r, s, v = proof[:32], int.from_bytes(proof[32:64], "big"), proof[64]
    assert s <= HALF_OF_CURVE
    twin = r + (CURVE - s).to_bytes(32, "big") + bytes([27 + 28 - v])
    assert registry.holds(proof)
    assert not registry.holds(twin)


@pytest.mark.parametrize("length", [0, 1, 32, 64, 66, 97, 4096])
def test_verify__proof_of_another_length__does_not_hold(registry, length):
    registry.attest()
    proof = registry.sign()
    assert not registry.holds((proof + bytes(4096))[:length])


@pytest.mark.parametrize("v", [0, 1, 26, 29, 255])
def test_verify__v_that_is_none__does_not_hold(registry, v):
    registry.attest()
    assert not registry.holds(registry.sign()[:64] + bytes([v]))


@pytest.mark.parametrize("proof", [bytes(65), bytes(64) + b"\x1b", b"\xff" * 64 + b"\x1c"])
def test_verify__signature_of_nobody__does_not_hold(registry, proof):
    registry.attest()
    assert not registry.holds(proof)


def test_digest_of__is_what_the_key_signs(registry, world):
    digest = registry.verifier.digestOf(registry.posted.id, world.node, RESULT_HASH)
    assert Account._recover_hash(digest, signature=registry.sign()) == ENCLAVE


def test_supports_interface__verifiers_and_erc165_only(registry):
    supports = registry.verifier.supportsInterface
    assert supports(registry.magic)  # an interface of one function has its selector as id
    assert supports(bytes.fromhex("01ffc9a7"))
    assert not supports(bytes.fromhex("ffffffff"))
    assert not supports(bytes(4))


# IN THE MARKET


@pytest.fixture
def open_request(registry, world):
    """The request, posted, and the item that the enclave's proof is for."""
    registry.attest()
    world.market.requestInference(registry.posted.params, b"", sender=world.requester, value=registry.posted.escrow)
    world.track(registry.posted)
    return item(registry.posted)


def settle(world, answer, proof, **fields) -> ItemStatus:
    receipt = world.submit(world.set_of([answer], world.record_round(), proofs=[proof], **fields))
    ((status,),) = world.statuses(receipt)
    return status


def test_market__proof_by_an_attested_key__is_paid(registry, world, open_request):
    proof = registry.sign(result_hash=open_request.result_hash)
    assert settle(world, open_request, proof) == ItemStatus.OK
    assert world.status_of(registry.posted) == Status.FULFILLED


def test_market__proof_for_another_node__is_not_paid_until_its_own_comes(registry, world, open_request, other_node):
    proof = registry.sign(result_hash=open_request.result_hash)
    assert settle(world, open_request, proof, key=OTHER_NODE_KEY) == ItemStatus.VERIFICATION_FAILED
    assert world.status_of(registry.posted) == Status.PENDING
    own = registry.sign(result_hash=open_request.result_hash, node=other_node)
    assert settle(world, open_request, own, key=OTHER_NODE_KEY) == ItemStatus.OK


def test_market__key_revoked_before_the_settlement__is_not_paid(registry, world, open_request):
    proof = registry.sign(result_hash=open_request.result_hash)
    registry.verifier.revoke(ENCLAVE, sender=world.owner)
    assert settle(world, open_request, proof) == ItemStatus.VERIFICATION_FAILED
    assert world.status_of(registry.posted) == Status.PENDING
