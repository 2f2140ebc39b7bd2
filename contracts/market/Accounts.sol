// SPDX-License-Identifier: MIT
pragma solidity ^0.8.30;

import {MarketBase} from "./MarketBase.sol";

/// @notice Credit: what is paid in, and paid out to whom it belongs: on its word or, for contracts, on anybody's.
abstract contract Accounts is MarketBase {
    bytes3 private constant DELEGATION_PREFIX = 0xef0100; // EIP-7702
    uint256 private constant DELEGATION_BYTES = 23;

    function deposit(address account) external payable {
        if (msg.value == 0) revert NothingSent();
        _credit(account, msg.value);
        emit Deposited(account, msg.sender, msg.value);
    }

    function withdraw(address account, uint256 amount) external {
        if (msg.sender != account && _hasKey(account)) revert NotAccount(msg.sender, account);
        _withdraw(account, account, amount);
    }

    function withdrawTo(address to, uint256 amount) external {
        _withdraw(msg.sender, to, amount);
    }

    function accountOf(address account) external view returns (uint128 balance, uint64 settledCount) {
        Account memory a = _accounts[account];
        return (a.balance, a.settledCount);
    }

    /// Whether an account can withdraw for itself: it has no code, or only what EIP-7702 lends it.
    function _hasKey(address account) private view returns (bool) {
        uint256 size = account.code.length;
        if (size != DELEGATION_BYTES) return size == 0;
        bytes32 code;
        assembly ("memory-safe") {
            extcodecopy(account, 0x00, 0x00, 0x20)
            code := mload(0x00)
        }
        return bytes3(code) == DELEGATION_PREFIX;
    }

    function _withdraw(address from, address to, uint256 amount) private {
        _debit(from, amount);
        emit Withdrawn(from, to, amount);
        (bool ok,) = to.call{value: amount}("");
        if (!ok) revert TransferFailed(to, amount);
    }
}
