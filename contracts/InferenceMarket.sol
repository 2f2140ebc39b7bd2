// SPDX-License-Identifier: MIT
pragma solidity ^0.8.30;

import {Request, RequestParams, ResultRef, Status} from "./Types.sol";
import {IInferenceMarket} from "./interfaces/IInferenceMarket.sol";
import {IScheduleLog} from "./interfaces/IScheduleLog.sol";
import {IStakeManager} from "./interfaces/IStakeManager.sol";
import {RequestLib} from "./libraries/RequestLib.sol";
import {WordLib} from "./libraries/WordLib.sol";
import {Accounts} from "./market/Accounts.sol";
import {MarketBase} from "./market/MarketBase.sol";
import {Requests} from "./market/Requests.sol";
import {Results} from "./market/Results.sol";
import {IERC165} from "@openzeppelin/contracts/utils/introspection/IERC165.sol";

/// @notice See IInferenceMarket. Its parts: market/Requests, market/Results, market/Callbacks, market/Accounts.
contract InferenceMarket is Accounts, Requests, Results, IERC165 {
    using RequestLib for Request;

    constructor(
        address owner,
        IStakeManager stakes,
        IScheduleLog scheduleLog,
        GasTerms memory gasTerms,
        ProbationTerms memory probation
    ) MarketBase(owner, stakes, scheduleLog, gasTerms, probation) {}

    /* OWNER */

    function setRequestsPaused(bool paused) external onlyOwner {
        _pausedUntil = paused ? uint40(block.timestamp + MAX_PAUSE) : 0;
        emit RequestsPausedSet(paused, _pausedUntil);
    }

    /* VIEWS */

    function escrowOf(RequestParams calldata params) external pure returns (uint256) {
        return RequestLib.escrowOf(params);
    }

    function packRequest(RequestParams calldata params, address requester) external pure returns (Request memory) {
        return RequestLib.pack(params, requester);
    }

    function requestIdOf(Request calldata request) external view returns (bytes32) {
        return request.idOfCalldata(address(this));
    }

    function statusOf(bytes32[] calldata requestIds) external view returns (Status[] memory statuses) {
        statuses = new Status[](requestIds.length);
        for (uint256 i = 0; i < requestIds.length; ++i) {
            statuses[i] = WordLib.statusIn(_words[requestIds[i]].packed);
        }
    }

    function wordOf(bytes32 requestId) external view returns (uint256) {
        return _words[requestId].packed;
    }

    function pendingOf(bytes32 requestId) external view returns (uint96 priorityFeeAdded, uint40 effectiveDeadline) {
        uint256 word = _words[requestId].packed;
        if (!WordLib.isPending(word)) return (0, 0);
        return (uint96(WordLib.feeAddedIn(word)), WordLib.deadlineIn(word));
    }

    function verifyResult(bytes32 requestId, ResultRef calldata ref, bytes calldata result)
        external
        view
        returns (bool final_)
    {
        uint256 word = _words[requestId].packed;
        Status status = WordLib.statusIn(word);
        if (status != Status.FULFILLED && status != Status.FULFILLED_CALLBACK_FAILED) return false;
        if (word != WordLib.fulfilled(status, requestId, ref)) return false;
        return result.length == 0 || keccak256(result) == ref.resultHash;
    }

    function gasChargeOf(uint256 nodes, uint256 resultBytes, uint256 batchSize) external view returns (uint256) {
        if (batchSize == 0) revert EmptyBatch();
        if (nodes == 0 || nodes > MAX_QUORUM) revert InvalidQuorum(nodes, nodes);
        uint256 gas = (FIXED_GAS + NODE_GAS * (nodes - 1)) / batchSize + ITEM_GAS + GAS_PER_RESULT_BYTE * resultBytes;
        return gas * _gasPrice();
    }

    function requestsPaused() external view returns (bool) {
        return block.timestamp < _pausedUntil;
    }

    function supportsInterface(bytes4 interfaceId) external pure returns (bool) {
        return interfaceId == type(IInferenceMarket).interfaceId || interfaceId == type(IERC165).interfaceId;
    }
}
