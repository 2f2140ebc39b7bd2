// SPDX-License-Identifier: MIT
pragma solidity ^0.8.30;

import {Assignment, RequestParams, RoundRecord} from "../../contracts/Types.sol";
import {VM} from "./Vm.sol";

/// What is signed, written down a second time: nothing here comes from the contracts' own library.
abstract contract Signing {
    string private constant PARAMS_TYPE =
        "RequestParams(address relayer,bytes32 modelId,bytes32 promptHash,uint64 salt,uint40 deadline,uint32 promptBytes,uint24 maxOutputTokens,uint24 callbackGas,uint8 lane,bool batchable,bool inlineResult,uint8 mode,uint8 k,uint8 n,address verifier,uint80 maxReward,uint80 gasBudget,uint80 priorityFee)";

    function _sign(uint256 key, address verifyingContract, bytes32 structHash) internal view returns (bytes memory) {
        return _signDigest(key, _digest("Headrace", verifyingContract, structHash));
    }

    function _signDigest(uint256 key, bytes32 digest) internal pure returns (bytes memory) {
        (uint8 v, bytes32 r, bytes32 s) = VM.sign(key, digest);
        return abi.encodePacked(r, s, v);
    }

    function _digest(string memory name, address verifyingContract, bytes32 structHash)
        internal
        view
        returns (bytes32)
    {
        bytes32 domain = keccak256(
            abi.encode(
                keccak256("EIP712Domain(string name,string version,uint256 chainId,address verifyingContract)"),
                keccak256(bytes(name)),
                keccak256("1"),
                block.chainid,
                verifyingContract
            )
        );
        return keccak256(abi.encodePacked("\x19\x01", domain, structHash));
    }

    /* STRUCT HASHES */

    function _hashResult(bytes32 requestId, bytes32 resultHash, uint96 reward, address relayer, uint64 round)
        internal
        pure
        returns (bytes32)
    {
        bytes32 typehash = keccak256(
            "Result(bytes32 requestId,bytes32 resultHash,uint96 reward,address relayer,uint64 round)"
        );
        return keccak256(abi.encode(typehash, requestId, resultHash, reward, relayer, round));
    }

    function _hashResultSet(address relayer, uint64 round, bytes32[] memory results) internal pure returns (bytes32) {
        bytes32 typehash = keccak256("ResultSet(address relayer,uint64 round,bytes32[] results)");
        return keccak256(abi.encode(typehash, relayer, round, keccak256(abi.encodePacked(results))));
    }

    function _hashAccept(bytes32 requestId, address relayer, uint64 round, uint40 deadline)
        internal
        pure
        returns (bytes32)
    {
        bytes32 typehash = keccak256("Accept(bytes32 requestId,address relayer,uint64 round,uint40 deadline)");
        return keccak256(abi.encode(typehash, requestId, relayer, round, deadline));
    }

    function _hashAssignment(Assignment memory a) internal pure returns (bytes32) {
        bytes32 typehash = keccak256(
            "Assignment(bytes32 requestId,address relayer,address node,uint64 round,uint96 reward,uint40 deadline)"
        );
        return keccak256(abi.encode(typehash, a.requestId, a.relayer, a.node, a.round, a.reward, a.deadline));
    }

    function _hashRelease(bytes32 requestId, uint40 validUntil) internal pure returns (bytes32) {
        return keccak256(abi.encode(keccak256("Release(bytes32 requestId,uint40 validUntil)"), requestId, validUntil));
    }

    function _hashSubmitter(address relayer, address submitter, uint40 validUntil) internal pure returns (bytes32) {
        bytes32 typehash = keccak256("Submitter(address relayer,address submitter,uint40 validUntil)");
        return keccak256(abi.encode(typehash, relayer, submitter, validUntil));
    }

    function _hashRecord(RoundRecord memory record) internal pure returns (bytes32) {
        bytes32 typehash = keccak256(
            "RoundRecord(uint64 round,bytes32 decisionsRoot,bytes32 snapshotHash,bytes32 policyHash,uint64 anchorBlock,bytes32 anchorHash,uint32 assigned,uint32 skipped,uint32 tooLate)"
        );
        return keccak256(abi.encode(typehash, record));
    }

    function _hashRegisterNode(address key, address owner) internal pure returns (bytes32) {
        return keccak256(abi.encode(keccak256("RegisterNode(address key,address owner)"), key, owner));
    }

    function _hashRequestFor(RequestParams memory params, address requester, uint96 relayerFee, uint40 validUntil)
        internal
        pure
        returns (bytes32)
    {
        bytes32 typehash = keccak256(
            abi.encodePacked(
                "RequestFor(RequestParams params,address requester,uint96 relayerFee,uint40 validUntil)", PARAMS_TYPE
            )
        );
        bytes32 hashed = keccak256(abi.encodePacked(keccak256(bytes(PARAMS_TYPE)), abi.encode(params)));
        return keccak256(abi.encode(typehash, hashed, requester, relayerFee, validUntil));
    }

    function _hashAttestation(bytes32 requestId, address node, bytes32 resultHash) internal pure returns (bytes32) {
        bytes32 typehash = keccak256("Attestation(bytes32 requestId,address node,bytes32 resultHash)");
        return keccak256(abi.encode(typehash, requestId, node, resultHash));
    }
}
