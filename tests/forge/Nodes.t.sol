// SPDX-License-Identifier: MIT
pragma solidity ^0.8.30;

import {IStakeManager} from "../../contracts/interfaces/IStakeManager.sol";
import {Base} from "./Base.sol";
import {Puppet, newPuppet} from "./Puppet.sol";
import {VM, Vm} from "./Vm.sol";

/// StakeManager: nodes, their keys, stake and markets.
contract NodesTest is Base {
    address private owner = address(0x0E0E);
    uint256 private key = uint256(keccak256("a key"));
    address private node = VM.addr(key);

    function setUp() external {
        _deploy(0);
    }

    /* REGISTER */

    function testFuzz_registerNode_keepsTheStake(uint96 stake, string memory uri, address by) external {
        VM.assume(by != address(stakes) && by.code.length == 0);
        VM.deal(by, stake);
        bytes memory signature = _signRegistration(key, node, by);
        if (stake < STAKE) {
            VM.expectRevert(abi.encodeWithSelector(IStakeManager.StakeTooSmall.selector, stake, STAKE));
        }
        VM.recordLogs();
        VM.prank(by);
        stakes.registerNode{value: stake}(node, uri, signature);
        if (stake < STAKE) return;
        Vm.Log[] memory logs = VM.getRecordedLogs();
        VM.assertEq(logs[0].data, abi.encode(stake, uri), "event's data");
        IStakeManager.Node memory known = stakes.nodeOf(node);
        VM.assertEq(known.owner, by, "owner");
        VM.assertEq(known.key, node, "key");
        VM.assertEq(known.stake, stake, "stake");
        VM.assertEq(known.registeredAt, START, "time");
        VM.assertEq(known.unbonding + known.unbondAt + known.misses + known.faults, 0, "clean");
        VM.assertEq(stakes.canonicalNodeOf(node), node, "its own first key");
        VM.assertTrue(stakes.isActive(node), "active");
        VM.assertEq(address(stakes).balance, 2 * STAKE + stake, "I14");
    }

    /// I15: only on the key's own word, for this owner, on this chain and contract; once for ever.
    function testFuzz_registerNode_needsTheKeysWord(uint8 what, address other) external {
        VM.assume(other != owner && other != address(stakes));
        bytes memory signature = _signRegistration(key, node, owner);
        address by = owner;
        if (what % 5 == 0) signature = _signRegistration(relayerKey, node, owner);
        if (what % 5 == 1) by = other; // lifted from the mempool
        if (what % 5 == 2) signature = _sign(key, address(market), _hashRegisterNode(node, owner));
        if (what % 5 == 3) VM.chainId(1);
        if (what % 5 == 4) signature = "";
        VM.deal(by, STAKE);
        VM.expectRevert(abi.encodeWithSelector(IStakeManager.InvalidKeySignature.selector, node));
        VM.prank(by);
        stakes.registerNode{value: STAKE}(node, "", signature);
    }

    function test_registerNode_refusesTheKeyOfZero() external {
        VM.deal(owner, STAKE);
        VM.expectRevert(abi.encodeWithSelector(IStakeManager.InvalidKeySignature.selector, address(0)));
        VM.prank(owner);
        stakes.registerNode{value: STAKE}(address(0), "", new bytes(65));
    }

    /// I15: a key is never used again, also when its stake is gone or another took over.
    function testFuzz_registerNode_takesAKeyOnce(uint8 fate, bool asNewKey) external {
        _register(key, node, owner);
        if (fate % 3 == 1) _leaveWithAll();
        if (fate % 3 == 2) _rotate(77, new address[](0));
        bytes memory signature = _signRegistration(key, node, owner);
        VM.deal(owner, STAKE);
        if (asNewKey && fate % 3 != 1) {
            _register(88, VM.addr(88), owner);
            VM.expectRevert(abi.encodeWithSelector(IStakeManager.KeyAlreadyUsed.selector, node));
            VM.prank(owner);
            stakes.rotateKey(VM.addr(88), node, signature, new address[](0));
        } else {
            VM.expectRevert(abi.encodeWithSelector(IStakeManager.KeyAlreadyUsed.selector, node));
            VM.prank(owner);
            stakes.registerNode{value: STAKE}(node, "", signature);
        }
    }

    /* ROTATE */

    /// The new key has stake, prices and membership; the old is the node's for ever and is still paid for the delay.
    function testFuzz_rotateKey_handsOverToTheNewKey(uint40 wait, uint40 later) external {
        _register(key, node, owner);
        VM.startPrank(owner);
        stakes.joinMarket(node, address(market));
        stakes.setPayee(node, address(market), address(0xBEEF));
        VM.stopPrank();
        _setPrice(node, 5, 7);
        VM.warp(_now() + wait % 1 days);
        uint256 rotatedAt = _now();
        address newKey = _rotate(77, _markets());

        VM.assertEq(stakes.canonicalNodeOf(newKey), node, "one node");
        VM.assertEq(stakes.nodeOf(newKey).key, newKey, "the new key signs");
        VM.assertEq(stakes.nodeOf(node).key, newKey, "also when asked for the old");
        VM.assertEq(stakes.retiredAt(node), rotatedAt, "retired");
        VM.assertEq(stakes.retiredAt(newKey), 0, "not retired");
        (bool offered, uint80 perKiB, uint80 perThousand) = stakes.priceOf(newKey, MODEL);
        VM.assertTrue(offered && perKiB == 5 && perThousand == 7, "its prices");
        VM.assertTrue(stakes.isActive(newKey), "its stake");
        VM.warp(rotatedAt + later % (2 * UNBOND_DELAY));
        (address payee, uint40 joinedAt) = stakes.membershipOf(newKey, address(market));
        VM.assertEq(payee, address(0xBEEF), "member with the same payee");
        VM.assertEq(joinedAt, START, "for as long");
        (payee,) = stakes.membershipOf(node, address(market));
        VM.assertEq(payee, _now() < rotatedAt + UNBOND_DELAY ? address(0xBEEF) : address(0), "the old for the delay");
        VM.assertEq(stakes.payeeOf(node, address(market)), address(0xBEEF), "who was last paid");
    }

    function testFuzz_rotateKey_isTheOwnersWithTheNewKeysWord(uint8 what, address by) external {
        VM.assume(by != owner);
        _register(key, node, owner);
        bytes memory signature = _signRegistration(77, VM.addr(77), what % 2 == 0 ? owner : by);
        VM.expectRevert(
            what % 2 == 0
                ? abi.encodeWithSelector(IStakeManager.NotOwner.selector, by, owner)
                : abi.encodeWithSelector(IStakeManager.InvalidKeySignature.selector, VM.addr(77))
        );
        VM.prank(what % 2 == 0 ? by : owner);
        stakes.rotateKey(node, VM.addr(77), signature, new address[](0));
    }

    function test_rotateKey_refusesAMarketThatWasNotJoined() external {
        _register(key, node, owner);
        bytes memory signature = _signRegistration(77, VM.addr(77), owner);
        VM.expectRevert(abi.encodeWithSelector(IStakeManager.NotJoined.selector, node, address(market)));
        VM.prank(owner);
        stakes.rotateKey(node, VM.addr(77), signature, _markets());
    }

    /// A market that is named twice would give the new key the old one's end.
    function test_rotateKey_takesAMarketOnce() external {
        _register(key, node, owner);
        address[] memory twice = new address[](2);
        (twice[0], twice[1]) = (address(market), address(market));
        bytes memory signature = _signRegistration(77, VM.addr(77), owner);
        VM.startPrank(owner);
        stakes.joinMarket(node, address(market));
        VM.expectRevert(abi.encodeWithSelector(IStakeManager.AlreadyJoined.selector, VM.addr(77), address(market)));
        stakes.rotateKey(node, VM.addr(77), signature, twice);
        VM.stopPrank();
    }

    /// A membership that is being left is handed over as it is, and no later end than its own.
    function testFuzz_rotateKey_doesNotProlongALeave(uint40 wait) external {
        _register(key, node, owner);
        VM.startPrank(owner);
        stakes.joinMarket(node, address(market));
        stakes.leaveMarket(node, address(market));
        VM.stopPrank();
        VM.warp(START + wait % UNBOND_DELAY);
        address newKey = _rotate(77, _markets());
        VM.warp(START + UNBOND_DELAY - 1);
        (address payee,) = stakes.membershipOf(newKey, address(market));
        VM.assertEq(payee, owner, "until then");
        VM.warp(START + UNBOND_DELAY);
        (payee,) = stakes.membershipOf(newKey, address(market));
        VM.assertEq(payee, address(0), "the new key left");
        (payee,) = stakes.membershipOf(node, address(market));
        VM.assertEq(payee, address(0), "the old key left");
    }

    function test_rotateKey_canBeRepeatedAndOldKeysJoinNothing() external {
        _register(key, node, owner);
        address second = _rotate(77, new address[](0));
        bytes memory signature = _signRegistration(78, VM.addr(78), owner);
        VM.prank(owner);
        stakes.rotateKey(second, VM.addr(78), signature, new address[](0));
        VM.assertEq(stakes.canonicalNodeOf(VM.addr(78)), node, "one node");
        VM.assertEq(stakes.retiredAt(second), START, "the second is retired");
        for (uint256 i = 0; i < 2; ++i) {
            address old = i == 0 ? node : second;
            VM.expectRevert(abi.encodeWithSelector(IStakeManager.KeyRetired.selector, old));
            VM.prank(owner);
            stakes.joinMarket(old, address(market));
        }
        VM.prank(owner);
        stakes.joinMarket(VM.addr(78), address(market));
    }

    /* STAKE */

    function testFuzz_addStake_addsForAnybody(address by, uint96 amount) external {
        VM.assume(by != address(stakes));
        _register(key, node, owner);
        VM.deal(by, amount);
        if (amount == 0) VM.expectRevert(abi.encodeWithSelector(IStakeManager.NothingSent.selector));
        VM.recordLogs();
        VM.prank(by);
        stakes.addStake{value: amount}(node);
        VM.assertEq(stakes.nodeOf(node).stake, STAKE + amount, "stake");
        if (amount == 0) return;
        VM.assertEq(VM.getRecordedLogs()[0].data, abi.encode(amount, STAKE + amount), "event's data");
        VM.expectRevert(abi.encodeWithSelector(IStakeManager.UnknownNode.selector, by));
        stakes.addStake{value: 1}(by);
    }

    /// I16: what is called back no longer stands behind the node, and leaves after the delay.
    function testFuzz_unbonding_takesItsTime(uint96 extra, uint128 amount, uint40 wait) external {
        _register(key, node, owner);
        uint256 stake = STAKE + extra;
        if (extra != 0) {
            VM.deal(address(this), extra);
            stakes.addStake{value: extra}(node);
        }
        amount = uint128(_bound(amount, 0, stake + 1));
        if (amount == 0) VM.expectRevert(abi.encodeWithSelector(IStakeManager.NothingUnbonding.selector, node));
        if (amount > stake) {
            VM.expectRevert(abi.encodeWithSelector(IStakeManager.UnbondTooLarge.selector, amount, stake));
        }
        VM.prank(owner);
        stakes.beginUnbond(node, amount);
        if (amount == 0 || amount > stake) return;
        VM.assertTrue(stakes.isActive(node) == (stake - amount >= STAKE), "active while enough is left");
        VM.warp(START + _bound(wait, UNBOND_DELAY - 2, UNBOND_DELAY + 2));
        bool isEarly = _now() < START + UNBOND_DELAY;
        if (isEarly) {
            VM.expectRevert(abi.encodeWithSelector(IStakeManager.StillUnbonding.selector, START + UNBOND_DELAY, _now()));
        }
        VM.prank(owner);
        stakes.withdrawStake(node);
        VM.assertEq(owner.balance, isEarly ? 0 : amount, "paid to the owner");
        VM.assertEq(stakes.nodeOf(node).stake, isEarly ? stake : stake - amount, "stake");
        VM.assertEq(address(stakes).balance, 2 * STAKE + stakes.nodeOf(node).stake, "I14");
        if (isEarly) return;
        VM.expectRevert(abi.encodeWithSelector(IStakeManager.NothingUnbonding.selector, node));
        VM.prank(owner);
        stakes.withdrawStake(node);
    }

    /// A second call starts the delay anew, for all of it.
    function testFuzz_unbonding_addsUpAndStartsAnew(uint64 first, uint64 second, uint40 between) external {
        _register(key, node, owner);
        (first, second) = (uint64(_bound(first, 1, STAKE / 2)), uint64(_bound(second, 1, STAKE / 2)));
        VM.prank(owner);
        stakes.beginUnbond(node, first);
        VM.warp(START + between % UNBOND_DELAY);
        uint256 again = _now();
        VM.prank(owner);
        stakes.beginUnbond(node, second);
        VM.expectRevert(
            abi.encodeWithSelector(IStakeManager.UnbondTooLarge.selector, STAKE, STAKE - uint256(first) - second)
        );
        VM.prank(owner);
        stakes.beginUnbond(node, STAKE);
        VM.warp(again + UNBOND_DELAY - 1);
        VM.expectRevert(abi.encodeWithSelector(IStakeManager.StillUnbonding.selector, again + UNBOND_DELAY, _now()));
        VM.prank(owner);
        stakes.withdrawStake(node);
        VM.warp(again + UNBOND_DELAY);
        VM.prank(owner);
        stakes.withdrawStake(node);
        VM.assertEq(owner.balance, uint256(first) + second, "all of it");
    }

    function testFuzz_ownersFunctions_areTheOwnersOnly(address by, uint8 what, bool known) external {
        VM.assume(by != owner);
        if (known) _register(key, node, owner);
        VM.expectRevert(
            known
                ? abi.encodeWithSelector(IStakeManager.NotOwner.selector, by, owner)
                : abi.encodeWithSelector(IStakeManager.UnknownNode.selector, node)
        );
        VM.prank(by);
        if (what % 8 == 0) stakes.beginUnbond(node, 1);
        if (what % 8 == 1) stakes.withdrawStake(node);
        if (what % 8 == 2) stakes.joinMarket(node, address(market));
        if (what % 8 == 3) stakes.leaveMarket(node, address(market));
        if (what % 8 == 4) stakes.setPayee(node, address(market), by);
        if (what % 8 == 5) stakes.setPrices(node, new bytes32[](0), new uint80[](0), new uint80[](0));
        if (what % 8 == 6) stakes.withdrawModels(node, new bytes32[](0));
        if (what % 8 == 7) stakes.rotateKey(node, by, "", new address[](0));
    }

    /// Attack: an owner that comes back while it is paid finds its stake gone; one that refuses loses nothing.
    function testFuzz_withdrawStake_isSafeFromItsReceiver(bool refuses) external {
        Puppet puppet = newPuppet();
        VM.deal(address(puppet), STAKE);
        bytes memory signature = _signRegistration(key, node, address(puppet));
        puppet.act(address(stakes), STAKE, abi.encodeCall(IStakeManager.registerNode, (node, "", signature)));
        puppet.act(address(stakes), 0, abi.encodeCall(IStakeManager.beginUnbond, (node, STAKE)));
        VM.warp(START + UNBOND_DELAY);
        if (refuses) puppet.orderEnding(Puppet.Ending.REVERT, "");
        else puppet.orderStep(address(stakes), 0, abi.encodeCall(IStakeManager.withdrawStake, (node)));
        if (refuses) {
            VM.expectRevert(abi.encodeWithSelector(IStakeManager.TransferFailed.selector, address(puppet), STAKE));
        }
        puppet.act(address(stakes), 0, abi.encodeCall(IStakeManager.withdrawStake, (node)));
        VM.assertEq(address(puppet).balance, refuses ? 0 : STAKE, "paid once");
        VM.assertEq(stakes.nodeOf(node).stake, refuses ? STAKE : 0, "stake");
        if (refuses) return;
        (bool worked, bytes memory why) = puppet.stepAt(0);
        VM.assertTrue(!worked, "the second time is refused");
        VM.assertEq(why, abi.encodeWithSelector(IStakeManager.NothingUnbonding.selector, node), "why");
    }

    /* MARKETS */

    function testFuzz_joinMarket_isForOnce(address other, uint40 wait) external {
        VM.assume(other != address(0));
        _register(key, node, owner);
        VM.warp(START + wait % 30 days);
        VM.startPrank(owner);
        VM.expectRevert(abi.encodeWithSelector(IStakeManager.ZeroAddress.selector));
        stakes.joinMarket(node, address(0));
        stakes.joinMarket(node, other);
        (address payee, uint40 joinedAt) = stakes.membershipOf(node, other);
        VM.assertEq(payee, owner, "the owner is paid");
        VM.assertEq(joinedAt, _now(), "since now");
        VM.assertEq(stakes.payeeOf(node, other), owner, "last paid");
        VM.expectRevert(abi.encodeWithSelector(IStakeManager.AlreadyJoined.selector, node, other));
        stakes.joinMarket(node, other);
        VM.stopPrank();
    }

    /// I16: a node that leaves is a member for the delay, and can come back after it.
    function testFuzz_leaveMarket_takesItsTime(uint40 wait) external {
        _register(key, node, owner);
        VM.startPrank(owner);
        VM.expectRevert(abi.encodeWithSelector(IStakeManager.NotJoined.selector, node, address(market)));
        stakes.leaveMarket(node, address(market));
        stakes.joinMarket(node, address(market));
        stakes.leaveMarket(node, address(market));
        VM.warp(START + _bound(wait, UNBOND_DELAY - 2, UNBOND_DELAY + 2));
        bool isOut = _now() >= START + UNBOND_DELAY;
        (address payee, uint40 joinedAt) = stakes.membershipOf(node, address(market));
        VM.assertEq(payee, isOut ? address(0) : owner, "payee");
        VM.assertEq(joinedAt, isOut ? 0 : START, "since");
        VM.assertEq(stakes.payeeOf(node, address(market)), owner, "last paid");
        if (!isOut) VM.expectRevert(abi.encodeWithSelector(IStakeManager.AlreadyJoined.selector, node, market));
        stakes.joinMarket(node, address(market));
        (, joinedAt) = stakes.membershipOf(node, address(market));
        VM.assertEq(joinedAt, isOut ? _now() : START, "anew");
        VM.stopPrank();
    }

    function testFuzz_setPayee_isForMembers(address payee, bool joined) external {
        _register(key, node, owner);
        VM.startPrank(owner);
        if (joined) stakes.joinMarket(node, address(market));
        if (payee == address(0)) {
            VM.expectRevert(abi.encodeWithSelector(IStakeManager.ZeroAddress.selector));
        } else if (!joined) {
            VM.expectRevert(abi.encodeWithSelector(IStakeManager.NotJoined.selector, node, address(market)));
        }
        stakes.setPayee(node, address(market), payee);
        VM.stopPrank();
        (address got,) = stakes.membershipOf(node, address(market));
        VM.assertEq(got, !joined ? address(0) : payee == address(0) ? owner : payee, "payee");
    }

    function test_setPayee_refusesTheAddressOfZero() external {
        _register(key, node, owner);
        VM.startPrank(owner);
        stakes.joinMarket(node, address(market));
        VM.expectRevert(abi.encodeWithSelector(IStakeManager.ZeroAddress.selector));
        stakes.setPayee(node, address(market), address(0));
        VM.stopPrank();
    }

    /* PRICES */

    /// What falls or is new holds at once; what rises, in either part, after the notice.
    function testFuzz_setPrices_givesNoticeOfARaise(uint80[2] memory old, uint80[2] memory new_, uint40 wait) external {
        _register(key, node, owner);
        _setPrice(node, old[0], old[1]);
        _assertPrice(true, old[0], old[1]);
        bool isRaise = new_[0] > old[0] || new_[1] > old[1];
        VM.recordLogs();
        _setPrice(node, new_[0], new_[1]);
        uint256 effectiveAt = START + (isRaise ? PRICE_NOTICE : 0);
        VM.assertEq(VM.getRecordedLogs()[0].data, abi.encode(new_[0], new_[1], effectiveAt), "event's data");
        VM.warp(START + _bound(wait, 0, 2 * PRICE_NOTICE));
        bool holds = _now() >= effectiveAt;
        _assertPrice(true, holds ? new_[0] : old[0], holds ? new_[1] : old[1]);
    }

    /// An announcement is replaced by the next one; a cut while a raise is pending cuts at once and ends it.
    function testFuzz_setPrices_theLastAnnouncementCounts(uint40 between, uint40 wait) external {
        _register(key, node, owner);
        _setPrice(node, 100, 100);
        _setPrice(node, 200, 200);
        VM.warp(START + between % PRICE_NOTICE);
        uint256 again = _now();
        _setPrice(node, 300, 50);
        VM.warp(again + _bound(wait, 0, 2 * PRICE_NOTICE));
        bool holds = _now() >= again + PRICE_NOTICE;
        _assertPrice(true, holds ? 300 : 100, holds ? 50 : 100);
        _setPrice(node, 10, 10);
        _assertPrice(true, 10, 10);
        VM.warp(_now() + 2 * PRICE_NOTICE);
        _assertPrice(true, 10, 10);
    }

    /// Withdrawing a model and offering it anew is no way around the notice.
    function testFuzz_withdrawModels_isNoWayAroundTheNotice(uint40 wait, uint40 later) external {
        _register(key, node, owner);
        _setPrice(node, 100, 100);
        bytes32[] memory models = new bytes32[](1);
        models[0] = MODEL;
        VM.prank(owner);
        stakes.withdrawModels(node, models);
        _assertPrice(false, 0, 0);
        VM.warp(START + wait % (2 * PRICE_NOTICE));
        VM.prank(owner);
        stakes.withdrawModels(node, models); // again: the notice still runs from the first time
        bool isBound = _now() < START + PRICE_NOTICE;
        uint256 again = _now();
        _setPrice(node, 200, 100);
        VM.warp(again + later % (2 * PRICE_NOTICE));
        bool holds = !isBound || _now() >= again + PRICE_NOTICE;
        _assertPrice(true, holds ? 200 : 100, 100);
    }

    function testFuzz_setPrices_needsAPriceForEachModel(uint8 models, uint8 perKiB, uint8 perThousand) external {
        (models, perKiB, perThousand) = (models % 4, perKiB % 4, perThousand % 4);
        _register(key, node, owner);
        if (perKiB != models) {
            VM.expectRevert(abi.encodeWithSelector(IStakeManager.LengthMismatch.selector, models, perKiB));
        } else if (perThousand != models) {
            VM.expectRevert(abi.encodeWithSelector(IStakeManager.LengthMismatch.selector, models, perThousand));
        }
        VM.prank(owner);
        stakes.setPrices(node, new bytes32[](models), new uint80[](perKiB), new uint80[](perThousand));
    }

    /* HELPERS */

    function _setPrice(address of_, uint80 perKiB, uint80 perThousand) private {
        bytes32[] memory models = new bytes32[](1);
        models[0] = MODEL;
        uint80[] memory first = new uint80[](1);
        uint80[] memory second = new uint80[](1);
        (first[0], second[0]) = (perKiB, perThousand);
        VM.prank(owner);
        stakes.setPrices(of_, models, first, second);
    }

    function _assertPrice(bool offered, uint80 perKiB, uint80 perThousand) private view {
        (bool gotOffered, uint80 gotKiB, uint80 gotThousand) = stakes.priceOf(node, MODEL);
        VM.assertTrue(gotOffered == offered, "offered");
        VM.assertEq(gotKiB, perKiB, "per KiB");
        VM.assertEq(gotThousand, perThousand, "per thousand tokens");
    }

    function _rotate(uint256 newKey, address[] memory markets) private returns (address newNode) {
        newNode = VM.addr(newKey);
        bytes memory signature = _signRegistration(newKey, newNode, owner);
        VM.prank(owner);
        stakes.rotateKey(node, newNode, signature, markets);
    }

    function _markets() private view returns (address[] memory markets) {
        markets = new address[](1);
        markets[0] = address(market);
    }

    function _leaveWithAll() private {
        VM.prank(owner);
        stakes.beginUnbond(node, STAKE);
        VM.warp(_now() + UNBOND_DELAY);
        VM.prank(owner);
        stakes.withdrawStake(node);
    }
}
