// SPDX-License-Identifier: MIT
pragma solidity ^0.8.30;

import {Assignment, ItemStatus, Mode, Request, ResultItem, ResultSet, Status} from "../Types.sol";
import {IResultVerifier} from "../interfaces/IResultVerifier.sol";
import {RequestLib} from "../libraries/RequestLib.sol";
import {ResultSetLib} from "../libraries/ResultSetLib.sol";
import {SignatureLib} from "../libraries/SignatureLib.sol";
import {TypedDataLib} from "../libraries/TypedDataLib.sol";
import {WordLib} from "../libraries/WordLib.sol";
import {Callbacks} from "./Callbacks.sol";
import {SafeCast} from "@openzeppelin/contracts/utils/math/SafeCast.sol";

/// @notice Results: checked one by one, paid once a batch.
abstract contract Results is Callbacks {
    using RequestLib for Request;
    using ResultSetLib for ResultSet;
    using ResultSetLib for bytes[];
    using SafeCast for uint256;

    function submitResults(address relayer, ResultSet[] calldata sets) external nonReentrantView {
        // Only whom the relayer trusts with it: else a node that was never assigned could bring its own results in.
        if (msg.sender != relayer) revert NotSubmitter(msg.sender, relayer);
        _submit(relayer, sets);
    }

    function submitResultsFor(
        address relayer,
        ResultSet[] calldata sets,
        uint40 validUntil,
        bytes calldata relayerSignature
    ) external nonReentrantView {
        if (block.timestamp > validUntil) revert SignatureExpired(validUntil, block.timestamp);
        bytes32 digest = _hashTypedDataV4(TypedDataLib.hashSubmitter(relayer, msg.sender, validUntil));
        if (!SignatureLib.isSignedBy(relayer, digest, relayerSignature)) revert NotSubmitter(msg.sender, relayer);
        _submit(relayer, sets);
    }

    function submitAssigned(Assignment calldata assignment, bytes calldata relayerSignature, ResultSet calldata set)
        external
        nonReentrantView
    {
        bytes32 requestId = assignment.requestId;
        _requireWellFormed(set, 0);
        _requireAssigned(assignment, set);
        bytes32 digest = _hashTypedDataV4(TypedDataLib.hashAssignment(assignment));
        if (!SignatureLib.isSignedBy(assignment.relayer, digest, relayerSignature)) {
            revert InvalidSignature(assignment.relayer);
        }
        uint256 word = _words[requestId].packed;
        // The relayer has its time first.
        if (WordLib.isPending(word) && block.timestamp <= WordLib.deadlineIn(word)) {
            revert ItemRefused(requestId, ItemStatus.NO_ROUND);
        }
        SetContext memory ctx = _contextOf(assignment.relayer, set, ASSIGNED_GAS, _gasPrice());
        ctx.recordedAt = 0; // it needs none
        // Whoever settles has the relayer's part of the work and of the pay.
        ctx.relayerPayee = ctx.payees[0];
        ItemStatus status = ItemStatus(uint8(_settleSet(ctx, set)[0]));
        if (status != ItemStatus.OK) revert ItemRefused(requestId, status);
        _credit(ctx.relayerPayee, ctx.relayerCredit);
    }

    /// The set is the one result that the assignment asks for.
    function _requireAssigned(Assignment calldata assignment, ResultSet calldata set) private view {
        ResultItem calldata item = set.items[0];
        if (
            set.items.length != 1 || set.nodes.length != 1 || set.nodes[0] != assignment.node
                || set.round != assignment.round || item.reward != assignment.reward
                || item.request.idOfCalldata(address(this)) != assignment.requestId
        ) revert AssignmentMismatch(assignment.requestId);
        // In an open race nobody named the relayer: any would do to take the escrow of what was not served or is cancelled.
        if (item.request.relayer == address(0)) {
            revert ItemRefused(assignment.requestId, ItemStatus.WRONG_RELAYER);
        }
    }

    /* SETS */

    function _submit(address relayer, ResultSet[] calldata sets) private {
        uint256 total = 0;
        for (uint256 i = 0; i < sets.length; ++i) {
            total += _requireWellFormed(sets[i], i);
        }
        if (total == 0) revert EmptyBatch();
        uint256 gasPrice = _gasPrice();
        uint256 gasPerItem = FIXED_GAS / total + ITEM_GAS;
        uint256 relayerCredit = 0;
        for (uint256 i = 0; i < sets.length; ++i) {
            ResultSet calldata set = sets[i];
            SetContext memory ctx = _contextOf(relayer, set, gasPerItem, gasPrice);
            _settleSet(ctx, set);
            relayerCredit += ctx.relayerCredit;
        }
        if (relayerCredit != 0) _credit(relayer, relayerCredit);
    }

    /// Faults that only the submitter can make; all else is an item's own.
    /// @return n How many items.
    function _requireWellFormed(ResultSet calldata set, uint256 index) private pure returns (uint256 n) {
        n = set.items.length;
        address[] calldata nodes = set.nodes;
        uint256 k = nodes.length;
        uint256 signatures = set.signatures.length;
        uint256 results = set.results.length;
        uint256 proofs = set.proofs.length;
        if (
            n == 0 || k == 0 || k > MAX_QUORUM || (signatures != k && signatures != k * n)
                || (results != 0 && results != n) || (proofs != 0 && proofs != n)
        ) revert MalformedSet(index);
        // In ascending order, so that none counts twice.
        for (uint256 i = 1; i < k; ++i) {
            if (nodes[i - 1] >= nodes[i]) revert MalformedSet(index);
        }
    }

    function _settleSet(SetContext memory ctx, ResultSet calldata set) private returns (bytes memory statuses) {
        ResultItem[] calldata items = set.itemsOf();
        bytes32[] memory requestIds = new bytes32[](items.length);
        bytes32[] memory results = new bytes32[](items.length);
        uint256 callbacks = 0;
        for (uint256 i = 0; i < items.length; ++i) {
            ResultItem calldata item = items[i];
            bytes32 requestId = item.request.idOfCalldata(address(this));
            requestIds[i] = requestId;
            results[i] = TypedDataLib.hashResult(requestId, item.resultHash, item.reward, ctx.relayer, ctx.round);
            if (RequestLib.callbackGasOf(item.request.terms) != 0) ++callbacks;
        }
        _openCallbacks(ctx, callbacks);
        statuses = new bytes(items.length);
        bytes[] calldata signatures = set.signaturesOf();
        bytes[] calldata inlined = set.resultsOf();
        // A lone item is signed as a Result: its nodes need not be asked again for a set of one.
        ctx.signedSingly = signatures.length == ctx.nodes.length * items.length;
        ctx.signedAsSet = !ctx.signedSingly && _isSetSigned(ctx, results, signatures);
        uint256 freeMemory = _freeMemory();
        for (uint256 i = 0; i < items.length; ++i) {
            ResultItem calldata item = items[i];
            bytes32 requestId = requestIds[i];
            uint256 word = _words[requestId].packed;
            ItemStatus status = _check(ctx, item, word);
            if (status == ItemStatus.OK) {
                status = ctx.signedAsSet || (ctx.signedSingly && _isSigned(ctx, results[i], signatures, i))
                    ? _settleItem(ctx, set, item, inlined.elementAt(i), requestId, word, i)
                    : ItemStatus.BAD_SIGNATURE;
            }
            statuses[i] = bytes1(uint8(status));
            _resetMemory(freeMemory);
        }
        _flush(ctx);
        if (ctx.callbacks != 0) _callBackAll(ctx, items, inlined, requestIds);
        emit BatchSettled(ctx.relayer, ctx.round, ctx.nodes, statuses);
    }

    /// The one time that others' code runs and may write: results can be submitted neither within it nor, by the check at
    /// the entrances, through it.
    function _callBackAll(
        SetContext memory ctx,
        ResultItem[] calldata items,
        bytes[] calldata inlined,
        bytes32[] memory requestIds
    ) private nonReentrant {
        uint256 freeMemory = _freeMemory();
        for (uint256 i = 0; i < ctx.callbacks; ++i) {
            uint256 index = ctx.owed[i].index;
            _callBack(ctx, items[index], requestIds[index], inlined.elementAt(index), i);
            _resetMemory(freeMemory);
        }
    }

    function _contextOf(address relayer, ResultSet calldata set, uint256 gasPerItem, uint256 gasPrice)
        private
        view
        returns (SetContext memory ctx)
    {
        address[] memory nodes = set.nodes;
        uint64 round = set.round;
        if (nodes.length > 1) {
            ctx.quorum = nodes.length;
            gasPerItem += NODE_GAS * (nodes.length - 1) / set.items.length;
            ctx.notJoined = _isAnyTwice(nodes);
        }
        ctx.relayer = relayer;
        ctx.relayerPayee = relayer;
        ctx.round = round;
        ctx.nodes = nodes;
        ctx.gasPrice = gasPrice;
        ctx.chargePerItem = gasPerItem * gasPrice;
        ctx.recordedAt = SCHEDULE_LOG.recordedAt(relayer, round);
        if (ctx.recordedAt == 0) ctx.recordedAt = type(uint256).max;
        ctx.rewardCap = type(uint256).max;
        ctx.payees = new address[](nodes.length);
        for (uint256 i = 0; i < nodes.length; ++i) {
            (address payee, uint40 joinedAt) = STAKES.membershipOf(nodes[i], address(this));
            ctx.payees[i] = payee;
            if (payee == address(0)) ctx.notJoined = true;
            if (
                _accounts[payee].settledCount < PROBATION_SETTLED_COUNT
                    || block.timestamp < uint256(joinedAt) + PROBATION_DURATION
            ) ctx.rewardCap = PROBATION_MAX_REWARD;
        }
        ctx.fulfilled = WordLib.preimage(relayer, round, nodes);
    }

    /// A node whose key was rotated is a member by both of its keys for a time, and must not count twice in a quorum.
    function _isAnyTwice(address[] memory keys) private view returns (bool) {
        address[] memory nodes = new address[](keys.length);
        for (uint256 i = 0; i < keys.length; ++i) {
            nodes[i] = STAKES.canonicalNodeOf(keys[i]);
            for (uint256 j = 0; j < i; ++j) {
                if (nodes[j] == nodes[i]) return true;
            }
        }
        return false;
    }

    /* ITEMS */

    function _check(SetContext memory ctx, ResultItem calldata item, uint256 word) private view returns (ItemStatus) {
        if (!WordLib.isPending(word)) return word == 0 ? ItemStatus.UNKNOWN : ItemStatus.ALREADY_DONE;
        uint256 deadline = WordLib.deadlineIn(word);
        if (block.timestamp > deadline + GRACE) return ItemStatus.LATE;
        if (ctx.recordedAt > deadline) return ItemStatus.NO_ROUND;
        address named = item.request.relayer;
        // Who was not named must have a bond to lose.
        if (named != ctx.relayer && (named != address(0) || !STAKES.isBonded(ctx.relayer))) {
            return ItemStatus.WRONG_RELAYER;
        }
        if (ctx.notJoined) return ItemStatus.NODE_NOT_JOINED;
        if (RequestLib.kOf(item.request.terms) != ctx.quorum) return ItemStatus.BAD_SIGNATURE;
        uint256 reward = item.reward;
        if (reward > ctx.rewardCap) return ItemStatus.PROBATION;
        unchecked {
            // 96 bits times at most MAX_QUORUM
            if (reward * ctx.nodes.length > uint80(item.request.amounts)) return ItemStatus.REWARD_TOO_HIGH;
        }
        return ItemStatus.OK;
    }

    /// Pays an item that `_check` and its signatures found good, unless its bytes or its proof are not.
    function _settleItem(
        SetContext memory ctx,
        ResultSet calldata set,
        ResultItem calldata item,
        bytes calldata result,
        bytes32 requestId,
        uint256 word,
        uint256 index
    ) private returns (ItemStatus) {
        uint256 terms = item.request.terms;
        uint256 extraGas = 0;
        if (terms & (RequestLib.EXTRA_TERMS | RequestLib.INLINE_TERM) != 0) {
            if (RequestLib.isVerified(terms)) {
                extraGas = gasleft();
                if (!_isVerified(item, requestId, ctx.nodes[0], set.proofs.elementAt(index))) {
                    return ItemStatus.VERIFICATION_FAILED;
                }
                extraGas -= gasleft();
            }
            if (!_deliver(terms, requestId, item.resultHash, result)) return ItemStatus.BAD_RESULT;
            unchecked {
                extraGas += GAS_PER_RESULT_BYTE * result.length; // fewer than the bytes of a transaction
            }
        } else if (result.length != 0) {
            return ItemStatus.BAD_RESULT;
        }
        _words[requestId].packed = WordLib.fulfilledFrom(ctx.fulfilled, Status.FULFILLED, requestId, item.resultHash);
        _pay(ctx, item, requestId, WordLib.feeAddedIn(word), extraGas, index);
        return ItemStatus.OK;
    }

    /// Bytes go on-chain only when the requester asked for it, and only those that were signed for. A contract that asked
    /// for bytes gets them in its callback, and not a call without.
    function _deliver(uint256 terms, bytes32 requestId, bytes32 resultHash, bytes calldata result)
        private
        returns (bool ok)
    {
        bool isInline = RequestLib.isInline(terms);
        // An answer may have no bytes, and then these are all.
        if (result.length == 0 && (!isInline || resultHash != keccak256(""))) {
            return !isInline || RequestLib.callbackGasOf(terms) == 0;
        }
        if (!isInline) return false;
        bytes32 topic = ResultDelivered.selector;
        // emit ResultDelivered(requestId, result), with one copy of the bytes for the hash and the log.
        assembly ("memory-safe") {
            let ptr := mload(0x40)
            let data := add(ptr, 0x40)
            mstore(ptr, 0x20)
            mstore(add(ptr, 0x20), result.length)
            calldatacopy(data, result.offset, result.length)
            ok := eq(keccak256(data, result.length), resultHash)
            if ok {
                mstore(add(data, result.length), 0)
                log2(ptr, add(0x40, and(add(result.length, 0x1f), not(0x1f))), topic, requestId)
            }
        }
    }

    function _isVerified(ResultItem calldata item, bytes32 requestId, address node, bytes calldata proof)
        private
        view
        returns (bool ok)
    {
        address verifier = item.request.verifier;
        bytes memory data =
            abi.encodeCall(IResultVerifier.verifyInference, (item.request, requestId, node, item.resultHash, proof));
        _requireGasFor(VERIFIER_GAS, 50_000);
        bytes32 answer;
        // One word is copied of what comes back, however much it is.
        assembly ("memory-safe") {
            ok := staticcall(VERIFIER_GAS, verifier, add(data, 0x20), mload(data), 0x00, 0x20)
            ok := and(ok, gt(returndatasize(), 0x1f))
            answer := mload(0x00)
        }
        return ok && answer == bytes32(IResultVerifier.verifyInference.selector);
    }

    function _isSetSigned(SetContext memory ctx, bytes32[] memory results, bytes[] calldata signatures)
        private
        view
        returns (bool)
    {
        return _isSigned(ctx, TypedDataLib.hashResultSet(ctx.relayer, ctx.round, results), signatures, 0);
    }

    /// Whether each node signed: `signatures` has theirs for the first item, then theirs for the second, …
    function _isSigned(SetContext memory ctx, bytes32 structHash, bytes[] calldata signatures, uint256 index)
        private
        view
        returns (bool)
    {
        bytes32 digest = _hashTypedDataV4(structHash);
        uint256 k = ctx.nodes.length;
        for (uint256 i = 0; i < k; ++i) {
            if (!SignatureLib.isSignedBy(ctx.nodes[i], digest, signatures.elementAt(index * k + i))) return false;
        }
        return true;
    }

    /* MONEY */

    /// Splits the escrow: the parts that nodes and relayer earn, and by subtraction the requester's rest. What of the gas
    /// budget is left waits when a callback is yet to be paid from it.
    function _pay(
        SetContext memory ctx,
        ResultItem calldata item,
        bytes32 requestId,
        uint256 feeAdded,
        uint256 extraGas,
        uint256 index
    ) internal {
        (uint256 maxReward, uint256 gasBudget, uint256 fee) = RequestLib.amountsOf(item.request.amounts);
        // Sums of a few amounts of wei that exist, so below 2^128. Nothing is taken from less: the rewards were checked
        // against maxReward, the gas paid is within its budget, and shares are below 100 %.
        unchecked {
            uint256 charge = ctx.chargePerItem + extraGas * ctx.gasPrice;
            uint256 gasPaid = charge < gasBudget ? charge : gasBudget;
            fee += feeAdded;
            uint256 relayerPaid = fee * RELAYER_FEE_SHARE_BPS / BPS;
            uint256 k = ctx.nodes.length;
            uint256 nodePaid = item.reward + (fee - relayerPaid) / k;
            ctx.nodeCredit += nodePaid;
            nodePaid *= k;
            relayerPaid += gasPaid;
            uint256 unused = gasBudget - gasPaid;
            bool callsBack = RequestLib.callbackGasOf(item.request.terms) != 0;
            if (!callsBack) {
                relayerPaid += unused * RELAYER_SAVING_SHARE_BPS / BPS;
                unused = 0;
            }
            uint256 refund = maxReward + gasBudget + fee - nodePaid - relayerPaid - unused;
            ctx.relayerCredit += relayerPaid;
            ctx.settled += 1;
            address requester = item.request.requester;
            if (requester != ctx.requester) {
                _flushRequester(ctx);
                ctx.requester = requester;
            }
            ctx.requesterCredit += refund;
            if (callsBack) _owe(ctx, index, nodePaid, relayerPaid, refund, unused);
            else emit ResultFulfilled(requestId, item.resultHash, nodePaid, relayerPaid, refund);
        }
    }

    /// Refunds to the same requester in a row are added up and stored once.
    function _flushRequester(SetContext memory ctx) private {
        if (ctx.requesterCredit == 0) return;
        _credit(ctx.requester, ctx.requesterCredit);
        ctx.requesterCredit = 0;
    }

    /// All that is owed is credited before a callback runs.
    function _flush(SetContext memory ctx) private {
        _flushRequester(ctx);
        if (ctx.settled == 0) return;
        for (uint256 i = 0; i < ctx.payees.length; ++i) {
            Account storage account = _accounts[ctx.payees[i]];
            account.balance = (account.balance + ctx.nodeCredit).toUint128();
            account.settledCount += ctx.settled;
        }
        if (ctx.callbacks == 0) return;
        _credit(ctx.relayerPayee, ctx.relayerCredit);
        ctx.relayerCredit = 0;
    }
}
