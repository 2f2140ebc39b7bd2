// SPDX-License-Identifier: MIT
pragma solidity ^0.8.30;

import {Mode, Request, RequestParams, Status} from "../Types.sol";
import {RequestLib} from "../libraries/RequestLib.sol";
import {SignatureLib} from "../libraries/SignatureLib.sol";
import {TypedDataLib} from "../libraries/TypedDataLib.sol";
import {WordLib} from "../libraries/WordLib.sol";
import {MarketBase} from "./MarketBase.sol";
import {SafeCast} from "@openzeppelin/contracts/utils/math/SafeCast.sol";

/// @notice Requests: made, raised, cancelled, expired.
abstract contract Requests is MarketBase {
    using RequestLib for Request;
    using SafeCast for uint256;

    modifier whenTaking() {
        _requireTaking();
        _;
    }

    function requestInference(RequestParams calldata params, bytes calldata prompt)
        external
        payable
        whenTaking
        returns (bytes32 requestId)
    {
        Request memory request;
        uint256 escrow;
        (requestId, escrow) = _request(request, params, prompt, msg.sender);
        _collect(escrow);
    }

    function requestInferenceBatch(RequestParams[] calldata params, bytes[] calldata prompts)
        external
        payable
        whenTaking
        returns (bytes32[] memory requestIds)
    {
        if (params.length == 0) revert EmptyBatch();
        if (prompts.length != params.length) revert LengthMismatch(params.length, prompts.length);
        requestIds = new bytes32[](params.length);
        uint256 escrow = 0;
        Request memory request;
        for (uint256 i = 0; i < params.length; ++i) {
            (bytes32 requestId, uint256 added) = _request(request, params[i], prompts[i], msg.sender);
            requestIds[i] = requestId;
            unchecked {
                escrow += added; // numbers below 2^82, and far fewer than 2^174
            }
        }
        _collect(escrow);
    }

    function requestInferenceFor(
        RequestParams calldata params,
        bytes calldata prompt,
        address requester,
        uint96 relayerFee,
        uint40 validUntil,
        bytes calldata signature
    ) external whenTaking returns (bytes32 requestId) {
        if (block.timestamp > validUntil) revert SignatureExpired(validUntil, block.timestamp);
        // A fee to whoever calls would make a race of it.
        if (relayerFee != 0 && params.relayer == address(0)) revert InvalidTerms();
        bytes32 structHash = TypedDataLib.hashRequestFor(params, requester, relayerFee, validUntil);
        SignatureLib.requireSigned(requester, _hashTypedDataV4(structHash), signature, WALLET_SIGNATURE_GAS);
        Request memory request;
        uint256 escrow;
        // The id exists for ever after: the signature cannot be used again.
        (requestId, escrow) = _request(request, params, prompt, requester);
        _spend(requester, escrow + relayerFee);
        if (relayerFee == 0) return requestId;
        _credit(params.relayer, relayerFee);
        emit RelayerFeePaid(requestId, params.relayer, relayerFee);
    }

    function raisePriorityFee(bytes32 requestId) external payable {
        if (msg.value == 0) revert NothingSent();
        uint256 word = _words[requestId].packed;
        if (WordLib.statusIn(word) != Status.PENDING) revert NotPending(requestId, WordLib.statusIn(word));
        uint40 deadline = WordLib.deadlineIn(word);
        if (block.timestamp > deadline) revert DeadlinePassed(deadline, block.timestamp);
        uint256 total = (WordLib.feeAddedIn(word) + msg.value).toUint96();
        _words[requestId].packed = WordLib.pending(total, deadline);
        emit PriorityFeeRaised(requestId, msg.value, total);
    }

    function cancel(Request calldata request) external {
        (bytes32 requestId, uint256 word) = _pendingOfCaller(request);
        uint40 deadline = WordLib.deadlineIn(word);
        if (block.timestamp >= deadline) revert DeadlinePassed(deadline, block.timestamp);
        _words[requestId].packed = WordLib.pending(WordLib.feeAddedIn(word), uint40(block.timestamp));
        emit CancelAnnounced(requestId, uint40(block.timestamp));
    }

    function cancelWithRelease(Request calldata request, uint40 validUntil, bytes calldata relayerSignature) external {
        (bytes32 requestId, uint256 word) = _pendingOfCaller(request);
        if (block.timestamp > validUntil) revert SignatureExpired(validUntil, block.timestamp);
        bytes32 digest = _hashTypedDataV4(TypedDataLib.hashRelease(requestId, validUntil));
        address signer = SignatureLib.signerOf(digest, relayerSignature);
        // An open race has no relayer whose word would bind the others.
        if (request.relayer == address(0) || signer != request.relayer) revert InvalidSignature(signer);
        _close(request, requestId, word, WordLib.cancelled(requestId));
    }

    function expire(Request[] calldata requests) external {
        for (uint256 i = 0; i < requests.length; ++i) {
            bytes32 requestId = requests[i].idOfCalldata(address(this));
            uint256 word = _words[requestId].packed;
            uint40 deadline = WordLib.deadlineIn(word);
            if (!WordLib.isPending(word) || block.timestamp <= deadline + GRACE) continue;
            _close(requests[i], requestId, word, WordLib.expired(requestId, deadline));
        }
    }

    /* INTERNALS */

    function _requireTaking() private view {
        if (block.timestamp < _pausedUntil) revert RequestsPaused();
    }

    /// Takes the escrow from what was sent and, when that is short, from the caller's credit; credits what is over.
    function _collect(uint256 escrow) private {
        if (msg.value == escrow) return;
        if (msg.value > escrow) {
            _credit(msg.sender, msg.value - escrow);
            return;
        }
        _spend(msg.sender, escrow);
    }

    /// Takes what the sent wei do not cover from the requester's credit.
    function _spend(address requester, uint256 escrow) private {
        uint256 balance = _accounts[requester].balance;
        uint256 missing = escrow - msg.value;
        if (balance < missing) revert EscrowShort(escrow, msg.value + balance);
        _accounts[requester].balance = uint128(balance - missing);
    }

    /// @param request Memory that is written over: a batch needs it once.
    function _request(Request memory request, RequestParams calldata params, bytes calldata prompt, address requester)
        private
        returns (bytes32 requestId, uint256 escrow)
    {
        uint256 amounts;
        uint256 terms;
        (amounts, terms, escrow) = RequestLib.packWords(params);
        _requireServable(params, terms, prompt);
        request.requester = requester;
        request.relayer = params.relayer;
        request.modelId = params.modelId;
        request.promptHash = params.promptHash;
        request.amounts = amounts;
        request.terms = terms;
        request.verifier = params.verifier;
        requestId = request.idOf(address(this));
        Word storage word = _words[requestId];
        if (word.packed != 0) revert RequestExists(requestId);
        word.packed = WordLib.pending(0, RequestLib.deadlineOf(terms));
        _logRequested(requestId, request, prompt);
    }

    /// emit InferenceRequested(requestId, request.requester, request.relayer, request, prompt), without the compiler's
    /// second look at seven words that are as they should be.
    function _logRequested(bytes32 requestId, Request memory request, bytes calldata prompt) private {
        bytes32 topic = InferenceRequested.selector;
        assembly ("memory-safe") {
            let ptr := mload(0x40)
            mcopy(ptr, request, 0xe0)
            mstore(add(ptr, 0xe0), 0x100)
            mstore(add(ptr, 0x100), prompt.length)
            let end := add(add(ptr, 0x120), prompt.length)
            calldatacopy(add(ptr, 0x120), prompt.offset, prompt.length)
            mstore(end, 0)
            let size := add(0x120, and(add(prompt.length, 0x1f), not(0x1f)))
            log4(ptr, size, topic, requestId, mload(request), mload(add(request, 0x20)))
        }
    }

    function _requireServable(RequestParams calldata params, uint256 terms, bytes calldata prompt) private view {
        uint40 deadline = RequestLib.deadlineOf(terms);
        unchecked {
            uint256 earliest = block.timestamp + MIN_TTL;
            uint256 latest = block.timestamp + MAX_TTL;
            if (deadline < earliest) revert DeadlineOutOfRange(deadline, earliest, latest);
            if (deadline > latest) revert DeadlineOutOfRange(deadline, earliest, latest);
        }
        uint256 promptBytes = RequestLib.promptBytesOf(terms);
        if (promptBytes == 0) revert InvalidTerms();
        if (RequestLib.maxOutputTokensOf(terms) == 0) revert InvalidTerms();
        // Most requests are plain: SIGNATURE mode, no callback, no verifier.
        if (terms & RequestLib.EXTRA_TERMS != 0 || params.verifier != address(0)) {
            _requireExtras(params.verifier, terms);
        }
        if (prompt.length == 0) return;
        if (prompt.length > MAX_INLINE_PROMPT) revert PromptTooLong(prompt.length, MAX_INLINE_PROMPT);
        if (prompt.length != promptBytes || keccak256(prompt) != params.promptHash) {
            revert PromptMismatch(params.promptHash, prompt.length);
        }
    }

    function _requireExtras(address verifier, uint256 terms) private view {
        if (RequestLib.laneOf(terms) > 1) revert InvalidTerms();
        uint24 callbackGas = RequestLib.callbackGasOf(terms);
        if (callbackGas > MAX_CALLBACK_GAS) revert CallbackGasTooHigh(callbackGas, MAX_CALLBACK_GAS);
        (Mode mode, uint8 k, uint8 n) = (RequestLib.modeOf(terms), RequestLib.kOf(terms), RequestLib.nOf(terms));
        if (mode == Mode.OPTIMISTIC) revert UnsupportedMode(mode);
        if (mode == Mode.QUORUM ? k < 2 || k > n || n > MAX_QUORUM : (k | n) != 0) revert InvalidQuorum(k, n);
        if (mode == Mode.VERIFIER ? verifier.code.length == 0 : verifier != address(0)) {
            revert InvalidVerifier(verifier);
        }
    }

    function _pendingOfCaller(Request calldata request) private view returns (bytes32 requestId, uint256 word) {
        if (msg.sender != request.requester) revert NotRequester(msg.sender, request.requester);
        requestId = request.idOfCalldata(address(this));
        word = _words[requestId].packed;
        if (!WordLib.isPending(word)) revert NotPending(requestId, WordLib.statusIn(word));
    }

    function _close(Request calldata request, bytes32 requestId, uint256 word, uint256 closed) private {
        uint256 refund = request.escrowOf() + WordLib.feeAddedIn(word);
        _words[requestId].packed = closed;
        _credit(request.requester, refund);
        emit RequestClosed(requestId, request.requester, WordLib.statusIn(closed), refund);
    }
}
