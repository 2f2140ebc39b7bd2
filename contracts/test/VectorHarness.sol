// SPDX-License-Identifier: MIT
pragma solidity ^0.8.30;

import {Assignment, Decision, Request, RequestParams, RoundRecord} from "../Types.sol";
import {DecisionLib} from "../libraries/DecisionLib.sol";
import {RequestLib} from "../libraries/RequestLib.sol";
import {TypedDataLib} from "../libraries/TypedDataLib.sol";
import {ECDSA} from "@openzeppelin/contracts/utils/cryptography/ECDSA.sol";
import {EIP712} from "@openzeppelin/contracts/utils/cryptography/EIP712.sol";

/// Test helper: the libraries' functions, callable one by one. Its code put at another address signs for that address's
/// domain, as OpenZeppelin's EIP712 builds it anew there.
contract VectorHarness is EIP712 {
    constructor() EIP712("Headrace", "1") {}

    /* REQUESTS */

    function pack(RequestParams calldata params, address requester) external pure returns (Request memory) {
        return RequestLib.pack(params, requester);
    }

    function idOf(Request memory request, address market) external view returns (bytes32) {
        return RequestLib.idOf(request, market);
    }

    function idOfCalldata(Request calldata request, address market) external view returns (bytes32) {
        return RequestLib.idOfCalldata(request, market);
    }

    function escrowOfParams(RequestParams calldata params) external pure returns (uint256) {
        return RequestLib.escrowOf(params);
    }

    function escrowOfRequest(Request calldata request) external pure returns (uint256) {
        return RequestLib.escrowOf(request);
    }

    function amountsOf(uint256 amounts)
        external
        pure
        returns (uint256 maxReward, uint256 gasBudget, uint256 priorityFee)
    {
        return RequestLib.amountsOf(amounts);
    }

    function flagsOf(uint256 terms) external pure returns (uint256) {
        return RequestLib.flagsOf(terms);
    }

    /* TYPED DATA */

    function hashResult(bytes32 requestId, bytes32 resultHash, uint96 reward, address relayer, uint64 round)
        external
        pure
        returns (bytes32)
    {
        return TypedDataLib.hashResult(requestId, resultHash, reward, relayer, round);
    }

    function hashResultSet(address relayer, uint64 round, bytes32[] memory results) external pure returns (bytes32) {
        return TypedDataLib.hashResultSet(relayer, round, results);
    }

    function hashAccept(bytes32 requestId, address relayer, uint64 round, uint40 deadline)
        external
        pure
        returns (bytes32)
    {
        return TypedDataLib.hashAccept(requestId, relayer, round, deadline);
    }

    function hashAssignment(Assignment calldata assignment) external pure returns (bytes32) {
        return TypedDataLib.hashAssignment(assignment);
    }

    function hashRelease(bytes32 requestId, uint40 validUntil) external pure returns (bytes32) {
        return TypedDataLib.hashRelease(requestId, validUntil);
    }

    function hashRoundRecord(RoundRecord calldata record) external pure returns (bytes32) {
        return TypedDataLib.hashRoundRecord(record);
    }

    function hashSubmitter(address relayer, address submitter, uint40 validUntil) external pure returns (bytes32) {
        return TypedDataLib.hashSubmitter(relayer, submitter, validUntil);
    }

    function hashRegisterNode(address key, address owner) external pure returns (bytes32) {
        return TypedDataLib.hashRegisterNode(key, owner);
    }

    function hashRequestFor(RequestParams calldata params, address requester, uint96 relayerFee, uint40 validUntil)
        external
        pure
        returns (bytes32)
    {
        return TypedDataLib.hashRequestFor(params, requester, relayerFee, validUntil);
    }

    function digestOf(bytes32 structHash) external view returns (bytes32) {
        return _hashTypedDataV4(structHash);
    }

    /// 0 when the contracts take it for nobody's signature.
    function signerOf(bytes32 digest, bytes calldata signature) external pure returns (address signer) {
        (signer,,) = ECDSA.tryRecoverCalldata(digest, signature);
    }

    /* DECISIONS */

    function leafOf(Decision calldata decision) external pure returns (bytes32) {
        return DecisionLib.leafOf(decision);
    }

    function isProven(bytes32 root, bytes32 leaf, uint256 index, uint256 count, bytes32[] calldata proof)
        external
        pure
        returns (bool)
    {
        return DecisionLib.isProven(root, leaf, index, count, proof);
    }

    function depthOf(uint256 count) external pure returns (uint256) {
        return DecisionLib.depthOf(count);
    }
}
