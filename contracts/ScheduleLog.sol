// SPDX-License-Identifier: MIT
pragma solidity ^0.8.30;

import {Decision, RoundRecord} from "./Types.sol";
import {IScheduleLog} from "./interfaces/IScheduleLog.sol";
import {IStakeManager} from "./interfaces/IStakeManager.sol";
import {DecisionLib} from "./libraries/DecisionLib.sol";
import {TypedDataLib} from "./libraries/TypedDataLib.sol";
import {ECDSA} from "@openzeppelin/contracts/utils/cryptography/ECDSA.sol";
import {EIP712} from "@openzeppelin/contracts/utils/cryptography/EIP712.sol";

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
        mapping(uint64 round => uint256) storage rounds = _rounds[relayer];
        if (rounds[round] != 0) revert RoundAlreadyRecorded(relayer, round);
        bytes32 head = _chain(rounds, relayer, record);
        rounds[round] = uint256(head) | block.timestamp;
        _logRecorded(relayer, record, head);
    }

    function recordedAt(address relayer, uint64 round) external view returns (uint40) {
        return uint40(_rounds[relayer][round]);
    }

    function headOf(address relayer, uint64 round) external view returns (bytes32) {
        return _headIn(_rounds[relayer][round]);
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
        mapping(uint64 round => uint256) storage rounds = _rounds[relayer];
        bytes32 head = _headIn(rounds[record.round]);
        if (head == 0 || head != _chain(rounds, relayer, record)) return false;
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

    /// emit RoundRecorded(relayer, record.round, record, head), its nine words copied as they are once they are found clean.
    function _logRecorded(address relayer, RoundRecord calldata record, bytes32 head) private {
        bytes32 topic = RoundRecorded.selector;
        uint256 beyond;
        assembly ("memory-safe") {
            let ptr := mload(0x40)
            calldatacopy(ptr, record, 0x120)
            // round and anchorBlock have 64 bits, the three counts 32
            beyond := or(
                shr(64, or(mload(ptr), mload(add(ptr, 0x80)))),
                shr(32, or(mload(add(ptr, 0xc0)), or(mload(add(ptr, 0xe0)), mload(add(ptr, 0x100)))))
            )
            mstore(add(ptr, 0x120), head)
            if iszero(beyond) { log3(ptr, 0x140, topic, relayer, mload(ptr)) }
        }
        if (beyond != 0) revert MalformedRecord();
    }

    /// The head after `record`. Without times, so that a record made again after a reorg gives the same head.
    function _chain(mapping(uint64 round => uint256) storage rounds, address relayer, RoundRecord calldata record)
        private
        view
        returns (bytes32)
    {
        uint64 round = record.round;
        if (round == 0) revert RoundOutOfOrder(relayer, round);
        bytes32 previous = _headIn(rounds[round - 1]);
        if (previous == 0 && round > 1) revert RoundOutOfOrder(relayer, round);
        bytes32 digest;
        // keccak256(abi.encode(previous, relayer, record)), the nine words of the record as they are: bits beyond a
        // field's width only make another digest, and are refused where the record is logged.
        assembly ("memory-safe") {
            let ptr := mload(0x40)
            mstore(ptr, previous)
            mstore(add(ptr, 0x20), relayer)
            calldatacopy(add(ptr, 0x40), record, 0x120)
            digest := keccak256(ptr, 0x160)
        }
        return bytes32(uint256(digest) & ~TIME_MASK);
    }

    function _headIn(uint256 word) private pure returns (bytes32) {
        return bytes32(word & ~TIME_MASK);
    }
}
