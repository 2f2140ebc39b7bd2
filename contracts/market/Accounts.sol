// SPDX-License-Identifier: MIT
pragma solidity ^0.8.30;

import {MarketBase} from "./MarketBase.sol";

/// @notice Credit: what is paid in, and what anybody may have paid out to whom it belongs.
abstract contract Accounts is MarketBase {
    function deposit(address account) external payable {
        if (msg.value == 0) revert NothingSent();
        _credit(account, msg.value);
        emit Deposited(account, msg.sender, msg.value);
    }

    function withdraw(address account, uint256 amount) external {
        _withdraw(account, account, amount);
    }

    function withdrawTo(address to, uint256 amount) external {
        _withdraw(msg.sender, to, amount);
    }

    function accountOf(address account) external view returns (uint128 balance, uint64 settledCount) {
        Account memory a = _accounts[account];
        return (a.balance, a.settledCount);
    }

    function _withdraw(address from, address to, uint256 amount) private {
        _debit(from, amount);
        emit Withdrawn(from, to, amount);
        (bool ok,) = to.call{value: amount}("");
        if (!ok) revert TransferFailed(to, amount);
    }
}
