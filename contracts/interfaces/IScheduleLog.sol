// SPDX-License-Identifier: MIT
pragma solidity ^0.8.30;

import {Decision, RoundRecord} from "../Types.sol";

/// @title The record of what relayers decided.
/// @notice Each relayer's records form a chain: the head of a round covers all before it.
interface IScheduleLog {
    event RoundRecorded(address indexed relayer, uint64 indexed round, RoundRecord record, bytes32 head);

    /// @notice Rounds are recorded one after the other: `round` follows on no recorded round.
    error RoundOutOfOrder(address relayer, uint64 round);
    error RoundAlreadyRecorded(address relayer, uint64 round);
    error NotBonded(address relayer);
    error InvalidSignature(address relayer);
    error NothingAssigned(uint64 round);
    /// @notice A field has bits beyond its width.
    error MalformedRecord();

    /// @notice Closes a round.
    /// @param relayerSignature Empty when the relayer itself calls; else its EIP-712 signature over the record.
    function recordRound(address relayer, RoundRecord calldata record, bytes calldata relayerSignature) external;

    /// @notice Block time at which a round was recorded; 0 = not yet.
    function recordedAt(address relayer, uint64 round) external view returns (uint40);
    /// @notice The chained digest of a round, its low 40 bits zero; 0 = not recorded.
    function headOf(address relayer, uint64 round) external view returns (bytes32);
    /// @notice The first round that is not recorded. Found by search: for reading, not for calling from contracts.
    function nextRound(address relayer) external view returns (uint64);
    /// @notice Whether `record` is what was recorded and `decision` is its leaf number `index`.
    function verifyDecision(
        address relayer,
        RoundRecord calldata record,
        Decision calldata decision,
        uint256 index,
        bytes32[] calldata proof
    ) external view returns (bool);
}
