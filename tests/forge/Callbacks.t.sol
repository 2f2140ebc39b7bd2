// SPDX-License-Identifier: MIT
pragma solidity ^0.8.30;

import {
    Assignment,
    ItemStatus,
    Request,
    RequestParams,
    ResultItem,
    ResultRef,
    ResultSet,
    Status
} from "../../contracts/Types.sol";
import {IInferenceMarket} from "../../contracts/interfaces/IInferenceMarket.sol";
import {IInferenceReceiver} from "../../contracts/interfaces/IInferenceReceiver.sol";
import {Base} from "./Base.sol";
import {Puppet, newPuppet} from "./Puppet.sol";
import {VM, Vm} from "./Vm.sol";

/// Callbacks of submitResults and submitAssigned, and retryCallback.
contract CallbacksTest is Base {
    uint24 private constant CALLBACK_GAS = 200_000;

    Puppet private consumer;

    function setUp() external {
        _deploy(2);
        consumer = newPuppet();
    }

    /* MADE */

    /// The call names request, hash and bytes; its gas is paid from what is left of the budget, and all adds up.
    function testFuzz_callback_isMadeAndPaidWithinTheBudget(
        bytes memory result,
        bool isInline,
        uint80 gasBudget,
        uint48 price,
        uint24 callbackGas
    ) external {
        VM.assume(result.length != 0);
        RequestParams memory params = _callbackParams(1, uint24(_bound(callbackGas, 150_000, 2_000_000)));
        (params.inlineResult, params.gasBudget) = (isInline, gasBudget);
        Request memory request = _post(params, address(consumer));
        ResultSet[] memory sets = new ResultSet[](1);
        sets[0] = _answer(request, result, isInline);
        VM.txGasPrice(price);
        VM.recordLogs();
        VM.prank(relayer);
        market.submitResults(relayer, sets);
        Vm.Log[] memory logs = VM.getRecordedLogs();

        _assertStatus(request, Status.FULFILLED);
        VM.assertEq(consumer.calls(), 1, "called once");
        bytes memory delivered = isInline ? result : bytes("");
        bytes32 hash = keccak256(result);
        VM.assertEq(
            consumer.lastHash(),
            keccak256(abi.encodeCall(IInferenceReceiver.onInferenceResult, (_idOf(request), hash, delivered))),
            "what it was told"
        );
        VM.assertLe(consumer.gasGiven(), params.callbackGas, "no more gas than it asked for");
        uint256 capped = price < 2 gwei ? price : 2 gwei;
        _assertPaidWithinBudget(request, logs, capped, market.gasChargeOf(1, delivered.length, 1));
    }

    /// A failure is the consumer's own: the result stays paid, the reason is told, the call can be made again.
    function testFuzz_callback_failureIsNotedAndPaid(uint8 how, bytes memory reason, uint48 price) external {
        Puppet.Ending ending = Puppet.Ending(1 + how % 5);
        if (ending == Puppet.Ending.BOMB) ending = Puppet.Ending.REVERT;
        consumer.orderEnding(ending, reason);
        RequestParams memory params = _callbackParams(1, CALLBACK_GAS);
        params.gasBudget = 1 ether;
        Request memory request = _post(params, address(consumer));
        ResultSet[] memory sets = new ResultSet[](1);
        sets[0] = _answer(request, "answer", false);
        VM.txGasPrice(price);
        VM.recordLogs();
        VM.prank(relayer);
        market.submitResults(relayer, sets);
        Vm.Log[] memory logs = VM.getRecordedLogs();

        _assertStatus(request, Status.FULFILLED_CALLBACK_FAILED);
        VM.assertEq(logs[0].topics[0], IInferenceMarket.CallbackFailed.selector, "event");
        if (ending == Puppet.Ending.REVERT) {
            bytes32 first = reason.length == 0 ? bytes32(0) : bytes32(bytes4(_padded(reason)));
            VM.assertEq(logs[0].data, abi.encode(first), "reason");
        } else {
            // A megabyte costs more than the consumer's gas: it gets nowhere.
            VM.assertEq(logs[0].data, abi.encode(bytes32(0)), "no reason");
        }
        _assertPaidWithinBudget(request, logs, price < 2 gwei ? price : 2 gwei, market.gasChargeOf(1, 0, 1));
        ResultRef memory ref = _refOf(1, _oneKey(0));
        ref.resultHash = keccak256("answer");
        VM.assertTrue(market.verifyResult(_idOf(request), ref, "answer"), "the result is final all the same");
    }

    /// Return bomb: a megabyte that is returned or reverted with costs the consumer's gas, and never more.
    function testFuzz_callback_bombCostsItsOwnGasOnly(uint8 how, uint24 callbackGas) external {
        Puppet.Ending[3] memory endings = [Puppet.Ending.BOMB, Puppet.Ending.REVERT_BOMB, Puppet.Ending.BURN];
        consumer.orderEnding(endings[how % 3], "");
        RequestParams memory params = _callbackParams(1, uint24(_bound(callbackGas, 1, 2_000_000)));
        Request memory request = _post(params, address(consumer));
        ResultSet[] memory sets = new ResultSet[](1);
        sets[0] = _answer(request, "answer", false);
        VM.startPrank(relayer);
        uint256 before = gasleft();
        market.submitResults(relayer, sets);
        VM.stopPrank();
        VM.assertLe(before - gasleft(), uint256(params.callbackGas) + 250_000, "gas");
        VM.assertTrue(uint256(_statusOf(request)) >= uint256(Status.FULFILLED), "settled");
    }

    /// A requester without code is called in vain, and that is no failure.
    function test_callback_toAnAccountWithoutCodeIsNoFailure() external {
        Request memory request = _post(_callbackParams(1, CALLBACK_GAS), address(0x4E9));
        _assertStatus(_submit(_answer(request, "answer", false))[0], ItemStatus.OK);
        _assertStatus(request, Status.FULFILLED);
    }

    /// A contract that asked for the bytes gets them, or the item is bad.
    function test_callback_needsTheBytesThatWereAskedFor() external {
        RequestParams memory params = _callbackParams(1, CALLBACK_GAS);
        params.inlineResult = true;
        Request memory request = _post(params, address(consumer));
        _assertStatus(_submit(_answer(request, "answer", false))[0], ItemStatus.BAD_RESULT);
        _assertStatus(request, Status.PENDING);
        VM.assertEq(consumer.calls(), 0, "not called");
    }

    /// An answer of no bytes is delivered as such.
    function test_callback_takesAnEmptyAnswerThatWasSigned() external {
        RequestParams memory params = _callbackParams(1, CALLBACK_GAS);
        params.inlineResult = true;
        Request memory request = _post(params, address(consumer));
        _assertStatus(_submit(_answer(request, "", false))[0], ItemStatus.OK);
        VM.assertEq(consumer.calls(), 1, "called");
        bytes memory call =
            abi.encodeCall(IInferenceReceiver.onInferenceResult, (_idOf(request), keccak256(""), bytes("")));
        VM.assertEq(consumer.lastHash(), keccak256(call), "with nothing");
        // Named as the others of its set.
        params.salt = 2;
        request = _post(params, address(consumer));
        _assertStatus(_submit(_answer(request, "", true))[0], ItemStatus.OK);
        VM.assertEq(consumer.calls(), 2, "called again");
    }

    /// All credits of the set are there before the first callback runs, and the callbacks come in order.
    function testFuzz_callback_comesAfterTheCredits(uint8 count) external {
        count = uint8(_bound(count, 1, 5));
        ResultItem[] memory items = new ResultItem[](count + 1);
        for (uint256 i = 0; i < count; ++i) {
            items[i] = _item(_post(_callbackParams(uint64(i), 1_000_000), address(consumer)), 1e15);
        }
        items[count] = _item(_post(_params(99), address(0x4E9)), 1e15);
        consumer.orderStep(address(market), 0, abi.encodeCall(market.accountOf, (operators[0].payee)));
        consumer.orderStep(address(market), 0, abi.encodeCall(market.accountOf, (address(0x4E9))));
        _submit(_set(items, _record(relayer), _oneKey(0)));
        (, bytes memory node) = consumer.stepAt(0);
        (, bytes memory requester) = consumer.stepAt(1);
        VM.assertEq(node, abi.encode((count + 1) * (1e15 + 8e13), count + 1), "the node has its credit");
        VM.assertEq(requester, abi.encode(21e14 - 1e15 - 1e14 - 1e14, 0), "so has the next requester");
        VM.assertEq(consumer.calls(), count, "each is called for");
        VM.assertEq(address(market).balance, (count + 1) * 21e14, "no wei left");
        uint256 paid = _credit(relayer) + _credit(address(consumer)) + (count + 1) * (1e15 + 8e13) + 9e14;
        VM.assertEq(paid, (count + 1) * 21e14, "I3");
    }

    /// Self-settlement calls back as well, and the node is paid for it.
    function testFuzz_callback_ofSelfSettlementIsPaidToTheNode(uint48 price, bool fails) external {
        if (fails) consumer.orderEnding(Puppet.Ending.REVERT, "no");
        RequestParams memory params = _callbackParams(1, CALLBACK_GAS);
        params.gasBudget = 1 ether;
        Request memory request = _post(params, address(consumer));
        Assignment memory assignment = _assignment(request, 1e15, 3, 0);
        VM.warp(START + 601);
        VM.txGasPrice(price);
        market.submitAssigned(
            assignment, _sign(relayerKey, address(market), _hashAssignment(assignment)), _one(request, 1e15, 3, 0)
        );
        _assertStatus(request, fails ? Status.FULFILLED_CALLBACK_FAILED : Status.FULFILLED);
        VM.assertEq(consumer.calls(), fails ? 0 : 1, "called");
        VM.assertEq(_credit(relayer), 0, "nothing is the relayer's");
        uint256 capped = price < 2 gwei ? price : 2 gwei;
        uint256 paid = _credit(operators[0].payee);
        uint256 least = market.ASSIGNED_GAS() * capped;
        uint256 most = least + (CALLBACK_GAS + 40_000) * capped;
        VM.assertGe(paid, 1e15 + 1e14 + least + (1 ether - least) / 10, "at least");
        VM.assertLe(paid, 1e15 + 1e14 + most + (1 ether - most) / 10 + 1, "at most");
        VM.assertEq(paid + _credit(address(consumer)), 1 ether + 1e15 + 1e14, "I3");
    }

    /* GAS */

    /// Gas griefing: with whatever gas the relayer sends, either the whole call reverts, or the consumer had all the gas
    /// that it asked for. The least gas that goes through is looked for, and all around it is tried.
    /// forge-config: default.fuzz.runs = 24
    function testFuzz_callback_neverGetsLessGasThanItAskedFor(uint24 callbackGas, uint16 size) external {
        _sweep(uint24(_bound(callbackGas, 30_000, 2_000_000)), _bound(size, 1, 4096));
    }

    /// The same with a long answer, whose copy costs gas between the check and the call.
    function test_callback_neverGetsLessGasThanItAskedForWithALongAnswer() external {
        _sweep(2_000_000, 150_000);
    }

    /// Only an answer that the market gave the gas for: at the edge the call reverts with what it needs.
    function test_callback_revertsWithWhatItNeeds() external {
        Request memory request = _post(_callbackParams(1, 2_000_000), address(consumer));
        ResultSet[] memory sets = new ResultSet[](1);
        sets[0] = _answer(request, "answer", false);
        VM.prank(relayer);
        (bool ok, bytes memory why) =
            address(market).call{gas: 1_500_000}(abi.encodeCall(IInferenceMarket.submitResults, (relayer, sets)));
        VM.assertTrue(!ok, "reverts");
        VM.assertEq(bytes32(bytes4(why)), bytes32(IInferenceMarket.InsufficientGas.selector), "why");
        _assertStatus(request, Status.PENDING);
    }

    /* RETRY */

    /// Anyone may, with the bytes if they were asked for; it is made once.
    function testFuzz_retryCallback_makesTheCallAgain(bytes memory result, bool isInline, address by) external {
        VM.assume(result.length != 0);
        consumer.orderEnding(Puppet.Ending.REVERT, "not yet");
        (Request memory request, ResultRef memory ref) = _failed(result, isInline);
        consumer.orderEnding(Puppet.Ending.ANSWER, "");
        uint256 credits = _credit(relayer) + _credit(operators[0].payee) + _credit(address(consumer));
        bytes memory delivered = isInline ? result : bytes("");
        VM.recordLogs();
        VM.prank(by);
        market.retryCallback(request, ref, delivered);
        Vm.Log[] memory logs = VM.getRecordedLogs();
        VM.assertEq(logs[0].topics[0], IInferenceMarket.CallbackRetried.selector, "event");
        VM.assertEq(logs[0].topics[1], _idOf(request), "id");
        _assertStatus(request, Status.FULFILLED);
        VM.assertEq(
            consumer.lastHash(),
            keccak256(
                abi.encodeCall(IInferenceReceiver.onInferenceResult, (_idOf(request), ref.resultHash, delivered))
            ),
            "what it was told"
        );
        VM.assertEq(
            _credit(relayer) + _credit(operators[0].payee) + _credit(address(consumer)), credits, "nothing is paid"
        );
        VM.expectRevert(abi.encodeWithSelector(IInferenceMarket.NoFailedCallback.selector, _idOf(request)));
        market.retryCallback(request, ref, delivered);
    }

    function testFuzz_retryCallback_failsAgainAndChangesNothing(uint8 how, bytes4 reason) external {
        Puppet.Ending ending = Puppet.Ending(1 + how % 5);
        consumer.orderEnding(Puppet.Ending.REVERT, "not yet");
        (Request memory request, ResultRef memory ref) = _failed("answer", false);
        consumer.orderEnding(ending, abi.encodePacked(reason));
        if (ending == Puppet.Ending.BOMB) consumer.orderEnding(Puppet.Ending.REVERT, abi.encodePacked(reason));
        bool isHeard = ending == Puppet.Ending.REVERT || ending == Puppet.Ending.BOMB;
        VM.expectRevert(
            abi.encodeWithSelector(
                IInferenceMarket.CallbackFailedAgain.selector, _idOf(request), isHeard ? reason : bytes4(0)
            )
        );
        market.retryCallback{gas: 1_000_000}(request, ref, "");
        _assertStatus(request, Status.FULFILLED_CALLBACK_FAILED);
    }

    /// Only what failed, by exactly what was settled, with exactly the bytes.
    function testFuzz_retryCallback_refusesAllElse(uint8 what, bool isInline) external {
        consumer.orderEnding(Puppet.Ending.REVERT, "not yet");
        (Request memory request, ResultRef memory ref) = _failed("answer", isInline);
        bytes memory result = isInline ? bytes("answer") : bytes("");
        bytes memory refusal = abi.encodeWithSelector(IInferenceMarket.NoFailedCallback.selector, _idOf(request));
        if (what % 6 == 0) ref.resultHash = HASH;
        if (what % 6 == 1) ref.settledAt += 1;
        if (what % 6 == 2) ref.nodes[0] = operators[1].node;
        if (what % 6 == 3) {
            result = isInline ? bytes("another") : bytes("answer");
            refusal = abi.encodeWithSelector(IInferenceMarket.ResultMismatch.selector, ref.resultHash);
        }
        if (what % 6 == 4) {
            request = _post(_params(2), address(consumer));
            ref = _settle(request, 1);
            refusal = abi.encodeWithSelector(IInferenceMarket.NoFailedCallback.selector, _idOf(request));
        }
        if (what % 6 == 5) {
            request = _post(_params(3), address(consumer));
            refusal = abi.encodeWithSelector(IInferenceMarket.NoFailedCallback.selector, _idOf(request));
        }
        VM.expectRevert(refusal);
        market.retryCallback(request, ref, result);
    }

    /// With too little gas it reverts; with enough the consumer has at least what it asked for, and may have more.
    function testFuzz_retryCallback_givesAllTheGasThereIs(uint24 gas_) external {
        consumer.orderEnding(Puppet.Ending.REVERT, "not yet");
        (Request memory request, ResultRef memory ref) = _failed("answer", false);
        consumer.orderEnding(Puppet.Ending.ANSWER, "");
        uint256 gas = _bound(gas_, 50_000, 1_500_000);
        try market.retryCallback{gas: gas}(request, ref, "") {
            VM.assertGe(consumer.gasGiven() + 3000, CALLBACK_GAS, "enough");
            VM.assertGe(consumer.gasGiven() * 64 / 63 + 30_000, gas, "all there is");
        } catch {
            VM.assertLe(gas, CALLBACK_GAS + 40_000, "refused only when short");
            _assertStatus(request, Status.FULFILLED_CALLBACK_FAILED);
        }
    }

    /* HELPERS */

    function _answer(Request memory request, bytes memory result, bool isInline)
        private
        returns (ResultSet memory set)
    {
        ResultItem[] memory items = new ResultItem[](1);
        items[0] = ResultItem(request, 1e15, keccak256(result));
        set = _set(items, _record(relayer), _oneKey(0));
        if (!isInline) return set;
        set.results = new bytes[](1);
        set.results[0] = result;
    }

    /// A request whose callback failed.
    function _failed(bytes memory result, bool isInline)
        private
        returns (Request memory request, ResultRef memory ref)
    {
        RequestParams memory params = _callbackParams(1, CALLBACK_GAS);
        params.inlineResult = isInline;
        request = _post(params, address(consumer));
        ResultSet memory set = _answer(request, result, isInline);
        _assertStatus(_submit(set)[0], ItemStatus.OK);
        _assertStatus(request, Status.FULFILLED_CALLBACK_FAILED);
        ref = _refOf(set.round, _oneKey(0));
        ref.resultHash = keccak256(result);
    }

    function _sweep(uint24 callbackGas, uint256 size) private {
        RequestParams memory params = _callbackParams(1, callbackGas);
        params.inlineResult = true;
        Meter meter = new Meter();
        // Accounts that have credit already: what comes after the call costs the least.
        _deposit(relayer, 1);
        _deposit(address(meter), 1);
        Request memory request = _post(params, address(meter));
        ResultSet[] memory sets = new ResultSet[](1);
        sets[0] = _answer(request, new bytes(size), true);
        bytes memory data = abi.encodeCall(IInferenceMarket.submitResults, (relayer, sets));
        uint256 tooLittle = 0;
        uint256 enough = 10_000_000;
        VM.assertTrue(_settlesWith(enough, data, meter, callbackGas), "ten million are enough");
        while (enough - tooLittle > 1) {
            uint256 middle = (enough + tooLittle) / 2;
            if (_settlesWith(middle, data, meter, callbackGas)) enough = middle;
            else tooLittle = middle;
        }
        for (uint256 gas = enough - 20; gas < enough + 20; ++gas) {
            _settlesWith(gas, data, meter, callbackGas);
        }
    }

    /// Whether the call goes through with so much gas, undone afterwards. If it does, the consumer had its gas.
    function _settlesWith(uint256 gas, bytes memory data, Meter meter, uint256 callbackGas) private returns (bool ok) {
        uint256 state = VM.snapshotState();
        VM.prank(relayer);
        (ok,) = address(market).call{gas: gas}(data);
        // A few dozen went before it looked.
        if (ok) VM.assertGe(uint256(VM.load(address(meter), 0)) + 100, callbackGas, "gas that the consumer had");
        VM.assertTrue(VM.revertToState(state), "undone");
    }

    function _assertPaidWithinBudget(Request memory request, Vm.Log[] memory logs, uint256 price, uint256 charge)
        private
        view
    {
        uint256 gasBudget = uint80(request.amounts >> 80);
        (uint256 nodePaid, uint256 relayerPaid, uint256 refund) = _fulfilledIn(logs);
        VM.assertEq(nodePaid + relayerPaid + refund, _escrowOf(request), "I3: the three are the escrow");
        VM.assertEq(_credit(operators[0].payee), nodePaid, "node's credit");
        VM.assertEq(_credit(relayer), relayerPaid, "relayer's credit");
        VM.assertEq(_credit(request.requester), refund, "refund");
        VM.assertEq(nodePaid, 1e15 + 8e13, "node");
        VM.assertLe(relayerPaid, 2e13 + gasBudget, "I4: within the budget");
        // Between the charge alone and the charge with all the gas that the callback may use.
        uint256 least = charge < gasBudget ? charge : gasBudget;
        uint256 most = charge + (uint256(uint24(request.terms >> 160)) + 60_000) * price;
        if (most > gasBudget) most = gasBudget;
        VM.assertGe(relayerPaid, 2e13 + least + (gasBudget - least) / 10, "relayer at least");
        VM.assertLe(relayerPaid, 2e13 + most + (gasBudget - most) / 10 + 1, "relayer at most");
    }

    function _fulfilledIn(Vm.Log[] memory logs) private pure returns (uint256 node, uint256 relayer_, uint256 refund) {
        for (uint256 i = 0; i < logs.length; ++i) {
            if (logs[i].topics[0] != IInferenceMarket.ResultFulfilled.selector) continue;
            (, node, relayer_, refund) = abi.decode(logs[i].data, (bytes32, uint256, uint256, uint256));
        }
    }

    function _padded(bytes memory data) private pure returns (bytes memory) {
        return bytes.concat(data, new bytes(4));
    }
}

/// Notes the gas that it is called with in its first slot, and does nothing else.
contract Meter {
    uint256 private _gas;

    fallback() external {
        assembly ("memory-safe") {
            sstore(0, gas())
        }
    }
}
