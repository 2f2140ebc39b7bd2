// SPDX-License-Identifier: MIT
pragma solidity ^0.8.30;

import {Request} from "../Types.sol";
import {IResultVerifier} from "../interfaces/IResultVerifier.sol";

/// Test helper: a verifier that wants a proof of exactly what it is asked about, unless told to misbehave.
contract TestVerifier is IResultVerifier {
    enum Behaviour {
        HONEST,
        WRONG_MAGIC,
        SHORT_ANSWER,
        REVERTS,
        BURNS_ALL_GAS,
        RETURNS_MUCH
    }

    Behaviour public behaviour;

    function set(Behaviour value) external {
        behaviour = value;
    }

    function proofOf(Request calldata request, bytes32 requestId, address node, bytes32 resultHash)
        public
        pure
        returns (bytes memory)
    {
        return abi.encode(request, requestId, node, resultHash);
    }

    function verifyInference(
        Request calldata request,
        bytes32 requestId,
        address node,
        bytes32 resultHash,
        bytes calldata proof
    ) external view returns (bytes4) {
        Behaviour b = behaviour;
        if (b == Behaviour.REVERTS) revert();
        if (b == Behaviour.WRONG_MAGIC) return 0xffffffff;
        if (b == Behaviour.BURNS_ALL_GAS) {
            while (true) {}
        }
        bytes32 magic = bytes32(IResultVerifier.verifyInference.selector);
        if (b == Behaviour.SHORT_ANSWER) {
            assembly ("memory-safe") {
                mstore(0, magic)
                return(0, 4)
            }
        }
        if (b == Behaviour.RETURNS_MUCH) {
            assembly ("memory-safe") {
                mstore(0, magic)
                return(0, 200000)
            }
        }
        bool ok = keccak256(proof) == keccak256(proofOf(request, requestId, node, resultHash));
        return ok ? IResultVerifier.verifyInference.selector : bytes4(0);
    }
}
