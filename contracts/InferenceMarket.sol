// SPDX-License-Identifier: MIT
pragma solidity ^0.8.30;

import {ItemStatus, Mode, Request, RequestParams, ResultItem, ResultRef, ResultSet, Status} from "./Types.sol";
import {IInferenceMarket} from "./interfaces/IInferenceMarket.sol";
import {IScheduleLog} from "./interfaces/IScheduleLog.sol";
import {IStakeManager} from "./interfaces/IStakeManager.sol";
import {RequestLib} from "./libraries/RequestLib.sol";
import {TypedDataLib} from "./libraries/TypedDataLib.sol";
import {Ownable, Ownable2Step} from "@openzeppelin/contracts/access/Ownable2Step.sol";
import {ECDSA} from "@openzeppelin/contracts/utils/cryptography/ECDSA.sol";
import {EIP712} from "@openzeppelin/contracts/utils/cryptography/EIP712.sol";
import {IERC165} from "@openzeppelin/contracts/utils/introspection/IERC165.sol";
import {Math} from "@openzeppelin/contracts/utils/math/Math.sol";
import {SafeCast} from "@openzeppelin/contracts/utils/math/SafeCast.sol";

/// @notice See IInferenceMarket.
contract InferenceMarket is IInferenceMarket, IERC165, EIP712, Ownable2Step {
    using RequestLib for Request;
    using SafeCast for uint256;

    /// What settlement pays relayers for, in gas; held to the gas snapshot by a test.
    struct GasTerms {
        uint256 tipCap; // wei a gas above the base fee that is paid for at most
        uint256 fixedGas; // of a batch and its round's record, shared by its items
        uint256 itemGas; // of one item in SIGNATURE mode
    }

    /// What a node must have behind it before it may earn more than `maxReward` for a result.
    struct ProbationTerms {
        uint256 maxReward;
        uint64 settledCount;
        uint40 duration;
    }

    /// One word a request. The top byte is the Status and is never zero again. PENDING: bits 0-95 added priority fee,
    /// 96-135 effective deadline. All other: the low 248 bits of a digest that names the status, so no word of one state
    /// passes for one of another.
    struct Word {
        uint256 packed;
    }

    struct Account {
        uint128 balance;
        uint64 settledCount;
    }

    /// What holds for all items of a set; built once, then only read and added to.
    struct SetContext {
        address relayer;
        uint64 round;
        address node;
        address payee;
        uint256 recordedAt;
        bool onProbation;
        uint256 chargePerItem; // wei
        uint256 chargePerResultByte;
        bytes fulfilled; // what the word of an item is the digest of; see _fulfilledWord
        uint256 nodeCredit;
        uint256 relayerCredit;
        uint64 settled;
        address requester; // whose refunds are being added up
        uint256 requesterCredit;
    }

    uint256 public constant GRACE = 300;
    uint256 public constant MIN_TTL = 10;
    uint256 public constant MAX_TTL = 1 days;
    uint256 public constant MAX_INLINE_PROMPT = 8192;
    uint256 public constant GAS_PER_RESULT_BYTE = 40;
    uint256 public constant RELAYER_FEE_SHARE_BPS = 2000;
    uint256 public constant RELAYER_SAVING_SHARE_BPS = 1000;
    uint256 private constant BPS = 10_000;

    IStakeManager public immutable STAKES;
    IScheduleLog public immutable SCHEDULE_LOG;
    uint256 public immutable TIP_CAP;
    uint256 public immutable FIXED_GAS;
    uint256 public immutable ITEM_GAS;
    uint256 public immutable PROBATION_MAX_REWARD;
    uint64 public immutable PROBATION_SETTLED_COUNT;
    uint40 public immutable PROBATION_DURATION;

    bool private _requestsPaused; // shares the pending owner's slot
    mapping(bytes32 requestId => Word) private _words;
    mapping(address account => Account) private _accounts;

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
        PROBATION_MAX_REWARD = probation.maxReward;
        PROBATION_SETTLED_COUNT = probation.settledCount;
        PROBATION_DURATION = probation.duration;
    }

    /* REQUESTS */

    function requestInference(RequestParams calldata params, bytes calldata prompt)
        external
        payable
        returns (bytes32 requestId)
    {
        if (_requestsPaused) revert RequestsPaused();
        Request memory request;
        uint256 escrow;
        (requestId, escrow) = _request(request, params, prompt);
        _collect(escrow);
    }

    function requestInferenceBatch(RequestParams[] calldata params, bytes[] calldata prompts)
        external
        payable
        returns (bytes32[] memory requestIds)
    {
        if (_requestsPaused) revert RequestsPaused();
        if (params.length == 0) revert EmptyBatch();
        if (prompts.length != params.length) revert LengthMismatch(params.length, prompts.length);
        requestIds = new bytes32[](params.length);
        uint256 escrow = 0;
        Request memory request;
        for (uint256 i = 0; i < params.length; ++i) {
            (bytes32 requestId, uint256 added) = _request(request, params[i], prompts[i]);
            requestIds[i] = requestId;
            unchecked {
                escrow += added; // numbers below 2^82, and far fewer than 2^174
            }
        }
        _collect(escrow);
    }

    function raisePriorityFee(bytes32 requestId) external payable {
        if (msg.value == 0) revert NothingSent();
        uint256 word = _words[requestId].packed;
        if (_statusIn(word) != Status.PENDING) revert NotPending(requestId, _statusIn(word));
        uint40 deadline = _deadlineIn(word);
        if (block.timestamp > deadline) revert DeadlinePassed(deadline, block.timestamp);
        uint256 total = (_feeAddedIn(word) + msg.value).toUint96();
        _words[requestId].packed = _pendingWord(total, deadline);
        emit PriorityFeeRaised(requestId, msg.value, total);
    }

    function cancel(Request calldata request) external {
        (bytes32 requestId, uint256 word) = _pendingOfCaller(request);
        if (block.timestamp >= _deadlineIn(word)) revert DeadlinePassed(_deadlineIn(word), block.timestamp);
        _words[requestId].packed = _pendingWord(_feeAddedIn(word), uint40(block.timestamp));
        emit CancelAnnounced(requestId, uint40(block.timestamp));
    }

    function cancelWithRelease(Request calldata request, uint40 validUntil, bytes calldata relayerSignature) external {
        (bytes32 requestId, uint256 word) = _pendingOfCaller(request);
        if (block.timestamp > validUntil) revert ReleaseExpired(validUntil, block.timestamp);
        bytes32 digest = _hashTypedDataV4(TypedDataLib.hashRelease(requestId, validUntil));
        (address signer,,) = ECDSA.tryRecoverCalldata(digest, relayerSignature);
        // An open race has no relayer whose word would bind the others.
        if (request.relayer == address(0) || signer != request.relayer) revert InvalidSignature(signer);
        _close(request, requestId, word, Status.CANCELLED);
    }

    function expire(Request[] calldata requests) external {
        for (uint256 i = 0; i < requests.length; ++i) {
            bytes32 requestId = requests[i].idOfCalldata(address(this));
            uint256 word = _words[requestId].packed;
            if (_statusIn(word) != Status.PENDING || block.timestamp <= _deadlineIn(word) + GRACE) continue;
            _close(requests[i], requestId, word, Status.EXPIRED);
        }
    }

    /* RESULTS */

    function submitResults(address relayer, ResultSet[] calldata sets) external {
        uint256 total = 0;
        for (uint256 i = 0; i < sets.length; ++i) {
            _requireWellFormed(sets[i], i);
            total += sets[i].items.length;
        }
        if (total == 0) revert EmptyBatch();
        uint256 gasPrice = _gasPrice();
        uint256 gasPerItem = FIXED_GAS / total + ITEM_GAS;
        uint256 relayerCredit = 0;
        for (uint256 i = 0; i < sets.length; ++i) {
            relayerCredit += _settleSet(relayer, sets[i], gasPrice, gasPerItem);
        }
        if (relayerCredit != 0) _credit(relayer, relayerCredit);
    }

    /* ACCOUNTS */

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

    /* OWNER */

    function setRequestsPaused(bool paused) external onlyOwner {
        _requestsPaused = paused;
        emit RequestsPausedSet(paused);
    }

    /* VIEWS */

    function escrowOf(RequestParams calldata params) external pure returns (uint256) {
        return RequestLib.escrowOf(params);
    }

    function packRequest(RequestParams calldata params, address requester) external pure returns (Request memory) {
        return RequestLib.pack(params, requester);
    }

    function requestIdOf(Request calldata request) external view returns (bytes32) {
        return request.idOfCalldata(address(this));
    }

    function statusOf(bytes32[] calldata requestIds) external view returns (Status[] memory statuses) {
        statuses = new Status[](requestIds.length);
        for (uint256 i = 0; i < requestIds.length; ++i) {
            statuses[i] = _statusIn(_words[requestIds[i]].packed);
        }
    }

    function pendingOf(bytes32 requestId) external view returns (uint96 priorityFeeAdded, uint40 effectiveDeadline) {
        uint256 word = _words[requestId].packed;
        if (_statusIn(word) != Status.PENDING) return (0, 0);
        return (uint96(_feeAddedIn(word)), _deadlineIn(word));
    }

    function verifyResult(bytes32 requestId, ResultRef calldata ref, bytes calldata result)
        external
        view
        returns (bool final_)
    {
        uint256 word = _words[requestId].packed;
        Status status = _statusIn(word);
        if (status != Status.FULFILLED && status != Status.FULFILLED_CALLBACK_FAILED) return false;
        if (word != _tagged(status, keccak256(abi.encode(status, requestId, ref)))) return false;
        return result.length == 0 || keccak256(result) == ref.resultHash;
    }

    function accountOf(address account) external view returns (uint128 balance, uint64 settledCount) {
        Account memory a = _accounts[account];
        return (a.balance, a.settledCount);
    }

    function gasChargeOf(Mode mode, uint256 resultBytes, uint256 batchSize) external view returns (uint256) {
        if (mode != Mode.SIGNATURE) revert UnsupportedMode(mode);
        if (batchSize == 0) revert EmptyBatch();
        return (FIXED_GAS / batchSize + ITEM_GAS + GAS_PER_RESULT_BYTE * resultBytes) * _gasPrice();
    }

    function requestsPaused() external view returns (bool) {
        return _requestsPaused;
    }

    function supportsInterface(bytes4 interfaceId) external pure returns (bool) {
        return interfaceId == type(IInferenceMarket).interfaceId || interfaceId == type(IERC165).interfaceId;
    }

    /* REQUEST INTERNALS */

    /// Takes the escrow from what was sent and, when that is short, from the caller's credit; credits what is over.
    function _collect(uint256 escrow) private {
        if (msg.value == escrow) return;
        if (msg.value > escrow) {
            _credit(msg.sender, msg.value - escrow);
            return;
        }
        uint256 balance = _accounts[msg.sender].balance;
        uint256 missing = escrow - msg.value;
        if (balance < missing) revert EscrowShort(escrow, msg.value + balance);
        _accounts[msg.sender].balance = uint128(balance - missing);
    }

    /// @param request Memory that is written over: a batch needs it once.
    function _request(Request memory request, RequestParams calldata params, bytes calldata prompt)
        private
        returns (bytes32 requestId, uint256 escrow)
    {
        uint256 amounts;
        uint256 terms;
        (amounts, terms, escrow) = RequestLib.packWords(params);
        _requireServable(params, terms, prompt);
        request.requester = msg.sender;
        request.relayer = params.relayer;
        request.modelId = params.modelId;
        request.promptHash = params.promptHash;
        request.amounts = amounts;
        request.terms = terms;
        // request.verifier stays zero, which _requireServable has checked.
        requestId = request.idOf(address(this));
        Word storage word = _words[requestId];
        if (word.packed != 0) revert RequestExists(requestId);
        word.packed = _pendingWord(0, RequestLib.deadlineOf(terms));
        emit InferenceRequested(requestId, msg.sender, request.relayer, request, prompt);
    }

    function _requireServable(RequestParams calldata params, uint256 terms, bytes calldata prompt) private view {
        uint40 deadline = RequestLib.deadlineOf(terms);
        unchecked {
            uint256 earliest = block.timestamp + MIN_TTL;
            uint256 latest = block.timestamp + MAX_TTL;
            if (deadline < earliest) revert DeadlineOutOfRange(deadline, earliest, latest);
            if (deadline > latest) revert DeadlineOutOfRange(deadline, earliest, latest);
        }
        if (terms & RequestLib.RESERVED_TERMS != 0) _refuseReserved(terms);
        uint256 promptBytes = RequestLib.promptBytesOf(terms);
        if (promptBytes == 0) revert InvalidTerms();
        if (RequestLib.maxOutputTokensOf(terms) == 0) revert InvalidTerms();
        if (params.verifier != address(0)) revert InvalidTerms();
        if (prompt.length == 0) return;
        if (prompt.length > MAX_INLINE_PROMPT) revert PromptTooLong(prompt.length, MAX_INLINE_PROMPT);
        if (prompt.length != promptBytes || keccak256(prompt) != params.promptHash) {
            revert PromptMismatch(params.promptHash, prompt.length);
        }
    }

    function _refuseReserved(uint256 terms) private pure {
        Mode mode = RequestLib.modeOf(terms);
        if (mode != Mode.SIGNATURE) revert UnsupportedMode(mode);
        uint24 callbackGas = RequestLib.callbackGasOf(terms);
        if (callbackGas != 0) revert UnsupportedCallback(callbackGas);
        revert InvalidTerms();
    }

    function _pendingOfCaller(Request calldata request) private view returns (bytes32 requestId, uint256 word) {
        if (msg.sender != request.requester) revert NotRequester(msg.sender, request.requester);
        requestId = request.idOfCalldata(address(this));
        word = _words[requestId].packed;
        if (_statusIn(word) != Status.PENDING) revert NotPending(requestId, _statusIn(word));
    }

    function _close(Request calldata request, bytes32 requestId, uint256 word, Status status) private {
        uint256 refund = request.escrowOf() + _feeAddedIn(word);
        _words[requestId].packed = _tagged(status, keccak256(abi.encode(status, requestId)));
        _credit(request.requester, refund);
        emit RequestClosed(requestId, request.requester, status, refund);
    }

    /* RESULT INTERNALS */

    /// Faults that only the submitter can make; all else is an item's own.
    function _requireWellFormed(ResultSet calldata set, uint256 index) private pure {
        uint256 n = set.items.length;
        uint256 signatures = set.signatures.length;
        if (
            n == 0 || set.nodes.length != 1 || (signatures != 1 && signatures != n)
                || (set.results.length != 0 && set.results.length != n)
                || (set.proofs.length != 0 && set.proofs.length != n)
        ) revert MalformedSet(index);
    }

    function _settleSet(address relayer, ResultSet calldata set, uint256 gasPrice, uint256 gasPerItem)
        private
        returns (uint256)
    {
        SetContext memory ctx = _contextOf(relayer, set, gasPrice, gasPerItem);
        ResultItem[] calldata items = set.items;
        bytes32[] memory requestIds = new bytes32[](items.length);
        bytes32[] memory results = new bytes32[](items.length);
        for (uint256 i = 0; i < items.length; ++i) {
            ResultItem calldata item = items[i];
            bytes32 requestId = item.request.idOfCalldata(address(this));
            requestIds[i] = requestId;
            results[i] = TypedDataLib.hashResult(requestId, item.resultHash, item.reward, relayer, ctx.round);
        }
        bytes[] calldata signatures = set.signatures;
        bytes[] calldata inlined = set.results;
        // A lone item is signed as a Result: its node need not be asked again for a set of one.
        bool signedSingly = signatures.length == items.length;
        bool signedAsSet = !signedSingly && _isSetSigned(ctx, results, signatures[0]);
        bytes memory statuses = new bytes(items.length);
        uint256 freeMemory = _freeMemory();
        for (uint256 i = 0; i < items.length; ++i) {
            bytes calldata result = inlined.length == 0 ? msg.data[:0] : inlined[i];
            bytes calldata signature = signedSingly ? signatures[i] : msg.data[:0];
            statuses[i] =
                bytes1(uint8(_settleItem(ctx, items[i], result, requestIds[i], signedAsSet, results[i], signature)));
            _resetMemory(freeMemory);
        }
        _flush(ctx);
        emit BatchSettled(relayer, ctx.round, set.nodes, statuses);
        return ctx.relayerCredit;
    }

    function _contextOf(address relayer, ResultSet calldata set, uint256 gasPrice, uint256 gasPerItem)
        private
        view
        returns (SetContext memory ctx)
    {
        ctx.relayer = relayer;
        ctx.round = set.round;
        ctx.node = set.nodes[0];
        ctx.chargePerItem = gasPerItem * gasPrice;
        ctx.chargePerResultByte = GAS_PER_RESULT_BYTE * gasPrice;
        ctx.recordedAt = SCHEDULE_LOG.recordedAt(relayer, set.round);
        uint40 joinedAt;
        (ctx.payee, joinedAt) = STAKES.membershipOf(ctx.node, address(this));
        ctx.onProbation = _accounts[ctx.payee].settledCount < PROBATION_SETTLED_COUNT
            || block.timestamp < uint256(joinedAt) + PROBATION_DURATION;
        ResultRef memory ref = ResultRef({
            resultHash: 0, relayer: relayer, round: set.round, nodes: set.nodes, settledAt: uint40(block.timestamp)
        });
        ctx.fulfilled = abi.encode(Status.FULFILLED, bytes32(0), ref);
    }

    function _settleItem(
        SetContext memory ctx,
        ResultItem calldata item,
        bytes calldata result,
        bytes32 requestId,
        bool isSigned,
        bytes32 resultStructHash,
        bytes calldata signature
    ) private returns (ItemStatus) {
        Word storage word = _words[requestId];
        uint256 packed = word.packed;
        ItemStatus status = _check(ctx, item, packed);
        if (status != ItemStatus.OK) return status;
        if (!_isDeliverable(item, result)) return ItemStatus.BAD_RESULT;
        if (!isSigned && !_isSignedBy(ctx.node, resultStructHash, signature)) return ItemStatus.BAD_SIGNATURE;
        word.packed = _fulfilledWord(ctx.fulfilled, requestId, item.resultHash);
        _pay(ctx, item, requestId, _feeAddedIn(packed), result.length);
        if (result.length != 0) emit ResultDelivered(requestId, result);
        return ItemStatus.OK;
    }

    function _check(SetContext memory ctx, ResultItem calldata item, uint256 packed) private view returns (ItemStatus) {
        if (packed == 0) return ItemStatus.UNKNOWN;
        if (!_isPending(packed)) return ItemStatus.ALREADY_DONE;
        uint256 deadline = _deadlineIn(packed);
        if (block.timestamp > deadline + GRACE) return ItemStatus.LATE;
        if (ctx.recordedAt == 0 || ctx.recordedAt > deadline) return ItemStatus.NO_ROUND;
        address named = item.request.relayer;
        if (named != address(0) && named != ctx.relayer) return ItemStatus.WRONG_RELAYER;
        if (ctx.payee == address(0)) return ItemStatus.NODE_NOT_JOINED;
        if (item.reward > uint80(item.request.amounts)) return ItemStatus.REWARD_TOO_HIGH;
        if (ctx.onProbation && item.reward > PROBATION_MAX_REWARD) return ItemStatus.PROBATION;
        return ItemStatus.OK;
    }

    /// Bytes go on-chain only when the requester asked for it, and only those that were signed for.
    function _isDeliverable(ResultItem calldata item, bytes calldata result) private pure returns (bool) {
        if (result.length == 0) return true;
        return
            RequestLib.flagsOf(item.request.terms) & RequestLib.INLINE_RESULT != 0
                && keccak256(result) == item.resultHash;
    }

    function _isSetSigned(SetContext memory ctx, bytes32[] memory results, bytes calldata signature)
        private
        view
        returns (bool)
    {
        return _isSignedBy(ctx.node, TypedDataLib.hashResultSet(ctx.relayer, ctx.round, results), signature);
    }

    function _isSignedBy(address signer, bytes32 structHash, bytes calldata signature) private view returns (bool) {
        (address recovered,,) = ECDSA.tryRecoverCalldata(_hashTypedDataV4(structHash), signature);
        return recovered != address(0) && recovered == signer;
    }

    /// Splits the escrow: the parts that node and relayer earn, and by subtraction the requester's rest.
    function _pay(
        SetContext memory ctx,
        ResultItem calldata item,
        bytes32 requestId,
        uint256 feeAdded,
        uint256 resultBytes
    ) private {
        (uint256 maxReward, uint256 gasBudget, uint256 fee) = RequestLib.amountsOf(item.request.amounts);
        // Sums of a few amounts of wei that exist, so below 2^128. Nothing is taken from less: the reward was checked
        // against maxReward, the gas paid is within its budget, and shares are below 100 %.
        unchecked {
            uint256 charge = ctx.chargePerItem + ctx.chargePerResultByte * resultBytes;
            uint256 gasPaid = charge < gasBudget ? charge : gasBudget;
            fee += feeAdded;
            uint256 relayerFee = fee * RELAYER_FEE_SHARE_BPS / BPS;
            uint256 relayerPaid = gasPaid + (gasBudget - gasPaid) * RELAYER_SAVING_SHARE_BPS / BPS + relayerFee;
            uint256 nodePaid = item.reward + fee - relayerFee;
            uint256 refund = maxReward + gasBudget + fee - nodePaid - relayerPaid;
            ctx.nodeCredit += nodePaid;
            ctx.relayerCredit += relayerPaid;
            ctx.settled += 1;
            address requester = item.request.requester;
            if (requester != ctx.requester) {
                _flushRequester(ctx);
                ctx.requester = requester;
            }
            ctx.requesterCredit += refund;
            emit ResultFulfilled(requestId, item.resultHash, nodePaid, relayerPaid, refund);
        }
    }

    /// Refunds to the same requester in a row are added up and stored once.
    function _flushRequester(SetContext memory ctx) private {
        if (ctx.requesterCredit == 0) return;
        _credit(ctx.requester, ctx.requesterCredit);
        ctx.requesterCredit = 0;
    }

    function _flush(SetContext memory ctx) private {
        _flushRequester(ctx);
        if (ctx.settled == 0) return;
        Account storage account = _accounts[ctx.payee];
        account.balance = (account.balance + ctx.nodeCredit).toUint128();
        account.settledCount += ctx.settled;
    }

    /* MEMORY */

    // What an item allocates is dropped after it: memory's price grows with the square of its size, and the cost of a
    // result must not grow with the batch.
    function _freeMemory() private pure returns (uint256 pointer) {
        assembly ("memory-safe") {
            pointer := mload(0x40)
        }
    }

    function _resetMemory(uint256 pointer) private pure {
        assembly ("memory-safe") {
            mstore(0x40, pointer)
        }
    }

    /* WORDS AND MONEY */

    function _statusIn(uint256 word) private pure returns (Status) {
        return Status(word >> 248);
    }

    function _feeAddedIn(uint256 word) private pure returns (uint256) {
        return uint96(word);
    }

    function _deadlineIn(uint256 word) private pure returns (uint40) {
        return uint40(word >> 96);
    }

    function _pendingWord(uint256 feeAdded, uint40 deadline) private pure returns (uint256) {
        return (uint256(Status.PENDING) << 248) | (uint256(deadline) << 96) | feeAdded;
    }

    function _tagged(Status status, bytes32 digest) private pure returns (uint256) {
        return (uint256(status) << 248) | uint248(uint256(digest));
    }

    /// @param encoded abi.encode(Status.FULFILLED, requestId, ResultRef), built once a set; the two fields that differ
    /// from item to item are written over.
    function _fulfilledWord(bytes memory encoded, bytes32 requestId, bytes32 resultHash)
        private
        pure
        returns (uint256)
    {
        bytes32 digest;
        assembly ("memory-safe") {
            mstore(add(encoded, 0x40), requestId)
            mstore(add(encoded, 0x80), resultHash)
            digest := keccak256(add(encoded, 0x20), mload(encoded))
        }
        return _tagged(Status.FULFILLED, digest);
    }

    function _isPending(uint256 word) private pure returns (bool) {
        return word >> 248 == uint256(Status.PENDING);
    }

    /// What relayers may charge a unit of gas: never more than they pay, nor than `TIP_CAP` above the base fee.
    function _gasPrice() private view returns (uint256) {
        return Math.min(tx.gasprice, block.basefee + TIP_CAP);
    }

    function _credit(address account, uint256 amount) private {
        _accounts[account].balance = (_accounts[account].balance + amount).toUint128();
    }

    function _withdraw(address from, address to, uint256 amount) private {
        uint256 balance = _accounts[from].balance;
        if (balance < amount) revert BalanceShort(from, amount, balance);
        _accounts[from].balance = uint128(balance - amount);
        emit Withdrawn(from, to, amount);
        (bool ok,) = to.call{value: amount}("");
        if (!ok) revert TransferFailed(to, amount);
    }
}
