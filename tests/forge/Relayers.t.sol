// SPDX-License-Identifier: MIT
pragma solidity ^0.8.30;

import {IStakeManager} from "../../contracts/interfaces/IStakeManager.sol";
import {Base} from "./Base.sol";
import {Puppet, newPuppet} from "./Puppet.sol";
import {VM, Vm} from "./Vm.sol";

/// StakeManager: relayers and their bonds; and who may slash.
contract RelayersTest is Base {
    address private account = address(0x4E1A);

    function setUp() external {
        _deploy(1);
    }

    function testFuzz_registerRelayer_keepsTheBond(uint96 bond, string memory endpoint) external {
        VM.deal(account, bond);
        if (bond < STAKE) {
            VM.expectRevert(abi.encodeWithSelector(IStakeManager.BondTooSmall.selector, bond, STAKE));
        }
        VM.recordLogs();
        VM.prank(account);
        stakes.registerRelayer{value: bond}(endpoint);
        VM.assertTrue(stakes.isBonded(account) == (bond >= STAKE), "bonded");
        if (bond < STAKE) return;
        VM.assertEq(VM.getRecordedLogs()[0].data, abi.encode(bond, endpoint), "event's data");
        IStakeManager.Relayer memory known = stakes.relayerOf(account);
        VM.assertEq(known.bond, bond, "bond");
        VM.assertEq(known.registeredAt, START, "time");
        VM.deal(account, STAKE);
        VM.expectRevert(abi.encodeWithSelector(IStakeManager.AlreadyRegistered.selector, account));
        VM.prank(account);
        stakes.registerRelayer{value: STAKE}("");
    }

    function testFuzz_addBond_adds(uint96 amount) external {
        VM.deal(relayer, amount);
        if (amount == 0) VM.expectRevert(abi.encodeWithSelector(IStakeManager.NothingSent.selector));
        VM.prank(relayer);
        stakes.addBond{value: amount}();
        VM.assertEq(stakes.relayerOf(relayer).bond, STAKE + amount, "bond");
        VM.assertEq(address(stakes).balance, 3 * STAKE + amount, "I14");
    }

    function testFuzz_relayersFunctions_areForRelayers(uint8 what) external {
        VM.deal(account, 1);
        VM.expectRevert(abi.encodeWithSelector(IStakeManager.NotARelayer.selector, account));
        VM.prank(account);
        if (what % 3 == 0) stakes.addBond{value: 1}();
        if (what % 3 == 1) stakes.beginUnbondRelayer();
        if (what % 3 == 2) stakes.withdrawBond();
    }

    /// I16: from the beginning it serves no more, the bond leaves after the delay, and its faults stay.
    function testFuzz_unbonding_takesItsTime(uint96 extra, uint40 wait) external {
        if (extra != 0) {
            VM.deal(relayer, extra);
            VM.prank(relayer);
            stakes.addBond{value: extra}();
        }
        VM.prank(address(faults));
        stakes.slashRelayer(relayer, 1);
        VM.expectRevert(abi.encodeWithSelector(IStakeManager.NothingUnbonding.selector, relayer));
        VM.prank(relayer);
        stakes.withdrawBond();
        VM.prank(relayer);
        stakes.beginUnbondRelayer();
        VM.assertTrue(!stakes.isBonded(relayer), "serves no more");
        VM.warp(START + _bound(wait, UNBOND_DELAY - 2, UNBOND_DELAY + 2));
        bool isEarly = _now() < START + UNBOND_DELAY;
        if (isEarly) {
            VM.expectRevert(abi.encodeWithSelector(IStakeManager.StillUnbonding.selector, START + UNBOND_DELAY, _now()));
        }
        uint256 before = relayer.balance;
        VM.prank(relayer);
        stakes.withdrawBond();
        VM.assertEq(relayer.balance - before, isEarly ? 0 : STAKE + extra - 1, "paid");
        if (isEarly) return;
        IStakeManager.Relayer memory known = stakes.relayerOf(relayer);
        VM.assertEq(known.bond + known.registeredAt + known.unbondAt, 0, "gone");
        VM.assertEq(known.faults, 1, "not forgotten");
        _bond(relayer);
        VM.assertTrue(stakes.isBonded(relayer), "back");
        VM.assertEq(stakes.relayerOf(relayer).faults, 1, "with its faults");
    }

    /// A second call starts the delay anew.
    function testFuzz_unbonding_startsAnew(uint40 between) external {
        VM.prank(relayer);
        stakes.beginUnbondRelayer();
        VM.warp(START + _bound(between, 1, UNBOND_DELAY - 1));
        VM.prank(relayer);
        stakes.beginUnbondRelayer();
        uint256 until = _now() + UNBOND_DELAY;
        VM.warp(START + UNBOND_DELAY);
        VM.expectRevert(abi.encodeWithSelector(IStakeManager.StillUnbonding.selector, until, _now()));
        VM.prank(relayer);
        stakes.withdrawBond();
    }

    /// Attack: a relayer that comes back while it is paid finds its bond gone; one that refuses loses nothing.
    function testFuzz_withdrawBond_isSafeFromItsReceiver(bool refuses) external {
        Puppet puppet = newPuppet();
        VM.deal(address(puppet), STAKE);
        puppet.act(address(stakes), STAKE, abi.encodeCall(IStakeManager.registerRelayer, ("")));
        puppet.act(address(stakes), 0, abi.encodeCall(IStakeManager.beginUnbondRelayer, ()));
        VM.warp(START + UNBOND_DELAY);
        if (refuses) puppet.orderEnding(Puppet.Ending.REVERT, "");
        else puppet.orderStep(address(stakes), 0, abi.encodeCall(IStakeManager.withdrawBond, ()));
        if (refuses) {
            VM.expectRevert(abi.encodeWithSelector(IStakeManager.TransferFailed.selector, address(puppet), STAKE));
        }
        puppet.act(address(stakes), 0, abi.encodeCall(IStakeManager.withdrawBond, ()));
        VM.assertEq(address(puppet).balance, refuses ? 0 : STAKE, "paid once");
        if (refuses) return;
        (bool worked, bytes memory why) = puppet.stepAt(0);
        VM.assertTrue(!worked, "the second time is refused");
        VM.assertEq(why, abi.encodeWithSelector(IStakeManager.NotARelayer.selector, address(puppet)), "why");
    }

    /* SLASHING */

    function testFuzz_slash_isFaultsOnly(address by, bool node) external {
        VM.assume(by != address(faults));
        VM.expectRevert(abi.encodeWithSelector(IStakeManager.NotFaults.selector, by));
        VM.prank(by);
        if (node) stakes.slashNode(operators[0].node, address(market), 1, true);
        else stakes.slashRelayer(relayer, 1);
    }

    /// Never more than there is, whatever is asked for; what is being taken out is not safe from it.
    function testFuzz_slashNode_takesAtMostTheStake(uint128 amount, uint64 unbonding, bool isMiss) external {
        address node = operators[0].node;
        unbonding = uint64(_bound(unbonding, 0, STAKE));
        if (unbonding != 0) {
            VM.prank(operators[0].owner);
            stakes.beginUnbond(node, unbonding);
        }
        uint256 taken = amount < STAKE ? amount : STAKE;
        VM.prank(address(faults));
        VM.assertEq(stakes.slashNode(node, address(market), amount, isMiss), taken, "taken");
        IStakeManager.Node memory known = stakes.nodeOf(node);
        VM.assertEq(known.stake, STAKE - taken, "stake");
        VM.assertEq(known.unbonding, unbonding < STAKE - taken ? unbonding : STAKE - taken, "unbonding");
        VM.assertEq(known.misses, isMiss ? 1 : 0, "misses");
        VM.assertEq(known.faults, isMiss ? 0 : 1, "faults");
        VM.assertEq(address(faults).balance, taken, "sent to Faults");
        VM.assertEq(address(stakes).balance, 3 * STAKE - taken, "I14");
        VM.assertTrue(stakes.isActive(node) == (taken == 0 && unbonding == 0), "active");
    }

    /// A market costs a node only what the node has joined it with.
    function testFuzz_slashNode_isForMarketsThatWereJoined(address other, bool left) external {
        VM.assume(other != address(market));
        address node = operators[0].node;
        VM.expectRevert(abi.encodeWithSelector(IStakeManager.NotJoined.selector, node, other));
        VM.prank(address(faults));
        stakes.slashNode(node, other, 1, true);
        if (!left) return;
        VM.prank(operators[0].owner);
        stakes.leaveMarket(node, address(market));
        VM.warp(_now() + 2 * UNBOND_DELAY);
        VM.prank(address(faults));
        VM.assertEq(stakes.slashNode(node, address(market), 1, true), 1, "also after it left");
    }

    function testFuzz_slashRelayer_takesAtMostTheBond(uint128 amount) external {
        uint256 taken = amount < STAKE ? amount : STAKE;
        VM.prank(address(faults));
        VM.assertEq(stakes.slashRelayer(relayer, amount), taken, "taken");
        VM.assertEq(stakes.relayerOf(relayer).bond, STAKE - taken, "bond");
        VM.assertEq(stakes.relayerOf(relayer).faults, 1, "faults");
        VM.assertTrue(stakes.isBonded(relayer) == (taken == 0), "below the least it serves no more");
        VM.assertEq(address(faults).balance, taken, "sent to Faults");
    }

    /// The rotated key's node is slashed by any of its keys.
    function test_slashNode_byAnyKeyTakesTheSameStake() external {
        address node = operators[0].node;
        address owner = operators[0].owner;
        address[] memory markets = new address[](1);
        markets[0] = address(market);
        bytes memory signature = _signRegistration(77, VM.addr(77), owner);
        VM.prank(owner);
        stakes.rotateKey(node, VM.addr(77), signature, markets);
        VM.startPrank(address(faults));
        stakes.slashNode(node, address(market), 10, false);
        stakes.slashNode(VM.addr(77), address(market), 10, false);
        VM.stopPrank();
        VM.assertEq(stakes.nodeOf(node).stake, STAKE - 20, "one stake");
        VM.assertEq(stakes.nodeOf(VM.addr(77)).faults, 2, "one record");
    }
}
