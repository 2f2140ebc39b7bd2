// SPDX-License-Identifier: MIT
pragma solidity ^0.8.30;

import {Request} from "../../contracts/Types.sol";
import {IInferenceMarket} from "../../contracts/interfaces/IInferenceMarket.sol";
import {Base} from "./Base.sol";
import {Puppet, newPuppet} from "./Puppet.sol";
import {VM, Vm} from "./Vm.sol";

/// deposit, withdraw and withdrawTo.
contract AccountsTest is Base {
    address private account = address(0xACC0);

    function setUp() external {
        _deploy(0);
    }

    function testFuzz_deposit_isCredited(address by, address to, uint96 first, uint96 second) external {
        VM.assume(first != 0 && second != 0 && by != address(market));
        VM.deal(by, uint256(first) + second);
        VM.recordLogs();
        VM.prank(by);
        market.deposit{value: first}(to);
        Vm.Log[] memory logs = VM.getRecordedLogs();
        VM.prank(by);
        market.deposit{value: second}(to);
        VM.assertEq(_credit(to), uint256(first) + second, "credit");
        VM.assertEq(address(market).balance, uint256(first) + second, "balance");
        VM.assertEq(logs[0].topics[0], IInferenceMarket.Deposited.selector, "event");
        VM.assertEq(logs[0].topics[1], bytes32(uint256(uint160(to))), "to");
        VM.assertEq(logs[0].topics[2], bytes32(uint256(uint160(by))), "from");
        VM.assertEq(logs[0].data, abi.encode(first), "amount");
    }

    function test_deposit_refusesNothing() external {
        VM.expectRevert(abi.encodeWithSelector(IInferenceMarket.NothingSent.selector));
        market.deposit(account);
    }

    /// An account can hold 2^128 - 1 wei, and one more is refused rather than lost.
    function test_deposit_refusesWhatAnAccountCannotHold() external {
        _deposit(account, type(uint128).max);
        VM.deal(address(this), 1);
        VM.expectRevert(
            abi.encodeWithSignature("SafeCastOverflowedUintDowncast(uint8,uint256)", 128, uint256(1) << 128)
        );
        market.deposit{value: 1}(account);
    }

    /// Whether a contract asks for itself or anyone does: it goes to the account.
    function testFuzz_withdraw_paysTheAccountItself(address by, bytes calldata code, uint128 credit, uint128 amount)
        external
    {
        amount = uint128(_bound(amount, 0, credit));
        _deposit(account, credit);
        // One that takes wei, whatever comes after the STOP.
        if (by != account) VM.etch(account, bytes.concat(hex"00", code));
        VM.recordLogs();
        VM.prank(by);
        market.withdraw(account, amount);
        Vm.Log[] memory logs = VM.getRecordedLogs();
        VM.assertEq(account.balance, amount, "paid");
        VM.assertEq(_credit(account), credit - amount, "credit");
        VM.assertEq(logs[0].topics[0], IInferenceMarket.Withdrawn.selector, "event");
        VM.assertEq(logs[0].topics[1], bytes32(uint256(uint160(account))), "from");
        VM.assertEq(logs[0].topics[2], bytes32(uint256(uint160(account))), "to");
        VM.assertEq(logs[0].data, abi.encode(amount), "amount");
    }

    function testFuzz_withdraw_ofAnAccountWithAKey_isItsOwnToAsk(address by, uint160 delegate, bool delegates)
        external
    {
        VM.assume(by != account);
        _deposit(account, 2);
        // What EIP-7702 puts in place of code.
        if (delegates) VM.etch(account, bytes.concat(hex"ef0100", bytes20(delegate)));
        VM.expectRevert(abi.encodeWithSelector(IInferenceMarket.NotAccount.selector, by, account));
        VM.prank(by);
        market.withdraw(account, 1);
        VM.assertEq(_credit(account), 2, "credit");
    }

    function testFuzz_withdraw_ofAContractOfThatLength_isAnyones(address by, bytes20 rest, bytes2 start) external {
        _deposit(account, 2);
        VM.etch(account, bytes.concat(hex"00", start, rest));
        VM.prank(by);
        market.withdraw(account, 1);
        VM.assertEq(account.balance, 1, "paid");
    }

    function testFuzz_withdrawTo_paysWhomTheAccountNames(uint128 credit, uint128 amount, uint160 to) external {
        address receiver = address(uint160(_bound(to, 0x10000, type(uint160).max)));
        VM.assume(receiver.code.length == 0 && receiver != address(market));
        amount = uint128(_bound(amount, 0, credit));
        uint256 before = receiver.balance;
        _deposit(account, credit);
        VM.prank(account);
        market.withdrawTo(receiver, amount);
        VM.assertEq(receiver.balance, before + amount, "paid");
        VM.assertEq(_credit(account), credit - amount, "credit");
    }

    /// Nobody takes what others have, whatever they name.
    function testFuzz_withdraw_isBoundedByTheAccountsOwnCredit(uint128 credit, uint256 amount, bool to) external {
        amount = _bound(amount, uint256(credit) + 1, type(uint256).max);
        _deposit(account, credit);
        _deposit(address(0x07E4), type(uint120).max);
        VM.expectRevert(abi.encodeWithSelector(IInferenceMarket.BalanceShort.selector, account, amount, credit));
        VM.prank(account);
        if (to) market.withdrawTo(account, amount);
        else market.withdraw(account, amount);
    }

    function testFuzz_withdraw_refusedWeiStayCredit(uint8 how) external {
        Puppet refuser = newPuppet();
        refuser.orderEnding(Puppet.Ending(1 + how % 5), "");
        if (how % 5 == 1) refuser.orderEnding(Puppet.Ending.REVERT, "no");
        _deposit(address(refuser), 5);
        VM.expectRevert(abi.encodeWithSelector(IInferenceMarket.TransferFailed.selector, address(refuser), 3));
        market.withdraw{gas: 1_000_000}(address(refuser), 3);
        VM.assertEq(_credit(address(refuser)), 5, "credit");
        // It has the credit sent to where it is taken.
        refuser.act(address(market), 0, abi.encodeCall(IInferenceMarket.withdrawTo, (address(0xACC1), 5)));
        VM.assertEq(address(0xACC1).balance, 5, "paid");
    }

    /// Attack: forced wei are nobody's, and bring no book out of balance.
    function testFuzz_forcedEther_changesNothing(uint96 forced, uint96 credit) external {
        _deposit(account, credit);
        _force(address(market), forced);
        VM.assertEq(address(market).balance, uint256(credit) + forced, "the wei are there");
        VM.assertEq(_credit(address(this)) + _credit(address(market)), 0, "nobody's");
        VM.prank(account);
        market.withdraw(account, credit);
        VM.assertEq(account.balance, credit, "paid");
        VM.expectRevert(abi.encodeWithSelector(IInferenceMarket.BalanceShort.selector, account, 1, 0));
        VM.prank(account);
        market.withdraw(account, 1);
        _force(address(stakes), forced);
        VM.assertEq(address(stakes).balance, 2 * STAKE + forced, "also in the stake manager");
    }
}
