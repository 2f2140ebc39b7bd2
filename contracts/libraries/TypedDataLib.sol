// SPDX-License-Identifier: MIT
pragma solidity ^0.8.30;

import {Assignment, RequestParams, RoundRecord} from "../Types.sol";

/// @title EIP-712 struct hashes of everything that relayers and nodes sign.
/// @notice Result, ResultSet, Accept, Assignment and Release are signed under the market's domain, RoundRecord under
/// the schedule log's, RegisterNode under the stake manager's.
library TypedDataLib {
    bytes32 internal constant RESULT_TYPEHASH =
        keccak256("Result(bytes32 requestId,bytes32 resultHash,uint96 reward,address relayer,uint64 round)");
    bytes32 internal constant RESULT_SET_TYPEHASH =
        keccak256("ResultSet(address relayer,uint64 round,bytes32[] results)");
    bytes32 internal constant ACCEPT_TYPEHASH =
        keccak256("Accept(bytes32 requestId,address relayer,uint64 round,uint40 deadline)");
    bytes32 internal constant ASSIGNMENT_TYPEHASH = keccak256(
        "Assignment(bytes32 requestId,address relayer,address node,uint64 round,uint96 reward,uint40 deadline)"
    );
    bytes32 internal constant RELEASE_TYPEHASH = keccak256("Release(bytes32 requestId,uint40 validUntil)");
    bytes32 internal constant ROUND_RECORD_TYPEHASH = keccak256(
        "RoundRecord(uint64 round,bytes32 decisionsRoot,bytes32 snapshotHash,bytes32 policyHash,uint64 anchorBlock,bytes32 anchorHash,uint32 assigned,uint32 skipped,uint32 tooLate)"
    );
    bytes32 internal constant REGISTER_NODE_TYPEHASH = keccak256("RegisterNode(address key,address owner)");
    bytes32 internal constant SUBMITTER_TYPEHASH =
        keccak256("Submitter(address relayer,address submitter,uint40 validUntil)");
    bytes32 internal constant REQUEST_PARAMS_TYPEHASH = keccak256(
        "RequestParams(address relayer,bytes32 modelId,bytes32 promptHash,uint64 salt,uint40 deadline,uint32 promptBytes,uint24 maxOutputTokens,uint24 callbackGas,uint8 lane,bool batchable,bool inlineResult,uint8 mode,uint8 k,uint8 n,address verifier,uint80 maxReward,uint80 gasBudget,uint80 priorityFee)"
    );
    bytes32 internal constant REQUEST_FOR_TYPEHASH = keccak256(
        "RequestFor(RequestParams params,address requester,uint96 relayerFee,uint40 validUntil)RequestParams(address relayer,bytes32 modelId,bytes32 promptHash,uint64 salt,uint40 deadline,uint32 promptBytes,uint24 maxOutputTokens,uint24 callbackGas,uint8 lane,bool batchable,bool inlineResult,uint8 mode,uint8 k,uint8 n,address verifier,uint80 maxReward,uint80 gasBudget,uint80 priorityFee)"
    );

    /// `reward` and `round` must be clean; callers pass values that the ABI decoder has checked.
    function hashResult(bytes32 requestId, bytes32 resultHash, uint256 reward, address relayer, uint64 round)
        internal
        pure
        returns (bytes32 hash)
    {
        bytes32 typehash = RESULT_TYPEHASH;
        // Once per item of a batch: built above the free pointer and not kept, so that memory does not grow.
        assembly ("memory-safe") {
            let ptr := mload(0x40)
            mstore(ptr, typehash)
            mstore(add(ptr, 0x20), requestId)
            mstore(add(ptr, 0x40), resultHash)
            mstore(add(ptr, 0x60), reward)
            mstore(add(ptr, 0x80), relayer)
            mstore(add(ptr, 0xa0), round)
            hash := keccak256(ptr, 0xc0)
        }
    }

    function hashResultSet(address relayer, uint64 round, bytes32[] memory results) internal pure returns (bytes32) {
        return keccak256(abi.encode(RESULT_SET_TYPEHASH, relayer, round, keccak256(abi.encodePacked(results))));
    }

    function hashAccept(bytes32 requestId, address relayer, uint64 round, uint40 deadline)
        internal
        pure
        returns (bytes32)
    {
        return keccak256(abi.encode(ACCEPT_TYPEHASH, requestId, relayer, round, deadline));
    }

    function hashAssignment(Assignment calldata a) internal pure returns (bytes32) {
        return keccak256(abi.encode(ASSIGNMENT_TYPEHASH, a.requestId, a.relayer, a.node, a.round, a.reward, a.deadline));
    }

    function hashRelease(bytes32 requestId, uint40 validUntil) internal pure returns (bytes32) {
        return keccak256(abi.encode(RELEASE_TYPEHASH, requestId, validUntil));
    }

    function hashRoundRecord(RoundRecord calldata record) internal pure returns (bytes32) {
        return keccak256(abi.encode(ROUND_RECORD_TYPEHASH, record));
    }

    /// The words of `params` are hashed as they are: what is beyond a field's width is refused where they are packed.
    function hashRequestFor(RequestParams calldata params, address requester, uint96 relayerFee, uint40 validUntil)
        internal
        pure
        returns (bytes32)
    {
        bytes32 typehash = REQUEST_PARAMS_TYPEHASH;
        bytes32 hash;
        assembly ("memory-safe") {
            let ptr := mload(0x40)
            mstore(ptr, typehash)
            calldatacopy(add(ptr, 0x20), params, 0x240)
            hash := keccak256(ptr, 0x260)
        }
        return keccak256(abi.encode(REQUEST_FOR_TYPEHASH, hash, requester, relayerFee, validUntil));
    }

    function hashSubmitter(address relayer, address submitter, uint40 validUntil) internal pure returns (bytes32) {
        return keccak256(abi.encode(SUBMITTER_TYPEHASH, relayer, submitter, validUntil));
    }

    function hashRegisterNode(address key, address owner) internal pure returns (bytes32) {
        return keccak256(abi.encode(REGISTER_NODE_TYPEHASH, key, owner));
    }
}
