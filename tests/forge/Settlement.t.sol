// SPDX-License-Identifier: MIT
pragma solidity ^0.8.30;

import {Request, RequestParams, ResultItem, ResultSet, Status} from "../../contracts/Types.sol";
import {Base} from "./Base.sol";

contract SettlementTest is Base {
    address private requester = address(0x4E9);

    function setUp() external {
        _deploy();
    }

    /// Whatever the amounts and fees: the three shares are the escrow, and nobody gets more than the terms allow.
    function testFuzz_submitResults_splitsTheWholeEscrow(
        uint80 maxReward,
        uint80 gasBudget,
        uint80 priorityFee,
        uint80 reward,
        uint64 added,
        uint56 baseFee,
        uint56 tip
    ) external {
        if (reward > maxReward) (reward, maxReward) = (maxReward, reward);
        VM.fee(baseFee);
        VM.txGasPrice(uint256(baseFee) + tip);
        Request memory request = _post(_params(1, maxReward, gasBudget, priorityFee), added);
        uint256 escrow = uint256(maxReward) + gasBudget + priorityFee + added;
        assert(address(market).balance == escrow);

        ResultItem[] memory items = new ResultItem[](1);
        items[0] = ResultItem({request: request, reward: reward, resultHash: keccak256("result")});
        market.submitResults(relayer, _signedSet(items, _recordRound()));

        uint256 fee = uint256(priorityFee) + added;
        uint256 relayersFee = fee / 5;
        assert(_credit(payee) == reward + fee - relayersFee);
        assert(_credit(relayer) >= relayersFee && _credit(relayer) <= gasBudget + relayersFee);
        assert(_credit(payee) + _credit(relayer) + _credit(requester) == escrow);
        _assertStatus(request, Status.FULFILLED);
    }

    /// Whatever a set says of a request that nobody made: it is paid nothing.
    function testFuzz_submitResults_forgedRequestIsPaidNothing(Request calldata forged, uint96 reward) external {
        Request memory honest = _post(_params(1, 1 ether, 1 ether, 1 ether), 0);
        ResultItem[] memory items = new ResultItem[](2);
        items[0] = ResultItem({request: forged, reward: reward, resultHash: keccak256("result")});
        items[1] = items[0];
        ResultSet[] memory sets = _signedSet(items, _recordRound());
        market.submitResults(relayer, sets);
        assert(_credit(payee) + _credit(relayer) + _credit(forged.requester) == 0);
        _assertStatus(honest, Status.PENDING);
    }

    function _post(RequestParams memory params, uint256 added) private returns (Request memory) {
        uint256 escrow = market.escrowOf(params);
        VM.deal(requester, escrow);
        VM.prank(requester);
        bytes32 requestId = market.requestInference{value: escrow}(params, "");
        if (added != 0) {
            VM.deal(address(this), added);
            market.raisePriorityFee{value: added}(requestId);
        }
        return market.packRequest(params, requester);
    }

    function _assertStatus(Request memory request, Status expected) private view {
        bytes32[] memory ids = new bytes32[](1);
        ids[0] = market.requestIdOf(request);
        assert(market.statusOf(ids)[0] == expected);
    }
}
