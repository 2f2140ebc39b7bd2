// SPDX-License-Identifier: MIT
pragma solidity ^0.8.30;

import {
    Assignment,
    ItemStatus,
    Mode,
    Request,
    RequestParams,
    ResultItem,
    ResultRef,
    ResultSet,
    Status
} from "../Types.sol";

/// @title Inference requests, paid from escrow and settled in batches.
/// @notice A requester escrows the most that a request may cost. A staked node answers and signs; the relayer brings the
/// signed results in, or when it is gone the node, and money goes where the signatures say. The promise to requesters: an
/// answer by the deadline, or a refund `GRACE` seconds later.
interface IInferenceMarket {
    /// @notice A request was escrowed. `prompt` holds the prompt's bytes, public for ever, or is empty for a prompt that
    /// is known by its hash only.
    event InferenceRequested(
        bytes32 indexed requestId, address indexed requester, address indexed relayer, Request request, bytes prompt
    );
    /// @notice `added` wei joined the request's priority fee; `total` is all that was added since it was posted.
    event PriorityFeeRaised(bytes32 indexed requestId, uint256 added, uint256 total);
    /// @notice The requester cancelled without a release: rounds recorded after `effectiveDeadline` are not paid.
    event CancelAnnounced(bytes32 indexed requestId, uint40 effectiveDeadline);
    /// @notice A result was paid: `nodePaid + relayerPaid + refund` is the whole escrow.
    event ResultFulfilled(
        bytes32 indexed requestId, bytes32 resultHash, uint256 nodePaid, uint256 relayerPaid, uint256 refund
    );
    /// @notice The bytes of an answer whose requester asked for inline delivery.
    event ResultDelivered(bytes32 indexed requestId, bytes result);
    /// @notice One set of a batch was handled; `statuses` holds one `ItemStatus` byte per item, in order.
    event BatchSettled(address indexed relayer, uint64 indexed round, address[] nodes, bytes statuses);
    /// @notice A request ended without an answer and its escrow went back.
    event RequestClosed(bytes32 indexed requestId, address indexed requester, Status status, uint256 refund);
    /// @notice Posting a request that its requester had only signed was paid from the requester's credit.
    event RelayerFeePaid(bytes32 indexed requestId, address indexed relayer, uint256 fee);
    /// @notice The requester's contract reverted, with `reason` as the first bytes of what it said. The result is paid and
    /// final; `retryCallback` makes the call again.
    event CallbackFailed(bytes32 indexed requestId, bytes4 reason);
    event CallbackRetried(bytes32 indexed requestId);
    event Deposited(address indexed account, address indexed from, uint256 amount);
    event Withdrawn(address indexed account, address indexed to, uint256 amount);
    /// @notice The owner stopped (or resumed) the intake of new requests; nothing else can be stopped.
    /// @param until When a stop ends by itself; 0 when requests are taken.
    event RequestsPausedSet(bool paused, uint40 until);

    error RequestExists(bytes32 requestId);
    error NotPending(bytes32 requestId, Status status);
    error NotRequester(address caller, address requester);
    error DeadlineOutOfRange(uint40 deadline, uint256 earliest, uint256 latest);
    error DeadlinePassed(uint40 deadline, uint256 blockTimestamp);
    error EscrowShort(uint256 required, uint256 available);
    error PromptMismatch(bytes32 promptHash, uint256 promptBytes);
    error PromptTooLong(uint256 promptBytes, uint256 most);
    error UnsupportedMode(Mode mode);
    error CallbackGasTooHigh(uint24 callbackGas, uint256 most);
    error InvalidQuorum(uint256 k, uint256 n);
    /// @notice A verifier is a contract, and is named in VERIFIER mode only.
    error InvalidVerifier(address verifier);
    error InvalidTerms();
    error RequestsPaused();
    error LengthMismatch(uint256 expected, uint256 got);
    /// @notice The set cannot be read as one: no items, no nodes or too many, nodes not in ascending order, or lists whose
    /// lengths do not fit.
    error MalformedSet(uint256 setIndex);
    error EmptyBatch();
    /// @notice `signer` (0 when it cannot be told) is not whose signature was needed.
    error InvalidSignature(address signer);
    error SignatureExpired(uint40 validUntil, uint256 blockTimestamp);
    /// @notice `caller` is not the relayer, nor somebody who may submit for it.
    error NotSubmitter(address caller, address relayer);
    /// @notice The submitter's own fault: a call-out that the request names would get less gas than it may have.
    error InsufficientGas(uint256 required, uint256 available);
    error AssignmentMismatch(bytes32 requestId);
    error ItemRefused(bytes32 requestId, ItemStatus status);
    error NoFailedCallback(bytes32 requestId);
    error ResultMismatch(bytes32 resultHash);
    error CallbackFailedAgain(bytes32 requestId, bytes4 reason);
    error BalanceShort(address account, uint256 required, uint256 available);
    error TransferFailed(address to, uint256 amount);
    /// @notice Only the account itself may have its credit paid out.
    error NotAccount(address caller, address account);
    error NothingSent();
    /// @notice Stake must stay longer than any request that was open when its owner began to take it out.
    error UnbondDelayTooShort(uint256 delay, uint256 least);

    /// @notice Escrows a request. Its id depends on its content and salt only, so it is known before sending and a
    /// resend is refused. Wei that is sent beyond the escrow is credited to the caller; wei short of it is taken from
    /// the caller's credit.
    /// @param prompt The prompt's bytes (at most `MAX_INLINE_PROMPT`), or empty for one known by its hash only.
    function requestInference(RequestParams calldata params, bytes calldata prompt)
        external
        payable
        returns (bytes32 requestId);

    /// @notice As `requestInference`, for many; refused as a whole when one is refused.
    function requestInferenceBatch(RequestParams[] calldata params, bytes[] calldata prompts)
        external
        payable
        returns (bytes32[] memory requestIds);

    /// @notice As `requestInference`, for a requester who only signed: EIP-712 RequestFor, by the requester's key or, by
    /// ERC-1271, its contract. Escrow and fee come from the requester's credit. Anyone may call; the fee goes to the relayer
    /// that the request names.
    function requestInferenceFor(
        RequestParams calldata params,
        bytes calldata prompt,
        address requester,
        uint96 relayerFee,
        uint40 validUntil,
        bytes calldata signature
    ) external returns (bytes32 requestId);

    /// @notice Adds the sent wei to a pending request's priority fee. Anyone may, until its deadline.
    function raisePriorityFee(bytes32 requestId) external payable;

    /// @notice Sets the effective deadline to now. Rounds recorded up to now stay payable until now + GRACE, later ones
    /// never; then `expire` refunds.
    function cancel(Request calldata request) external;

    /// @notice Cancels and refunds at once on the relayer's signed word that the request is not assigned.
    function cancelWithRelease(Request calldata request, uint40 validUntil, bytes calldata relayerSignature) external;

    /// @notice Refunds requests whose effective deadline + GRACE has passed; skips all others. Anyone may.
    function expire(Request[] calldata requests) external;

    /// @notice Settles signed results of requests that the caller, a relayer, assigned. A bad item gets a status and never
    /// reverts the batch.
    function submitResults(address relayer, ResultSet[] calldata sets) external;

    /// @notice As `submitResults`, by whom the relayer named in an EIP-712 Submitter(relayer, submitter, validUntil).
    function submitResultsFor(
        address relayer,
        ResultSet[] calldata sets,
        uint40 validUntil,
        bytes calldata relayerSignature
    ) external;

    /// @notice Settles one result on the relayer's signed Assignment, without a recorded round, from the effective deadline
    /// until `GRACE` after it: the way out when a relayer vanishes. Anyone may; the node has the relayer's part of the pay
    /// too. Not for quorums, nor for requests that name no relayer.
    /// @param set One item of one node.
    function submitAssigned(Assignment calldata assignment, bytes calldata relayerSignature, ResultSet calldata set)
        external;

    /// @notice Makes a failed callback again, with at least its `callbackGas`. Anyone may.
    /// @param result The answer's bytes when the request asked for inline delivery, else empty.
    function retryCallback(Request calldata request, ResultRef calldata ref, bytes calldata result) external;

    function deposit(address account) external payable;

    /// @notice Pays `amount` of the account's credit to the account itself. Of a contract's, which may have no call for it,
    /// anyone may; of an account that can call for itself only it: others could void what it signed to pay from its credit.
    function withdraw(address account, uint256 amount) external;

    /// @notice Pays `amount` of the caller's credit to `to`.
    function withdrawTo(address to, uint256 amount) external;

    function escrowOf(RequestParams calldata params) external pure returns (uint256);
    function packRequest(RequestParams calldata params, address requester) external pure returns (Request memory);
    function requestIdOf(Request calldata request) external view returns (bytes32);
    function statusOf(bytes32[] calldata requestIds) external view returns (Status[] memory);
    /// @notice The word that is kept of a request, as WordLib describes it; 0 = never made.
    function wordOf(bytes32 requestId) external view returns (uint256);
    /// @notice Zeros unless pending.
    function pendingOf(bytes32 requestId) external view returns (uint96 priorityFeeAdded, uint40 effectiveDeadline);
    /// @notice Whether `ref` is the settled result of a request and, when `result` is not empty, whether its bytes are.
    function verifyResult(bytes32 requestId, ResultRef calldata ref, bytes calldata result)
        external
        view
        returns (bool final_);
    function accountOf(address account) external view returns (uint128 balance, uint64 settledCount);
    /// @notice Wei that settlement charges for gas, before the cap of the request's gas budget, at the call's own gas
    /// price: an `eth_call` must set one.
    /// @param nodes How many nodes answer each request: 1, or k of a quorum. Callbacks and verifiers are charged on top, by
    /// what they use.
    function gasChargeOf(uint256 nodes, uint256 resultBytes, uint256 batchSize) external view returns (uint256);
    /// @notice The most that a node is paid while it is on probation: until its payee has settled so many, and for so long
    /// after it joined.
    function PROBATION_MAX_REWARD() external view returns (uint256);
    function PROBATION_SETTLED_COUNT() external view returns (uint64);
    function PROBATION_DURATION() external view returns (uint40);
    function requestsPaused() external view returns (bool);
}
