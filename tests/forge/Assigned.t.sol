// SPDX-License-Identifier: MIT
pragma solidity ^0.8.30;

import {Assignment, ItemStatus, Request, RequestParams, ResultItem, ResultSet, Status} from "../../contracts/Types.sol";
import {IInferenceMarket} from "../../contracts/interfaces/IInferenceMarket.sol";
import {Base} from "./Base.sol";
import {VM} from "./Vm.sol";

/// submitAssigned: a node settles by itself.
contract AssignedTest is Base {
    address private requester = address(0x4E9);

    function setUp() external {
        _deploy(2);
    }

    /// I6: whoever sends, the node's payee has what node and relayer would have had.
    function testFuzz_submitAssigned_paysTheNodeForBoth(
        uint80[3] memory amounts,
        uint80 reward,
        uint16 late,
        uint48 price,
        address by
    ) external {
        RequestParams memory params = _params(1);
        (params.maxReward, params.gasBudget, params.priorityFee) = (amounts[0], amounts[1], amounts[2]);
        reward = uint80(_bound(reward, 0, params.maxReward));
        Request memory request = _post(params, requester);
        Assignment memory assignment = _assignment(request, reward, 7, 0);
        VM.warp(START + 601 + late % GRACE);
        VM.txGasPrice(price);
        ResultSet memory set = _one(request, reward, 7, 0);
        bytes memory signature = _signAssignment(assignment, relayerKey);
        VM.prank(by);
        market.submitAssigned(assignment, signature, set);

        uint256 charge = market.ASSIGNED_GAS() * uint256(price < 2 gwei ? price : 2 gwei);
        uint256 gasPaid = charge < params.gasBudget ? charge : params.gasBudget;
        uint256 paid = reward + uint256(params.priorityFee) + gasPaid + (params.gasBudget - gasPaid) / 10;
        VM.assertEq(_credit(operators[0].payee), paid, "node");
        VM.assertEq(_credit(relayer) + _credit(by), 0, "nobody else");
        VM.assertEq(_credit(requester), _escrowOf(request) - paid, "I3: refund");
        VM.assertTrue(market.verifyResult(_idOf(request), _refOf(7, _oneKey(0)), ""), "remembered");
    }

    /// Later than D, not later than D + GRACE, at the second; D is earlier after a cancel.
    function testFuzz_submitAssigned_isOpenForAGrace(uint16 cancelledAfter, uint8 edge) external {
        Request memory request = _post(_params(1), requester);
        uint256 deadline = START + 600;
        if (cancelledAfter % 2 == 0) {
            deadline = START + cancelledAfter % 600;
            VM.warp(deadline);
            VM.prank(requester);
            market.cancel(request);
        }
        uint256[4] memory times = [deadline, deadline + 1, deadline + GRACE, deadline + GRACE + 1];
        VM.warp(times[edge % 4]);
        ItemStatus[4] memory expected = [ItemStatus.NO_ROUND, ItemStatus.OK, ItemStatus.OK, ItemStatus.LATE];
        _try(request, 0, expected[edge % 4]);
    }

    /// Attack: cancelled at the last moment, with the answer on its way. A recorded round is paid; an unrecorded
    /// assignment is settled by the node.
    function testFuzz_submitAssigned_aLateCancelCostsTheNodeNothing(bool recorded) external {
        Request memory request = _post(_params(1), requester);
        VM.warp(START + 599);
        if (recorded) _record(relayer);
        VM.prank(requester);
        market.cancel(request);
        VM.warp(_now() + 1);
        if (recorded) {
            _assertStatus(_submit(_one(request, 1, 1, 0))[0], ItemStatus.OK);
            VM.assertEq(_credit(operators[0].payee), 1 + 8e13, "node is paid");
        } else {
            _assertStatus(_submit(_one(request, 1, 1, 0))[0], ItemStatus.NO_ROUND);
            _try(request, 0, ItemStatus.OK);
            VM.assertEq(_credit(operators[0].payee), 1 + 1e14 + 1e14, "node is paid for both");
        }
    }

    function testFuzz_submitAssigned_needsTheRelayersSignature(uint8 what) external {
        Request memory request = _post(_params(1), requester);
        VM.warp(START + 601);
        Assignment memory assignment = _assignment(request, 1, 1, 0);
        bytes memory signature = _signAssignment(assignment, what % 4 == 0 ? rivalKey : relayerKey);
        if (what % 4 == 1) assignment.deadline += 1;
        if (what % 4 == 2) signature = "";
        if (what % 4 == 3) assignment.relayer = rival;
        VM.expectRevert(abi.encodeWithSelector(IInferenceMarket.InvalidSignature.selector, assignment.relayer));
        market.submitAssigned(assignment, signature, _one(request, 1, 1, 0));
    }

    /// The set is the one result that the assignment asks for, and no other.
    function testFuzz_submitAssigned_refusesAnotherSet(uint8 what) external {
        Request memory request = _post(_params(1), requester);
        Request memory other = _post(_params(2), requester);
        VM.warp(START + 601);
        Assignment memory assignment = _assignment(request, 1, 1, 0);
        ResultSet memory set = _one(request, 1, 1, 0);
        if (what % 6 == 0) set = _one(request, 1, 1, 1);
        if (what % 6 == 1) set = _one(request, 1, 2, 0);
        if (what % 6 == 2) set = _one(request, 2, 1, 0);
        if (what % 6 == 3) set = _one(other, 1, 1, 0);
        if (what % 6 == 4) {
            ResultItem[] memory items = new ResultItem[](2);
            (items[0], items[1]) = (_item(request, 1), _item(other, 1));
            set = _set(items, 1, _oneKey(0));
        }
        if (what % 6 == 5) set = _set(set.items, 1, _keys(2));
        bytes memory signature = _signAssignment(assignment, relayerKey);
        VM.expectRevert(abi.encodeWithSelector(IInferenceMarket.AssignmentMismatch.selector, assignment.requestId));
        market.submitAssigned(assignment, signature, set);
    }

    function test_submitAssigned_refusesAMalformedSet() external {
        Request memory request = _post(_params(1), requester);
        Assignment memory assignment = _assignment(request, 1, 1, 0);
        ResultSet memory set = _one(request, 1, 1, 0);
        set.items = new ResultItem[](0);
        VM.expectRevert(abi.encodeWithSelector(IInferenceMarket.MalformedSet.selector, 0));
        market.submitAssigned(assignment, "", set);
    }

    /// What a batch would give a status is refused.
    function testFuzz_submitAssigned_refusesBadItems(uint8 what) external {
        RequestParams memory params = _params(1);
        if (what % 6 == 0) params.relayer = rival;
        if (what % 6 == 1) params = _quorumParams(1, 2, 2);
        if (what % 6 == 2) params = _verifierParams(1, address(verifier));
        Request memory request = _post(params, requester);
        ItemStatus expected = ItemStatus.WRONG_RELAYER;
        if (what % 6 == 1) expected = ItemStatus.BAD_SIGNATURE;
        if (what % 6 == 2) expected = ItemStatus.VERIFICATION_FAILED;
        if (what % 6 == 3) (request.modelId, expected) = (0, ItemStatus.UNKNOWN);
        if (what % 6 == 4) {
            _settle(request, 1);
            expected = ItemStatus.ALREADY_DONE;
        }
        VM.warp(START + 601);
        if (what % 6 == 5) {
            VM.prank(operators[0].owner);
            stakes.leaveMarket(operators[0].node, address(market));
            VM.warp(START + UNBOND_DELAY);
            params.deadline = uint40(_now() + 600);
            request = _post(params, requester);
            VM.warp(_now() + 601);
            expected = ItemStatus.NODE_NOT_JOINED;
        }
        uint256 settledBefore = _credit(operators[0].payee);
        _try(request, 0, expected);
        VM.assertEq(_credit(operators[0].payee), settledBefore, "nothing is paid");
    }

    /// Attack: an open race that was not served, or is cancelled, would be for whoever brings in a node of its own.
    function testFuzz_submitAssigned_isNotForOpenRaces(bool cancelled, bool registered) external {
        RequestParams memory params = _params(1);
        params.relayer = address(0);
        Request memory request = _post(params, requester);
        if (!registered) (relayerKey, relayer) = (77, VM.addr(77));
        VM.warp(START + (cancelled ? 60 : 601));
        if (cancelled) {
            VM.prank(requester);
            market.cancel(request);
            VM.warp(START + 61);
        }
        _try(request, 0, ItemStatus.WRONG_RELAYER);
    }

    /// Attack: the node that has the assignment, not another that signs a result of its own.
    function test_submitAssigned_isNoUseToANodeThatWasNotAssigned() external {
        Request memory request = _post(_params(1), requester);
        VM.warp(START + 601);
        Assignment memory assignment = _assignment(request, 1, 1, 0);
        bytes memory signature = _signAssignment(assignment, relayerKey);
        assignment.node = operators[1].node;
        ResultSet memory set = _one(request, 1, 1, 1);
        VM.expectRevert(abi.encodeWithSelector(IInferenceMarket.InvalidSignature.selector, relayer));
        market.submitAssigned(assignment, signature, set);
    }

    /// Once only, whichever way comes first.
    function testFuzz_submitAssigned_isPaidOnce(bool batchFirst) external {
        Request memory request = _post(_params(1), requester);
        _record(relayer);
        VM.warp(START + 601);
        if (batchFirst) {
            _submit(_one(request, 1, 1, 0));
            _try(request, 0, ItemStatus.ALREADY_DONE);
        } else {
            _try(request, 0, ItemStatus.OK);
            _assertStatus(_submit(_one(request, 1, 1, 0))[0], ItemStatus.ALREADY_DONE);
        }
        VM.assertEq(
            _credit(operators[0].payee) + _credit(relayer) + _credit(requester), 21e14, "I2, I3: the escrow once"
        );
    }

    /* HELPERS */

    function _signAssignment(Assignment memory assignment, uint256 key) private view returns (bytes memory) {
        return _sign(key, address(market), _hashAssignment(assignment));
    }

    function _try(Request memory request, uint256 operator, ItemStatus expected) private {
        Assignment memory assignment = _assignment(request, 1, 1, operator);
        bytes memory signature = _signAssignment(assignment, relayerKey);
        ResultSet memory set = _one(request, 1, 1, operator);
        if (expected != ItemStatus.OK) {
            VM.expectRevert(
                abi.encodeWithSelector(IInferenceMarket.ItemRefused.selector, assignment.requestId, expected)
            );
        }
        market.submitAssigned(assignment, signature, set);
        if (expected == ItemStatus.OK) _assertStatus(request, Status.FULFILLED);
    }
}
