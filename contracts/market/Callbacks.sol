// SPDX-License-Identifier: MIT
pragma solidity ^0.8.30;

import {Request, ResultItem, ResultRef, Status} from "../Types.sol";
import {IInferenceReceiver} from "../interfaces/IInferenceReceiver.sol";
import {RequestLib} from "../libraries/RequestLib.sol";
import {WordLib} from "../libraries/WordLib.sol";
import {MarketBase} from "./MarketBase.sol";

/// @notice Calls to the requesters' contracts: after all credits are stored, with the gas that the request names.
abstract contract Callbacks is MarketBase {
    using RequestLib for Request;

    /// A callback that is yet to be made, and what its request has paid so far.
    struct Owed {
        uint256 index; // of the item in its set
        uint256 nodePaid;
        uint256 relayerPaid;
        uint256 refund;
        uint256 unused; // rest of the gas budget, from which the callback is paid
    }

    /// What holds for all items of a set; built once, then only read and added to.
    struct SetContext {
        address relayer;
        address relayerPayee; // who has the relayer's part
        uint64 round;
        address[] nodes;
        address[] payees;
        uint256 quorum; // k of the requests that the set may settle: 0 for a single node
        uint256 recordedAt; // when its round was; never, when it was not
        bool notJoined;
        bool signedAsSet;
        bool signedSingly;
        uint256 rewardCap; // of nodes on probation
        uint256 gasPrice;
        uint256 chargePerItem; // wei
        bytes fulfilled; // what the word of an item is the digest of; see WordLib.fulfilledFrom
        uint256 nodeCredit; // of each node
        uint256 relayerCredit;
        uint64 settled;
        address requester; // whose refunds are being added up
        uint256 requesterCredit;
        Owed[] owed;
        uint256 callbacks; // in `owed`
    }

    // Kept back from a callback, so that what comes after it can be paid for.
    uint256 private constant RESERVE_GAS = 10_000;
    // What a callback costs beside the gas that is measured around it; held to the snapshot by a test.
    uint256 private constant UNMEASURED_GAS = 2100;

    function retryCallback(Request calldata request, ResultRef calldata ref, bytes calldata result)
        external
        nonReentrant
    {
        bytes32 requestId = request.idOfCalldata(address(this));
        Word storage word = _words[requestId];
        if (word.packed != WordLib.fulfilled(Status.FULFILLED_CALLBACK_FAILED, requestId, ref)) {
            revert NoFailedCallback(requestId);
        }
        bool isInline = RequestLib.isInline(request.terms);
        if (isInline ? keccak256(result) != ref.resultHash : result.length != 0) revert ResultMismatch(ref.resultHash);
        word.packed = WordLib.fulfilled(Status.FULFILLED, requestId, ref);
        uint256 callbackGas = RequestLib.callbackGasOf(request.terms);
        // It may have failed for want of gas, so it gets all that the caller gives.
        (bool ok, bytes4 reason) =
            _call(request.requester, requestId, ref.resultHash, result, callbackGas, type(uint256).max);
        if (!ok) revert CallbackFailedAgain(requestId, reason);
        emit CallbackRetried(requestId);
    }

    function _openCallbacks(SetContext memory ctx, uint256 count) internal pure {
        if (count != 0) ctx.owed = new Owed[](count);
    }

    /// Written field by field, as what an item allocates is dropped after it.
    function _owe(
        SetContext memory ctx,
        uint256 index,
        uint256 nodePaid,
        uint256 relayerPaid,
        uint256 refund,
        uint256 unused
    ) internal pure {
        Owed memory owed = ctx.owed[ctx.callbacks++];
        (owed.index, owed.nodePaid, owed.relayerPaid, owed.refund, owed.unused) =
        (index, nodePaid, relayerPaid, refund, unused);
    }

    /// Makes a callback and pays for it: its gas to the relayer, and what is left of the gas budget as always.
    /// @param position In `ctx.owed`.
    function _callBack(
        SetContext memory ctx,
        ResultItem calldata item,
        bytes32 requestId,
        bytes calldata result,
        uint256 position
    ) internal {
        uint256 callbackGas = RequestLib.callbackGasOf(item.request.terms);
        uint256 used = gasleft();
        address requester = item.request.requester;
        (bool ok, bytes4 reason) = _call(requester, requestId, item.resultHash, result, callbackGas, callbackGas);
        if (!ok) {
            Status failed = Status.FULFILLED_CALLBACK_FAILED;
            _words[requestId].packed = WordLib.fulfilledFrom(ctx.fulfilled, failed, requestId, item.resultHash);
            emit CallbackFailed(requestId, reason);
        }
        Owed memory owed = ctx.owed[position];
        // Amounts below 2^128, as in Results._pay; what is paid for the call is within what is left of the budget.
        unchecked {
            used = (used - gasleft() + UNMEASURED_GAS) * ctx.gasPrice;
            if (used > owed.unused) used = owed.unused;
            uint256 rest = owed.unused - used;
            used += rest * RELAYER_SAVING_SHARE_BPS / BPS;
            rest = owed.unused - used;
            ctx.relayerCredit += used;
            if (rest != 0) _credit(requester, rest);
            emit ResultFulfilled(requestId, item.resultHash, owed.nodePaid, owed.relayerPaid + used, owed.refund + rest);
        }
    }

    /// @param least Gas that the call must have; the submitter's fault when it has not.
    function _call(
        address requester,
        bytes32 requestId,
        bytes32 resultHash,
        bytes calldata result,
        uint256 least,
        uint256 gasLimit
    ) private returns (bool ok, bytes4 reason) {
        bytes memory data = abi.encodeCall(IInferenceReceiver.onInferenceResult, (requestId, resultHash, result));
        // Once the bytes are copied: their gas grows with them.
        _requireGasFor(least, RESERVE_GAS);
        // Four bytes are copied of what comes back, however much it is.
        assembly ("memory-safe") {
            mstore(0x00, 0)
            ok := call(gasLimit, requester, 0, add(data, 0x20), mload(data), 0x00, 0x04)
            reason := mload(0x00)
        }
    }
}
