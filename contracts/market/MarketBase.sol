// SPDX-License-Identifier: MIT
pragma solidity ^0.8.30;

import {IInferenceMarket} from "../interfaces/IInferenceMarket.sol";
import {IScheduleLog} from "../interfaces/IScheduleLog.sol";
import {IStakeManager} from "../interfaces/IStakeManager.sol";
import {TimelockedOwnable} from "./TimelockedOwnable.sol";
import {Ownable} from "@openzeppelin/contracts/access/Ownable.sol";
import {ReentrancyGuardTransient} from "@openzeppelin/contracts/utils/ReentrancyGuardTransient.sol";
import {EIP712} from "@openzeppelin/contracts/utils/cryptography/EIP712.sol";
import {Math} from "@openzeppelin/contracts/utils/math/Math.sol";
import {SafeCast} from "@openzeppelin/contracts/utils/math/SafeCast.sol";

/// @notice What the market keeps, its terms, and the accounts that all else credits.
abstract contract MarketBase is IInferenceMarket, EIP712, TimelockedOwnable, ReentrancyGuardTransient {
    using SafeCast for uint256;

    /// What settlement pays for, in gas; held to the gas snapshot by a test.
    struct GasTerms {
        uint256 tipCap; // wei a gas above the base fee that is paid for at most
        uint256 fixedGas; // of a batch and its round's record, shared by its items
        uint256 itemGas; // of one item
        uint256 nodeGas; // of each further node of a set (quorum), shared by its items
        uint256 assignedGas; // of a whole `submitAssigned`
    }

    /// What a node must have behind it before it may earn more than `maxReward` for a result.
    struct ProbationTerms {
        uint256 maxReward;
        uint64 settledCount;
        uint40 duration;
    }

    /// See WordLib.
    struct Word {
        uint256 packed;
    }

    struct Account {
        uint128 balance;
        uint64 settledCount;
    }

    uint256 public constant GRACE = 300;
    uint256 public constant MIN_TTL = 10;
    uint256 public constant MAX_TTL = 1 days;
    uint256 public constant MAX_PAUSE = 7 days;
    uint256 public constant MAX_INLINE_PROMPT = 8192;
    uint256 public constant MAX_QUORUM = 16;
    uint256 public constant MAX_CALLBACK_GAS = 2_000_000;
    uint256 public constant VERIFIER_GAS = 400_000;
    uint256 public constant WALLET_SIGNATURE_GAS = 400_000;
    uint256 public constant GAS_PER_RESULT_BYTE = 40;
    uint256 public constant RELAYER_FEE_SHARE_BPS = 2000;
    uint256 public constant RELAYER_SAVING_SHARE_BPS = 1000;
    uint256 internal constant BPS = 10_000;

    IStakeManager public immutable STAKES;
    IScheduleLog public immutable SCHEDULE_LOG;
    uint256 public immutable TIP_CAP;
    uint256 public immutable FIXED_GAS;
    uint256 public immutable ITEM_GAS;
    uint256 public immutable NODE_GAS;
    uint256 public immutable ASSIGNED_GAS;
    uint256 public immutable PROBATION_MAX_REWARD;
    uint64 public immutable PROBATION_SETTLED_COUNT;
    uint40 public immutable PROBATION_DURATION;

    uint40 internal _pausedUntil; // shares the pending owner's slot
    mapping(bytes32 requestId => Word) internal _words;
    mapping(address account => Account) internal _accounts;

    constructor(
        address owner,
        IStakeManager stakes,
        IScheduleLog scheduleLog,
        GasTerms memory gasTerms,
        ProbationTerms memory probation
    ) EIP712("Headrace", "1") Ownable(owner) {
        uint256 delay = stakes.UNBOND_DELAY();
        if (delay <= MAX_TTL + GRACE) revert UnbondDelayTooShort(delay, MAX_TTL + GRACE + 1);
        STAKES = stakes;
        SCHEDULE_LOG = scheduleLog;
        TIP_CAP = gasTerms.tipCap;
        FIXED_GAS = gasTerms.fixedGas;
        ITEM_GAS = gasTerms.itemGas;
        NODE_GAS = gasTerms.nodeGas;
        ASSIGNED_GAS = gasTerms.assignedGas;
        PROBATION_MAX_REWARD = probation.maxReward;
        PROBATION_SETTLED_COUNT = probation.settledCount;
        PROBATION_DURATION = probation.duration;
    }

    /// What relayers may charge a unit of gas: never more than they pay, nor than `TIP_CAP` above the base fee.
    function _gasPrice() internal view returns (uint256) {
        return Math.min(tx.gasprice, block.basefee + TIP_CAP);
    }

    function _credit(address account, uint256 amount) internal {
        _accounts[account].balance = (_accounts[account].balance + amount).toUint128();
    }

    function _debit(address account, uint256 amount) internal {
        uint256 balance = _accounts[account].balance;
        if (balance < amount) revert BalanceShort(account, amount, balance);
        unchecked {
            _accounts[account].balance = uint128(balance - amount);
        }
    }

    /// Reverts when a call with `gas` would get less of it: 63/64 of what is left is the most that a call is given.
    /// @param spare Gas for what surrounds the call.
    function _requireGasFor(uint256 gas, uint256 spare) internal view {
        uint256 required = gas + gas / 63 + spare;
        if (gasleft() < required) revert InsufficientGas(required, gasleft());
    }

    // What an item allocates is dropped after it: memory's price grows with the square of its size, and the cost of a
    // result must not grow with the batch.
    function _freeMemory() internal pure returns (uint256 pointer) {
        assembly ("memory-safe") {
            pointer := mload(0x40)
        }
    }

    function _resetMemory(uint256 pointer) internal pure {
        assembly ("memory-safe") {
            mstore(0x40, pointer)
        }
    }
}
