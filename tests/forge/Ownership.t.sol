// SPDX-License-Identifier: MIT
pragma solidity ^0.8.30;

import {InferenceMarket} from "../../contracts/InferenceMarket.sol";
import {ModelRegistry} from "../../contracts/ModelRegistry.sol";
import {Request, Status} from "../../contracts/Types.sol";
import {IInferenceMarket} from "../../contracts/interfaces/IInferenceMarket.sol";
import {IModelRegistry} from "../../contracts/interfaces/IModelRegistry.sol";
import {IScheduleLog} from "../../contracts/interfaces/IScheduleLog.sol";
import {IStakeManager} from "../../contracts/interfaces/IStakeManager.sol";
import {MarketBase} from "../../contracts/market/MarketBase.sol";
import {TimelockedOwnable} from "../../contracts/market/TimelockedOwnable.sol";
import {Base} from "./Base.sol";
import {VM, Vm} from "./Vm.sol";

/// Who owns what, how it changes hands, what an owner can do and what not; and the registry of models, which is the owner's.
contract OwnershipTest is Base {
    ModelRegistry private registry;
    address private requester = address(0x4E9);

    function setUp() external {
        _deploy(1);
        registry = new ModelRegistry(marketOwner);
    }

    /* PAUSE */

    function testFuzz_setRequestsPaused_isTheOwnersAndEndsByItself(address by, bool paused, uint40 wait) external {
        if (by != marketOwner) {
            VM.expectRevert(abi.encodeWithSignature("OwnableUnauthorizedAccount(address)", by));
        }
        VM.recordLogs();
        VM.prank(by);
        market.setRequestsPaused(paused);
        bool isPaused = paused && by == marketOwner;
        VM.assertTrue(market.requestsPaused() == isPaused, "paused");
        if (by == marketOwner) {
            uint256 until = paused ? START + 7 days : 0;
            VM.assertEq(VM.getRecordedLogs()[0].data, abi.encode(paused, until), "event's data");
        }
        VM.warp(START + _bound(wait, 7 days - 2, 7 days + 2));
        VM.assertTrue(market.requestsPaused() == (isPaused && _now() < START + 7 days), "ends by itself");
        VM.prank(marketOwner);
        market.setRequestsPaused(false);
        VM.assertTrue(!market.requestsPaused(), "resumed");
    }

    /// I10: while requests are paused, all that is under way goes on: raise, settle, cancel, expire, withdraw.
    function test_setRequestsPaused_stopsNothingElse() external {
        Request[4] memory requests;
        for (uint64 i = 0; i < 4; ++i) {
            requests[i] = _post(_params(i), requester);
        }
        VM.prank(marketOwner);
        market.setRequestsPaused(true);
        VM.deal(address(this), 2);
        market.raisePriorityFee{value: 1}(_idOf(requests[0]));
        _settle(requests[0], 1);
        VM.prank(requester);
        market.cancel(requests[1]);
        bytes memory release = _sign(relayerKey, address(market), _hashRelease(_idOf(requests[2]), type(uint40).max));
        VM.prank(requester);
        market.cancelWithRelease(requests[2], type(uint40).max, release);
        VM.warp(START + 600 + GRACE + 1);
        for (uint256 i = 1; i < 4; i += 2) {
            market.expire(_list(requests[i]));
            _assertStatus(requests[i], Status.EXPIRED);
        }
        market.deposit{value: 1}(requester);
        _withdrawAll(requester);
        _withdrawAll(relayer);
        _withdrawAll(operators[0].payee);
        VM.assertEq(address(market).balance, 0, "all is paid out");
    }

    /* I10: THE EVIL OWNER */

    /// The owner calls every function that there is, with words of its own choice: it gains no wei, and takes none.
    function testFuzz_owner_movesNoWei(bytes4 selector, bytes32[6] memory words, uint8 which, bool known) external {
        Request memory request = _post(_params(1), requester);
        _settle(_post(_params(2), requester), 1e15);
        bytes4[] memory selectors = _selectors();
        if (known) selector = selectors[uint32(selector) % selectors.length];
        address[4] memory targets = [address(market), address(stakes), address(log), address(faults)];
        uint256[5] memory before = _wealth();
        VM.deal(marketOwner, 0);
        VM.prank(marketOwner);
        (bool ok,) = targets[which % 4].call(abi.encodePacked(selector, words));
        ok;
        uint256[5] memory after_ = _wealth();
        VM.assertEq(marketOwner.balance + _credit(marketOwner), 0, "the owner has nothing");
        for (uint256 i = 0; i < 5; ++i) {
            VM.assertEq(before[i], after_[i], "nobody else has more or less");
        }
        _assertStatus(request, Status.PENDING);
    }

    /// Whatever the owner does with pause and ownership, everybody gets everything out.
    function testFuzz_owner_freezesNothing(uint8[6] memory moves) external {
        Request memory settled = _post(_params(1), requester);
        Request memory expired = _post(_params(2), requester);
        for (uint256 i = 0; i < 6; ++i) {
            VM.prank(market.owner());
            if (moves[i] % 4 == 0) market.setRequestsPaused(true);
            if (moves[i] % 4 == 1) market.transferOwnership(address(uint160(moves[i])));
            if (moves[i] % 4 == 2) market.setRequestsPaused(false);
            if (moves[i] % 4 == 3) market.renounceOwnership();
            if (market.owner() == address(0)) break;
        }
        _settle(settled, 1e15);
        VM.warp(START + 600 + GRACE + 1);
        market.expire(_list(expired));
        VM.prank(operators[0].owner);
        stakes.beginUnbond(operators[0].node, STAKE);
        VM.prank(relayer);
        stakes.beginUnbondRelayer();
        VM.warp(_now() + UNBOND_DELAY);
        VM.prank(operators[0].owner);
        stakes.withdrawStake(operators[0].node);
        VM.prank(relayer);
        stakes.withdrawBond();
        _withdrawAll(requester);
        _withdrawAll(relayer);
        _withdrawAll(operators[0].payee);
        VM.assertEq(address(market).balance, 0, "market");
        VM.assertEq(address(stakes).balance, STAKE, "stakes: the rival's");
        VM.assertEq(requester.balance + relayer.balance + operators[0].payee.balance, 2 * 21e14 + STAKE, "paid");
    }

    /* HANDS */

    /// In two steps, three days apart.
    function testFuzz_transferOwnership_takesThreeDays(uint8 which, address next, uint40 wait, address by) external {
        TimelockedOwnable owned = _owned(which);
        VM.assume(next != address(0) && next != marketOwner && by != next);
        VM.expectRevert(abi.encodeWithSignature("OwnableUnauthorizedAccount(address)", next));
        VM.prank(next);
        owned.transferOwnership(next);
        VM.recordLogs();
        VM.prank(marketOwner);
        owned.transferOwnership(next);
        Vm.Log[] memory logs = VM.getRecordedLogs();
        VM.assertEq(logs[1].topics[0], TimelockedOwnable.OwnershipTransferTimed.selector, "event");
        VM.assertEq(logs[1].data, abi.encode(START + 3 days), "event's data");
        VM.warp(START + _bound(wait, 3 days - 2, 3 days + 2));
        bool isEarly = _now() < START + 3 days;
        bytes memory early =
            abi.encodeWithSelector(TimelockedOwnable.OwnershipTimelocked.selector, START + 3 days, _now());
        VM.expectRevert(isEarly ? early : abi.encodeWithSignature("OwnableUnauthorizedAccount(address)", by));
        VM.prank(by);
        owned.acceptOwnership();
        if (isEarly) VM.expectRevert(early);
        VM.prank(next);
        owned.acceptOwnership();
        VM.assertEq(owned.owner(), isEarly ? marketOwner : next, "owner");
    }

    /// A later choice takes its own three days.
    function testFuzz_transferOwnership_startsAnew(uint8 which, uint40 between) external {
        TimelockedOwnable owned = _owned(which);
        VM.prank(marketOwner);
        owned.transferOwnership(address(0x111));
        VM.warp(START + 1 + between % 3 days);
        uint256 again = _now();
        VM.prank(marketOwner);
        owned.transferOwnership(address(0x222));
        VM.warp(again + 3 days - 1);
        VM.expectRevert(abi.encodeWithSelector(TimelockedOwnable.OwnershipTimelocked.selector, again + 3 days, _now()));
        VM.prank(address(0x222));
        owned.acceptOwnership();
        VM.warp(again + 3 days);
        VM.prank(address(0x222));
        owned.acceptOwnership();
        VM.assertEq(owned.owner(), address(0x222), "owner");
    }

    /* DEPLOYMENT */

    /// I16: a market takes no stake manager whose stake could leave before its requests end.
    function testFuzz_constructor_needsALongUnbondDelay(uint40 delay) external {
        delay = uint40(_bound(delay, 1 days + GRACE - 3, 1 days + GRACE + 3));
        address brief = address(new StakesWith(delay));
        MarketBase.GasTerms memory gasTerms = MarketBase.GasTerms(1, 2, 3, 4, 5);
        MarketBase.ProbationTerms memory probation = MarketBase.ProbationTerms(6, 7, 8);
        if (delay <= 1 days + GRACE) {
            VM.expectRevert(
                abi.encodeWithSelector(IInferenceMarket.UnbondDelayTooShort.selector, delay, 1 days + GRACE + 1)
            );
        }
        InferenceMarket made =
            new InferenceMarket(marketOwner, IStakeManager(brief), IScheduleLog(address(log)), gasTerms, probation);
        if (delay <= 1 days + GRACE) return;
        VM.assertEq(made.TIP_CAP() * 10_000 + made.FIXED_GAS() * 1000 + made.ITEM_GAS() * 100, 12_300, "gas terms");
        VM.assertEq(made.NODE_GAS() * 10 + made.ASSIGNED_GAS(), 45, "gas terms");
        VM.assertEq(made.PROBATION_MAX_REWARD() * 100 + made.PROBATION_SETTLED_COUNT() * 10, 670, "probation");
        VM.assertEq(made.PROBATION_DURATION(), 8, "probation");
        VM.assertEq(made.owner(), marketOwner, "owner");
    }

    /* MODELS */

    function testFuzz_register_keepsAModelForEver(IModelRegistry.Model memory model, address by) external {
        VM.assume(by != marketOwner);
        VM.expectRevert(abi.encodeWithSignature("OwnableUnauthorizedAccount(address)", by));
        VM.prank(by);
        registry.register(model);
        bytes32 id = keccak256(abi.encode(model.name, model.revision, model.weightsHash, model.quantisation));
        VM.assertEq(registry.idOf(model), id, "id");
        VM.expectRevert(abi.encodeWithSelector(IModelRegistry.UnknownModel.selector, id));
        registry.modelOf(id);
        bool isNamed = bytes(model.name).length != 0;
        if (!isNamed) VM.expectRevert(abi.encodeWithSelector(IModelRegistry.NameMissing.selector));
        VM.recordLogs();
        VM.prank(marketOwner);
        bytes32 got = registry.register(model);
        if (!isNamed) return VM.assertEq(registry.count(), 0, "none");
        Vm.Log[] memory logs = VM.getRecordedLogs();
        VM.assertEq(logs[0].topics[1], id, "event's id");
        VM.assertEq(logs[0].data, abi.encode(model), "event's data");
        VM.assertEq(got, id, "returned");
        VM.assertEq(abi.encode(registry.modelOf(id)), abi.encode(model), "kept");
        VM.assertEq(registry.modelIdAt(0), id, "listed");
        VM.assertEq(registry.count(), 1, "counted");
        model.memoryMb ^= 1;
        model.unit = "another";
        VM.expectRevert(abi.encodeWithSelector(IModelRegistry.ModelExists.selector, id));
        VM.prank(marketOwner);
        registry.register(model);
        model.revision = string.concat(model.revision, "2");
        VM.prank(marketOwner);
        registry.register(model);
        VM.assertEq(registry.count(), 2, "another revision is another model");
    }

    /* HELPERS */

    function _owned(uint8 which) private view returns (TimelockedOwnable) {
        address[3] memory owned = [address(market), address(verifier), address(registry)];
        return TimelockedOwnable(owned[which % 3]);
    }

    function _wealth() private view returns (uint256[5] memory) {
        return [
            address(market).balance,
            address(stakes).balance,
            _credit(requester) + requester.balance,
            _credit(relayer) + relayer.balance,
            _credit(operators[0].payee) + operators[0].payee.balance
        ];
    }

    /// Every function that can change something and that the owner could mean; `withdraw` pays others what is theirs.
    function _selectors() private pure returns (bytes4[] memory selectors) {
        bytes4[18] memory all = [
            IInferenceMarket.requestInference.selector,
            IInferenceMarket.cancel.selector,
            IInferenceMarket.cancelWithRelease.selector,
            IInferenceMarket.expire.selector,
            IInferenceMarket.submitResults.selector,
            IInferenceMarket.submitResultsFor.selector,
            IInferenceMarket.submitAssigned.selector,
            IInferenceMarket.withdrawTo.selector,
            IStakeManager.withdrawStake.selector,
            IStakeManager.withdrawBond.selector,
            IStakeManager.slashNode.selector,
            IStakeManager.slashRelayer.selector,
            IStakeManager.beginUnbond.selector,
            IStakeManager.setPayee.selector,
            IStakeManager.rotateKey.selector,
            InferenceMarket.setRequestsPaused.selector,
            bytes4(keccak256("transferOwnership(address)")),
            bytes4(keccak256("renounceOwnership()"))
        ];
        selectors = new bytes4[](18);
        for (uint256 i = 0; i < 18; ++i) {
            selectors[i] = all[i];
        }
    }

    function _withdrawAll(address account) private {
        uint256 credit = _credit(account);
        VM.prank(account);
        market.withdraw(account, credit);
    }
}

/// Says how long its unbonding takes.
contract StakesWith {
    uint40 public immutable UNBOND_DELAY;

    constructor(uint40 delay) {
        UNBOND_DELAY = delay;
    }
}
