from __future__ import annotations

import ape
import pytest

from tests.contracts.builders import Status


@pytest.fixture
def wallet(project, owner, world):
    wallet = owner.deploy(project.Wallet)
    world.holders.add(wallet.address)
    return wallet


def test_deposit__for_another__credits_it_and_is_logged(world):
    receipt = world.market.deposit(world.stranger, sender=world.requester, value=5)
    (event,) = receipt.decode_logs(world.market.Deposited)
    assert (event.account, getattr(event, "from"), event.amount) == (world.stranger, world.requester, 5)
    assert world.credit(world.stranger) == 5


def test_deposit__twice__adds_up(world):
    for _ in range(2):
        world.market.deposit(world.requester, sender=world.requester, value=5)
    assert world.credit(world.requester) == 10


def test_deposit__nothing__nothing_sent(world):
    with ape.reverts(world.market.NothingSent):
        world.market.deposit(world.requester, sender=world.requester)


def test_transfer__without_a_call__is_refused(world):
    with ape.reverts():
        world.requester.transfer(world.market, 1)


def test_withdraw__of_a_contract_by_anyone__pays_the_contract_itself(world, wallet):
    world.market.deposit(wallet, sender=world.requester, value=10)
    strangers = world.credit(world.stranger)
    receipt = world.market.withdraw(wallet, 4, sender=world.stranger)
    (event,) = receipt.decode_logs(world.market.Withdrawn)
    assert (event.account, event.to, event.amount) == (wallet.address, wallet.address, 4)
    assert wallet.balance == 4
    assert world.credit(wallet) == 6
    assert world.credit(world.stranger) == strangers


def test_withdraw__of_an_account_that_can_call__is_its_own_to_ask(world):
    world.market.deposit(world.requester, sender=world.requester, value=10)
    expected = {"caller": world.stranger.address, "account": world.requester.address}
    with ape.reverts(world.market.NotAccount, **expected):
        world.market.withdraw(world.requester, 4, sender=world.stranger)
    before = world.requester.balance
    receipt = world.market.withdraw(world.requester, 4, sender=world.requester)
    assert world.requester.balance == before + 4 - receipt.total_fees_paid
    assert world.credit(world.requester) == 6


def test_withdraw__of_an_account_that_delegates_to_a_contract__is_its_own_to_ask(world, wallet):
    world.market.deposit(world.requester, sender=world.requester, value=10)
    world.provider.set_code(world.requester.address, "0xef0100" + wallet.address[2:])
    expected = {"caller": world.stranger.address, "account": world.requester.address}
    with ape.reverts(world.market.NotAccount, **expected):
        world.market.withdraw(world.requester, 4, sender=world.stranger)


def test_withdraw__everything__leaves_nothing(world):
    world.market.deposit(world.requester, sender=world.requester, value=10)
    world.market.withdraw(world.requester, 10, sender=world.requester)
    assert world.market.balance == 0


def test_withdraw__a_wei_too_much__balance_short(world):
    world.market.deposit(world.requester, sender=world.requester, value=10)
    expected = {"account": world.requester.address, "required": 11, "available": 10}
    with ape.reverts(world.market.BalanceShort, **expected):
        world.market.withdraw(world.requester, 11, sender=world.requester)


def test_withdraw__keeps_the_settled_count(world):
    world.settle(world.post())
    world.market.withdraw(world.node_owner, world.credit(world.node_owner), sender=world.node_owner)
    assert tuple(world.market.accountOf(world.node_owner)) == (0, 1)


def test_withdraw__contract_that_refuses_wei__transfer_failed_and_keeps_its_credit(world, wallet):
    world.market.deposit(wallet, sender=world.requester, value=10)
    wallet.setRefuses(True, sender=world.owner)
    with ape.reverts(world.market.TransferFailed, to=wallet.address, amount=10):
        world.market.withdraw(wallet, 10, sender=world.stranger)
    assert world.credit(wallet) == 10


@pytest.mark.parametrize("account", ["wallet", "victim"])
def test_withdraw__receiver_calls_again__takes_no_wei_twice(world, project, owner, wallet, account):
    victim = owner.deploy(project.Wallet)
    world.holders.add(victim.address)
    for each in (wallet, victim):
        world.market.deposit(each, sender=world.requester, value=10)
    target = wallet if account == "wallet" else victim
    again = world.market.withdraw.encode_input(target, 10)
    wallet.setReentry(world.market, again, sender=world.owner)
    world.market.withdraw(wallet, 10, sender=world.stranger)
    assert wallet.balance == 10
    assert world.credit(wallet) == 0
    assert wallet.reentryWorked() == (account == "victim")  # who was paid itself, as by anyone's call


def test_withdraw_to__own_credit__pays_whom_it_names(world):
    world.market.deposit(world.requester, sender=world.requester, value=10)
    before = world.stranger.balance
    receipt = world.market.withdrawTo(world.stranger, 4, sender=world.requester)
    (event,) = receipt.decode_logs(world.market.Withdrawn)
    assert (event.account, event.to, event.amount) == (world.requester, world.stranger, 4)
    assert world.stranger.balance == before + 4
    assert world.credit(world.requester) == 6


def test_withdraw_to__no_credit_of_its_own__balance_short(world):
    world.market.deposit(world.requester, sender=world.requester, value=10)
    expected = {"account": world.stranger.address, "required": 1, "available": 0}
    with ape.reverts(world.market.BalanceShort, **expected):
        world.market.withdrawTo(world.stranger, 1, sender=world.stranger)


def test_withdraw_to__receiver_refuses__transfer_failed(world, wallet):
    wallet.setRefuses(True, sender=world.owner)
    world.market.deposit(world.requester, sender=world.requester, value=10)
    with ape.reverts(world.market.TransferFailed, to=wallet.address, amount=10):
        world.market.withdrawTo(wallet, 10, sender=world.requester)
    assert world.credit(world.requester) == 10


def test_withdraw_to__contract_that_refuses_wei__gets_out_by_another_account(world, wallet):
    world.market.deposit(wallet, sender=world.requester, value=10)
    wallet.setRefuses(True, sender=world.owner)
    call = world.market.withdrawTo.encode_input(world.stranger, 10)
    before = world.stranger.balance
    wallet.forward(world.market, call, sender=world.owner)
    assert world.stranger.balance == before + 10


def test_withdraw__contract_requester_without_a_withdraw_call__is_refunded(world, wallet):
    posted = world.prepare(wallet)
    call = world.market.requestInference.encode_input(posted.params, b"")
    wallet.forward(world.market, call, sender=world.requester, value=posted.escrow)
    world.track(posted)
    world.settle(posted)
    refund = world.credit(wallet)
    world.market.withdraw(wallet, refund, sender=world.stranger)
    assert world.status_of(posted) == Status.FULFILLED
    assert wallet.balance == refund


def test_withdraw__wei_was_forced_in__pays_credits_only(world):
    world.market.deposit(world.requester, sender=world.requester, value=10)
    world.provider.set_balance(world.market.address, 1_000)
    with ape.reverts(world.market.BalanceShort, required=11, available=10):
        world.market.withdraw(world.requester, 11, sender=world.requester)
    world.market.withdraw(world.requester, 10, sender=world.requester)
    world.provider.set_balance(world.market.address, 0)
