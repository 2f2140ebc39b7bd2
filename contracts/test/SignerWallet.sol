// SPDX-License-Identifier: MIT
pragma solidity ^0.8.30;

import {IERC1271} from "@openzeppelin/contracts/interfaces/IERC1271.sol";
import {ECDSA} from "@openzeppelin/contracts/utils/cryptography/ECDSA.sol";

/// Test helper: a contract account whose owner's key signs for it (ERC-1271), unless told to misbehave.
contract SignerWallet is IERC1271 {
    enum Behaviour {
        HONEST,
        WRONG_MAGIC,
        SHORT_ANSWER,
        REVERTS,
        BURNS_ALL_GAS,
        RETURNS_MUCH
    }

    address public immutable OWNER;
    Behaviour public behaviour;

    constructor(address owner) payable {
        OWNER = owner;
    }

    receive() external payable {}

    function set(Behaviour value) external {
        behaviour = value;
    }

    function isValidSignature(bytes32 hash, bytes calldata signature) external view returns (bytes4) {
        Behaviour b = behaviour;
        if (b == Behaviour.REVERTS) revert();
        if (b == Behaviour.WRONG_MAGIC) return 0xffffffff;
        if (b == Behaviour.BURNS_ALL_GAS) {
            while (true) {}
        }
        bytes32 magic = bytes32(IERC1271.isValidSignature.selector);
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
        (address signer,,) = ECDSA.tryRecoverCalldata(hash, signature);
        return signer == OWNER ? IERC1271.isValidSignature.selector : bytes4(0xffffffff);
    }
}
