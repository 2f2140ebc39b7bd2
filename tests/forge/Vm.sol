// SPDX-License-Identifier: MIT
pragma solidity ^0.8.30;

/// The cheatcodes that these tests use.
interface Vm {
    struct Log {
        bytes32[] topics;
        bytes data;
        address emitter;
    }

    function addr(uint256 key) external pure returns (address);
    function assertEq(uint256 left, uint256 right, string calldata message) external pure;
    function assertEq(address left, address right, string calldata message) external pure;
    function assertEq(bytes32 left, bytes32 right, string calldata message) external pure;
    function assertEq(bytes calldata left, bytes calldata right, string calldata message) external pure;
    function assertGe(uint256 left, uint256 right, string calldata message) external pure;
    function assertLe(uint256 left, uint256 right, string calldata message) external pure;
    function assertTrue(bool condition, string calldata message) external pure;
    function assume(bool condition) external pure;
    function chainId(uint256 id) external;
    function computeCreateAddress(address deployer, uint256 nonce) external pure returns (address);
    function deal(address account, uint256 balance) external;
    function deployCode(string calldata artifact) external returns (address);
    function deployCode(string calldata artifact, bytes calldata arguments) external returns (address);
    function etch(address account, bytes calldata code) external;
    function expectRevert(bytes calldata data) external;
    function fee(uint256 baseFee) external;
    function getBlockTimestamp() external view returns (uint256);
    function getNonce(address account) external view returns (uint64);
    function getRecordedLogs() external returns (Log[] memory);
    function label(address account, string calldata name) external;
    function load(address account, bytes32 slot) external view returns (bytes32);
    function prank(address sender) external;
    function recordLogs() external;
    function revertToState(uint256 id) external returns (bool);
    function roll(uint256 blockNumber) external;
    function sign(uint256 key, bytes32 digest) external pure returns (uint8 v, bytes32 r, bytes32 s);
    function snapshotState() external returns (uint256 id);
    function startPrank(address sender) external;
    function stopPrank() external;
    function store(address account, bytes32 slot, bytes32 value) external;
    function toString(uint256 value) external pure returns (string memory);
    function txGasPrice(uint256 price) external;
    function warp(uint256 timestamp) external;
}

Vm constant VM = Vm(address(uint160(uint256(keccak256("hevm cheat code")))));
