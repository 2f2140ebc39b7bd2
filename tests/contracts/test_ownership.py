from __future__ import annotations

import ape
import pytest

from tests.contracts import builders
from tests.contracts.builders import GRACE, ZERO, ItemStatus, Status, item


def test_set_requests_paused__owner__is_logged_and_told(world):
    for paused in (True, False):
        receipt = world.market.setRequestsPaused(paused, sender=world.owner)
        (event,) = receipt.decode_logs(world.market.RequestsPausedSet)
        assert event.paused == paused
        assert world.market.requestsPaused() == paused


def test_set_requests_paused__by_another__is_refused(world):
    with ape.reverts(world.market.OwnableUnauthorizedAccount, account=world.stranger.address):
        world.market.setRequestsPaused(True, sender=world.stranger)


def test_set_requests_paused__then_resumed__takes_requests_again(world):
    world.market.setRequestsPaused(True, sender=world.owner)
    world.market.setRequestsPaused(False, sender=world.owner)
    assert world.status_of(world.post()) == Status.PENDING


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
    world.market.withdraw(world.requester, world.credit(world.requester), sender=world.stranger)
    world.market.withdrawTo(world.stranger, 1, sender=world.relayer)
    assert world.open_escrow() == 0


def test_set_requests_paused__pending_owner_shares_its_slot__neither_disturbs_the_other(world):
    world.market.setRequestsPaused(True, sender=world.owner)
    world.market.transferOwnership(world.stranger, sender=world.owner)
    assert world.market.requestsPaused()
    world.market.setRequestsPaused(False, sender=world.owner)
    assert world.market.pendingOwner() == world.stranger
    world.market.setRequestsPaused(True, sender=world.owner)
    world.market.acceptOwnership(sender=world.stranger)
    assert world.market.requestsPaused()


@pytest.fixture(params=["market", "registry"])
def owned(request, world, registry):
    return {"market": world.market, "registry": registry}[request.param]


def test_transfer_ownership__until_accepted__changes_nothing(owned, owner, stranger):
    owned.transferOwnership(stranger, sender=owner)
    assert (owned.owner(), owned.pendingOwner()) == (owner, stranger)


def test_accept_ownership__named_account__owns(owned, owner, stranger):
    owned.transferOwnership(stranger, sender=owner)
    owned.acceptOwnership(sender=stranger)
    assert (owned.owner(), owned.pendingOwner()) == (stranger, ZERO)


def test_accept_ownership__by_another__is_refused(owned, owner, stranger, requester):
    owned.transferOwnership(stranger, sender=owner)
    with ape.reverts(owned.OwnableUnauthorizedAccount, account=requester.address):
        owned.acceptOwnership(sender=requester)


def test_transfer_ownership__by_another__is_refused(owned, stranger):
    with ape.reverts(owned.OwnableUnauthorizedAccount, account=stranger.address):
        owned.transferOwnership(stranger, sender=stranger)


def test_abi__owner_and_payable_functions__are_these_only(project):
    """The owner has no path to stake, escrow or credit, and wei comes in by these doors only."""
    market = project.InferenceMarket.contract_type
    payable = {m.name for m in market.mutable_methods if m.is_payable}
    assert payable == {"requestInference", "requestInferenceBatch", "raisePriorityFee", "deposit"}
    assert market.fallback is None
    assert not any(m.type == "receive" for m in market.abi)
    assert {m.name for m in market.mutable_methods} - payable == {
        "cancel",
        "cancelWithRelease",
        "expire",
        "submitResults",
        "withdraw",
        "withdrawTo",
        "setRequestsPaused",
        "transferOwnership",
        "acceptOwnership",
        "renounceOwnership",
    }
    assert "owner" not in {m.name for m in project.StakeManager.contract_type.methods}
    assert "owner" not in {m.name for m in project.ScheduleLog.contract_type.methods}


@pytest.mark.parametrize(("delay", "is_enough"), [(86_700, False), (86_701, True)])
def test_constructor__unbond_delay__must_outlast_every_open_request(project, owner, delay, is_enough):
    stakes = owner.deploy(project.StakeManager, 1, 1, delay, 1)
    log = owner.deploy(project.ScheduleLog, stakes)
    arguments = (owner, stakes, log, (1, 1, 1), (0, 0, 0))
    if is_enough:
        owner.deploy(project.InferenceMarket, *arguments)
        return
    with ape.reverts(project.InferenceMarket.UnbondDelayTooShort, delay=delay, least=86_701):
        owner.deploy(project.InferenceMarket, *arguments)
