// SPDX-License-Identifier: MIT
pragma solidity ^0.8.30;

import {Request} from "../Types.sol";
import {IResultVerifier} from "../interfaces/IResultVerifier.sol";
import {TimelockedOwnable} from "../market/TimelockedOwnable.sol";
import {Ownable} from "@openzeppelin/contracts/access/Ownable.sol";
import {ECDSA} from "@openzeppelin/contracts/utils/cryptography/ECDSA.sol";
import {EIP712} from "@openzeppelin/contracts/utils/cryptography/EIP712.sol";
import {IERC165} from "@openzeppelin/contracts/utils/introspection/IERC165.sol";

/// @title A verifier that trusts keys which a registrar vouches for.
/// @notice A key lives where the registrar has seen that it only signs what a certain model said, such as a measured
/// enclave. It is vouched for until a time and for one model, and can be revoked at once. What a requester trusts is the
/// registrar (the owner); a key's attestation says nothing of any other.
contract AttestedKeyVerifier is IResultVerifier, IERC165, EIP712, TimelockedOwnable {
    struct Attested {
        bytes32 modelId;
        uint40 validUntil; // 0 = never vouched for, or revoked
    }

    bytes32 public constant ATTESTATION_TYPEHASH =
        keccak256("Attestation(bytes32 requestId,address node,bytes32 resultHash)");

    mapping(address key => Attested) private _attested;

    event KeyAttested(address indexed key, bytes32 indexed modelId, uint40 validUntil);
    event KeyRevoked(address indexed key);

    error InvalidKey(address key);
    error NotAttested(address key);
    error AlreadyExpired(uint40 validUntil, uint256 blockTimestamp);

    constructor(address registrar) EIP712("Headrace AttestedKeyVerifier", "1") Ownable(registrar) {}

    /// @notice Vouches for a key until a time, or changes for what and how long.
    function attest(address key, bytes32 modelId, uint40 validUntil) external onlyOwner {
        if (key == address(0)) revert InvalidKey(key);
        if (validUntil <= block.timestamp) revert AlreadyExpired(validUntil, block.timestamp);
        _attested[key] = Attested(modelId, validUntil);
        emit KeyAttested(key, modelId, validUntil);
    }

    /// @notice Ends a key's standing at once: results that are not settled yet are not paid on its word.
    function revoke(address key) external onlyOwner {
        if (_attested[key].validUntil == 0) revert NotAttested(key);
        delete _attested[key];
        emit KeyRevoked(key);
    }

    /// @inheritdoc IResultVerifier
    /// @param proof The key's 65-byte signature over Attestation(requestId, node, resultHash), under this contract's domain.
    /// The request's id covers the chain, the market and all of the request.
    function verifyInference(
        Request calldata request,
        bytes32 requestId,
        address node,
        bytes32 resultHash,
        bytes calldata proof
    ) external view returns (bytes4 magic) {
        (address key,,) = ECDSA.tryRecoverCalldata(digestOf(requestId, node, resultHash), proof);
        Attested memory attested = _attested[key];
        bool ok = key != address(0) && block.timestamp <= attested.validUntil && attested.modelId == request.modelId;
        return ok ? IResultVerifier.verifyInference.selector : bytes4(0);
    }

    /// @notice What an attested key signs.
    function digestOf(bytes32 requestId, address node, bytes32 resultHash) public view returns (bytes32) {
        return _hashTypedDataV4(keccak256(abi.encode(ATTESTATION_TYPEHASH, requestId, node, resultHash)));
    }

    /// @notice For which model a key is vouched for, and until when; 0 = not at all.
    function attestedOf(address key) external view returns (bytes32 modelId, uint40 validUntil) {
        Attested memory attested = _attested[key];
        return (attested.modelId, attested.validUntil);
    }

    function supportsInterface(bytes4 interfaceId) external pure returns (bool) {
        return interfaceId == type(IResultVerifier).interfaceId || interfaceId == type(IERC165).interfaceId;
    }
}
