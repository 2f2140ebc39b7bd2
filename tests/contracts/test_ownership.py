"""What owners can do: pause the intake of requests for a while, and hand a contract over, days later."""

from __future__ import annotations

import ape
import pytest
from eth_utils import keccak

from tests.contracts import builders
from tests.contracts.builders import GRACE, MAX_PAUSE, ZERO, ItemStatus, Status, item
from tests.contracts.world import GasTerms

OWNERSHIP_DELAY = 3 * 86_400
OWNED = ("market", "registry", "verifier")


@pytest.fixture
def verifier(project, owner):
    return owner.deploy(project.AttestedKeyVerifier, owner)


@pytest.fixture(params=OWNED)
def owned(request, world, registry, verifier):
    return {"market": world.market, "registry": registry, "verifier": verifier}[request.param]


def hand_over(world, contract, to) -> None:
    """A whole transfer, with its wait."""
    receipt = contract.transferOwnership(to, sender=world.owner)
    world.next_block_at(receipt.timestamp + OWNERSHIP_DELAY)
    contract.acceptOwnership(sender=to)


# PAUSE


def test_set_requests_paused__owner__is_logged_and_told(world):
    receipt = world.market.setRequestsPaused(True, sender=world.owner)
    (event,) = receipt.decode_logs(world.market.RequestsPausedSet)
    assert (event.paused, event.until) == (True, receipt.timestamp + MAX_PAUSE)
    assert world.market.requestsPaused()
    (event,) = world.market.setRequestsPaused(False, sender=world.owner).decode_logs(world.market.RequestsPausedSet)
    assert (event.paused, event.until) == (False, 0)
    assert not world.market.requestsPaused()


def test_set_requests_paused__by_another__is_refused(world):
    with ape.reverts(world.market.OwnableUnauthorizedAccount, account=world.stranger.address):
        world.market.setRequestsPaused(True, sender=world.stranger)


def test_set_requests_paused__then_resumed__takes_requests_again(world):
    world.market.setRequestsPaused(True, sender=world.owner)
    world.market.setRequestsPaused(False, sender=world.owner)
    assert world.status_of(world.post()) == Status.PENDING


@pytest.mark.parametrize("way", ["requestInference", "requestInferenceBatch", "requestInferenceFor"])
def test_set_requests_paused__every_way_in__is_shut_to_the_last_second(world, way):
    until = world.market.setRequestsPaused(True, sender=world.owner).timestamp + MAX_PAUSE
    params = world.params(deadline=until + 60)
    calls = {
        "requestInference": (params, b""),
        "requestInferenceBatch": ([params], [b""]),
        "requestInferenceFor": (params, b"", world.requester, 0, until, b""),
    }
    world.next_block_at(until - 1)
    with ape.reverts(world.market.RequestsPaused):
        getattr(world.market, way)(*calls[way], sender=world.requester)


def test_set_requests_paused__after_seven_days__ends_by_itself(world):
    until = world.market.setRequestsPaused(True, sender=world.owner).timestamp + MAX_PAUSE
    world.mine_at(until)
    assert not world.market.requestsPaused()
    assert world.status_of(world.post()) == Status.PENDING


def test_set_requests_paused__while_paused__lasts_seven_days_from_then(world):
    first = world.market.setRequestsPaused(True, sender=world.owner)
    world.mine_at(first.timestamp + MAX_PAUSE - 10)
    again = world.market.setRequestsPaused(True, sender=world.owner)
    world.mine_at(again.timestamp + MAX_PAUSE - 1)
    assert world.market.requestsPaused()
    world.mine_at(again.timestamp + MAX_PAUSE)
    assert not world.market.requestsPaused()


def test_set_requests_paused__paused__stops_nothing_but_new_requests(world):
    settled, cancelled, released, expired = (world.post() for _ in range(4))
    world.market.setRequestsPaused(True, sender=world.owner)
    world.market.deposit(world.requester, sender=world.requester, value=1)
    world.market.raisePriorityFee(settled.id, sender=world.requester, value=1)
    receipt = world.submit(world.set_of([item(settled)], world.record_round()))
    assert world.statuses(receipt) == [[ItemStatus.OK]]
    world.market.cancel(cancelled.request, sender=world.requester)
    valid_until = world.now + 60
    release = builders.sign_release(world.relayer_key, world.market.address, released.id, valid_until)
    world.market.cancelWithRelease(released.request, valid_until, release, sender=world.requester)
    world.next_block_at(expired.deadline + GRACE + 1)
    world.market.expire([cancelled.request, expired.request], sender=world.stranger)
    world.market.withdraw(world.requester, world.credit(world.requester), sender=world.requester)
    world.market.withdrawTo(world.stranger, 1, sender=world.relayer)
    assert world.open_escrow() == 0


def test_set_requests_paused__pending_owner_shares_its_slot__neither_disturbs_the_other(world):
    world.market.setRequestsPaused(True, sender=world.owner)
    transfer = world.market.transferOwnership(world.stranger, sender=world.owner)
    assert world.market.requestsPaused()
    world.market.setRequestsPaused(False, sender=world.owner)
    assert world.market.pendingOwner() == world.stranger
    world.market.setRequestsPaused(True, sender=world.owner)
    world.next_block_at(transfer.timestamp + OWNERSHIP_DELAY - 1)
    with ape.reverts(world.market.OwnershipTimelocked):
        world.market.acceptOwnership(sender=world.stranger)
    world.next_block_at(transfer.timestamp + OWNERSHIP_DELAY)
    world.market.acceptOwnership(sender=world.stranger)
    assert world.market.requestsPaused()


# HAND-OVER


def test_transfer_ownership__until_accepted__changes_nothing(world, owned):
    receipt = owned.transferOwnership(world.stranger, sender=world.owner)
    (timed,) = receipt.decode_logs(owned.OwnershipTransferTimed)
    assert (timed.newOwner, timed.acceptableAt) == (world.stranger, receipt.timestamp + OWNERSHIP_DELAY)
    assert (owned.owner(), owned.pendingOwner()) == (world.owner, world.stranger)
    assert owned.OWNERSHIP_DELAY() == OWNERSHIP_DELAY


@pytest.mark.parametrize(("after", "is_enough"), [(OWNERSHIP_DELAY - 1, False), (OWNERSHIP_DELAY, True)])
def test_accept_ownership__named_account__owns_after_the_delay(world, owned, after, is_enough):
    begun = owned.transferOwnership(world.stranger, sender=world.owner).timestamp
    world.next_block_at(begun + after)
    if is_enough:
        (event,) = owned.acceptOwnership(sender=world.stranger).decode_logs(owned.OwnershipTransferred)
        assert (event.previousOwner, event.newOwner) == (world.owner, world.stranger)
        assert (owned.owner(), owned.pendingOwner()) == (world.stranger, ZERO)
        return
    expected = {"acceptableAt": begun + OWNERSHIP_DELAY, "blockTimestamp": begun + after}
    with ape.reverts(owned.OwnershipTimelocked, **expected):
        owned.acceptOwnership(sender=world.stranger)
    assert owned.owner() == world.owner


def test_accept_ownership__by_another__is_refused(world, owned):
    begun = owned.transferOwnership(world.stranger, sender=world.owner).timestamp
    world.next_block_at(begun + OWNERSHIP_DELAY)
    with ape.reverts(owned.OwnableUnauthorizedAccount, account=world.requester.address):
        owned.acceptOwnership(sender=world.requester)


def test_accept_ownership__nothing_begun__is_refused(world, owned):
    with ape.reverts(owned.OwnableUnauthorizedAccount, account=world.owner.address):
        owned.acceptOwnership(sender=world.owner)


def test_transfer_ownership__by_another__is_refused(world, owned):
    with ape.reverts(owned.OwnableUnauthorizedAccount, account=world.stranger.address):
        owned.transferOwnership(world.stranger, sender=world.stranger)


def test_transfer_ownership__to_another_before_it_is_accepted__waits_anew(world, owned):
    first = owned.transferOwnership(world.stranger, sender=world.owner).timestamp
    world.next_block_at(first + OWNERSHIP_DELAY)
    second = owned.transferOwnership(world.requester, sender=world.owner).timestamp
    with ape.reverts(owned.OwnershipTimelocked):
        owned.acceptOwnership(sender=world.requester)
    world.next_block_at(second + OWNERSHIP_DELAY)
    with ape.reverts(owned.OwnableUnauthorizedAccount, account=world.stranger.address):
        owned.acceptOwnership(sender=world.stranger)
    owned.acceptOwnership(sender=world.requester)
    assert owned.owner() == world.requester


def test_transfer_ownership__to_nobody__takes_a_transfer_back(world, owned):
    begun = owned.transferOwnership(world.stranger, sender=world.owner).timestamp
    owned.transferOwnership(ZERO, sender=world.owner)
    world.next_block_at(begun + 2 * OWNERSHIP_DELAY)
    with ape.reverts(owned.OwnableUnauthorizedAccount, account=world.stranger.address):
        owned.acceptOwnership(sender=world.stranger)
    assert owned.owner() == world.owner


def test_transfer_ownership__accepted__former_owner_can_do_nothing(world, owned):
    hand_over(world, owned, world.stranger)
    with ape.reverts(owned.OwnableUnauthorizedAccount, account=world.owner.address):
        owned.transferOwnership(world.owner, sender=world.owner)
    with ape.reverts(owned.OwnableUnauthorizedAccount, account=world.owner.address):
        owned.renounceOwnership(sender=world.owner)


def test_renounce_ownership__owner__leaves_it_to_nobody_for_ever(world, owned):
    begun = owned.transferOwnership(world.stranger, sender=world.owner).timestamp
    with ape.reverts(owned.OwnableUnauthorizedAccount, account=world.stranger.address):
        owned.renounceOwnership(sender=world.stranger)
    owned.renounceOwnership(sender=world.owner)
    assert (owned.owner(), owned.pendingOwner()) == (ZERO, ZERO)
    world.next_block_at(begun + OWNERSHIP_DELAY)
    with ape.reverts(owned.OwnableUnauthorizedAccount, account=world.stranger.address):
        owned.acceptOwnership(sender=world.stranger)


def test_renounce_ownership__while_paused__requests_are_taken_when_the_pause_ends(world):
    until = world.market.setRequestsPaused(True, sender=world.owner).timestamp + MAX_PAUSE
    world.market.renounceOwnership(sender=world.owner)
    world.mine_at(until)
    assert world.status_of(world.post()) == Status.PENDING


# WHAT IS OWNED AT ALL


def owners_functions(contract, stranger) -> set[str]:
    """The functions that refuse whoever is not the owner, found by trying all that change something."""
    refused = set()
    selector = keccak(text="OwnableUnauthorizedAccount(address)")[:4].hex()
    for method in contract.contract_type.mutable_methods:
        arguments = bytes(2048)  # every argument zero, and every dynamic one empty at offset zero
        call = {"from": stranger.address, "to": contract.address, "data": "0x" + (method_id(method) + arguments).hex()}
        answer = contract.provider.web3.provider.make_request("eth_call", [call, "latest"])
        if selector in str(answer.get("error", {}).get("data", "")):
            refused.add(method.name)
    return refused


def method_id(method) -> bytes:
    return keccak(text=method.selector)[:4]


@pytest.mark.parametrize(
    ("name", "own"),
    [
        ("market", {"setRequestsPaused"}),
        ("registry", {"register"}),
        ("verifier", {"attest", "revoke"}),
        ("stakes", None),
        ("log", None),
        ("faults", None),
    ],
)
def test_owners_functions__are_these_only(world, registry, verifier, faults, name, own):
    contracts = {"market": world.market, "registry": registry, "verifier": verifier}
    contract = (contracts | {"stakes": world.stakes, "log": world.log, "faults": faults})[name]
    expected = set() if own is None else own | {"transferOwnership", "acceptOwnership", "renounceOwnership"}
    assert owners_functions(contract, world.stranger) == expected
    assert ("owner" in {method.name for method in contract.contract_type.methods}) == (own is not None)


def test_abi__wei_comes_in_by_these_doors_only(project):
    market = project.InferenceMarket.contract_type
    payable = {method.name for method in market.mutable_methods if method.is_payable}
    assert payable == {"requestInference", "requestInferenceBatch", "raisePriorityFee", "deposit"}
    assert market.fallback is None
    assert not any(entry.type == "receive" for entry in market.abi)


@pytest.mark.parametrize(("delay", "is_enough"), [(86_700, False), (86_701, True)])
def test_constructor__unbond_delay__must_outlast_every_open_request(project, owner, delay, is_enough):
    stakes = owner.deploy(project.StakeManager, 1, 1, delay, 1, ZERO)
    log = owner.deploy(project.ScheduleLog, stakes)
    arguments = (owner, stakes, log, GasTerms().as_tuple(), (0, 0, 0))
    if is_enough:
        owner.deploy(project.InferenceMarket, *arguments)
        return
    with ape.reverts(project.InferenceMarket.UnbondDelayTooShort, delay=delay, least=86_701):
        owner.deploy(project.InferenceMarket, *arguments)
