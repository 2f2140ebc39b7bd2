// SPDX-License-Identifier: MIT
pragma solidity ^0.8.30;

/// Test helper: an account with code. It forwards calls, and does with received wei what it is told to.
contract Wallet {
    bool public refuses;
    address public reenters;
    bytes public reentry;
    bool public reentryWorked;

    function setRefuses(bool value) external {
        refuses = value;
    }

    /// On receipt of wei, `target` is called once with `data`.
    function setReentry(address target, bytes calldata data) external {
        reenters = target;
        reentry = data;
    }

    function forward(address target, bytes calldata data) external payable {
        (bool ok, bytes memory answer) = target.call{value: msg.value}(data);
        if (!ok) {
            assembly ("memory-safe") {
                revert(add(answer, 0x20), mload(answer))
            }
        }
    }

    receive() external payable {
        require(!refuses, "refused");
        address target = reenters;
        if (target == address(0)) return;
        reenters = address(0);
        (reentryWorked,) = target.call(reentry);
    }
}
