// SPDX-License-Identifier: MIT
pragma solidity ^0.8.30;

import {ECDSA} from "@openzeppelin/contracts/utils/cryptography/ECDSA.sol";
import {EIP712} from "@openzeppelin/contracts/utils/cryptography/EIP712.sol";
import {Decision, RoundRecord} from "./Types.sol";
import {IScheduleLog} from "./interfaces/IScheduleLog.sol";
import {IStakeManager} from "./interfaces/IStakeManager.sol";
import {DecisionLib} from "./libraries/DecisionLib.sol";
import {TypedDataLib} from "./libraries/TypedDataLib.sol";

/// @notice See IScheduleLog.
contract ScheduleLog is IScheduleLog, EIP712 {
    IStakeManager public immutable STAKES;

    uint256 private constant TIME_MASK = type(uint40).max;

    // One word a round: 216 bits of the chained digest, then the block time of its record. The word of the round before
    // is at once the order check and the head of the chain, so no second slot is written.
    mapping(address relayer => mapping(uint64 round => uint256)) private _rounds;

    constructor(IStakeManager stakes) EIP712("Headrace", "1") {
        STAKES = stakes;
    }

    function recordRound(address relayer, RoundRecord calldata record, bytes calldata relayerSignature) external {
        _requireRelayer(relayer, record, relayerSignature);
        uint64 round = record.round;
        if (record.assigned == 0) revert NothingAssigned(round);
        if (_rounds[relayer][round] != 0) revert RoundAlreadyRecorded(relayer, round);
        bytes32 head = _chain(relayer, record);
        _rounds[relayer][round] = uint256(head) | block.timestamp;
        emit RoundRecorded(relayer, round, record, head);
    }

    function recordedAt(address relayer, uint64 round) external view returns (uint40) {
        return uint40(_rounds[relayer][round]);
    }

    function headOf(address relayer, uint64 round) external view returns (bytes32) {
        return _head(relayer, round);
    }

    function nextRound(address relayer) external view returns (uint64) {
        uint64 high = 1;
        while (_rounds[relayer][high] != 0) high *= 2;
        uint64 low = high / 2 + 1;
        while (low < high) {
            uint64 middle = (low + high) / 2;
            if (_rounds[relayer][middle] == 0) high = middle;
            else low = middle + 1;
        }
        return high;
    }

    function verifyDecision(
        address relayer,
        RoundRecord calldata record,
        Decision calldata decision,
        uint256 index,
        bytes32[] calldata proof
    ) external view returns (bool) {
        bytes32 head = _head(relayer, record.round);
        if (head == 0 || head != _chain(relayer, record)) return false;
        uint256 count = uint256(record.assigned) + record.skipped + record.tooLate;
        return DecisionLib.isProven(record.decisionsRoot, DecisionLib.leafOf(decision), index, count, proof);
    }

    function _requireRelayer(address relayer, RoundRecord calldata record, bytes calldata signature) private view {
        if (!STAKES.isBonded(relayer)) revert NotBonded(relayer);
        if (signature.length == 0 && msg.sender == relayer) return;
        bytes32 digest = _hashTypedDataV4(TypedDataLib.hashRoundRecord(record));
        (address signer,,) = ECDSA.tryRecoverCalldata(digest, signature);
        if (signer != relayer) revert InvalidSignature(relayer);
    }

    /// The head after `record`. Without times, so that a record made again after a reorg gives the same head.
    function _chain(address relayer, RoundRecord calldata record) private view returns (bytes32) {
        uint64 round = record.round;
        if (round == 0) revert RoundOutOfOrder(relayer, round);
        bytes32 previous = _head(relayer, round - 1);
        if (round > 1 && previous == 0) revert RoundOutOfOrder(relayer, round);
        return bytes32(uint256(keccak256(abi.encode(previous, relayer, record))) & ~TIME_MASK);
    }

    function _head(address relayer, uint64 round) private view returns (bytes32) {
        return bytes32(_rounds[relayer][round] & ~TIME_MASK);
    }
}
