// SPDX-License-Identifier: MIT
pragma solidity ^0.8.30;

import {IInferenceMarket} from "../interfaces/IInferenceMarket.sol";
import {IERC1271} from "@openzeppelin/contracts/interfaces/IERC1271.sol";
import {ECDSA} from "@openzeppelin/contracts/utils/cryptography/ECDSA.sol";

/// @title Who signed.
library SignatureLib {
    /// 0 when it cannot be told. Malleable and short signatures are nobody's.
    function signerOf(bytes32 digest, bytes calldata signature) internal pure returns (address signer) {
        (signer,,) = ECDSA.tryRecoverCalldata(digest, signature);
    }

    function isSignedBy(address key, bytes32 digest, bytes calldata signature) internal pure returns (bool) {
        address signer = signerOf(digest, signature);
        return signer != address(0) && signer == key;
    }

    /// The account's key first (so also an EIP-7702 account's), then its contract by ERC-1271, with at most `gasLimit`.
    function requireSigned(address account, bytes32 digest, bytes calldata signature, uint256 gasLimit) internal view {
        if (isSignedBy(account, digest, signature)) return;
        bytes memory data = abi.encodeCall(IERC1271.isValidSignature, (digest, signature));
        bool ok;
        bytes32 answer;
        // One word is copied of what comes back, however much it is.
        assembly ("memory-safe") {
            ok := staticcall(gasLimit, account, add(data, 0x20), mload(data), 0x00, 0x20)
            ok := and(ok, gt(returndatasize(), 0x1f))
            answer := mload(0x00)
        }
        if (!ok || answer != bytes32(IERC1271.isValidSignature.selector)) {
            revert IInferenceMarket.InvalidSignature(account);
        }
    }
}
