// SPDX-License-Identifier: MIT
pragma solidity ^0.8.30;

// The value types that contracts, relayers, nodes and web pages share. Wei, seconds and bytes throughout.
// Frozen: a change needs a note in docs/decisions/ and new golden vectors (tests/vectors/protocol/).

/// What has become of a request. PROPOSED and CHALLENGED are reserved for a later optimistic market.
enum Status {
    NONE,
    PENDING,
    PROPOSED,
    CHALLENGED,
    FULFILLED,
    FULFILLED_CALLBACK_FAILED,
    EXPIRED,
    CANCELLED
}

/// What has become of one item of a batch.
enum ItemStatus {
    OK,
    UNKNOWN,
    ALREADY_DONE,
    LATE,
    WRONG_RELAYER,
    REWARD_TOO_HIGH,
    BAD_RESULT,
    BAD_SIGNATURE,
    NODE_NOT_JOINED,
    NO_ROUND,
    PROBATION,
    VERIFICATION_FAILED
}

/// How a result earns its pay. OPTIMISTIC is reserved for a later market.
enum Mode {
    SIGNATURE,
    QUORUM,
    OPTIMISTIC,
    VERIFIER
}

/// What a requester asks for, as a wallet shows it. The market packs it into a `Request`.
struct RequestParams {
    address relayer; // whose rounds may serve it; 0 = any bonded relayer
    bytes32 modelId;
    bytes32 promptHash;
    uint64 salt;
    uint40 deadline;
    uint32 promptBytes;
    uint24 maxOutputTokens;
    uint24 callbackGas;
    uint8 lane; // 0 = realtime, 1 = bulk
    bool batchable;
    bool inlineResult; // true: the relayer may publish the answer's bytes on-chain, for ever
    Mode mode;
    uint8 k;
    uint8 n;
    address verifier;
    uint80 maxReward; // for all paid nodes together
    uint80 gasBudget;
    uint80 priorityFee; // escrow = maxReward + gasBudget + priorityFee
}

/// A request as it is hashed, logged and handed back at settlement. Seven words; RequestLib has the bit positions.
struct Request {
    address requester;
    address relayer;
    bytes32 modelId;
    bytes32 promptHash;
    uint256 amounts;
    uint256 terms;
    address verifier;
}

struct ResultItem {
    Request request;
    uint96 reward;
    bytes32 resultHash;
}

/// Results of the same nodes in the same round, settled together under one `BatchSettled` event.
struct ResultSet {
    uint64 round;
    address[] nodes; // signing keys: 1, or k of a quorum
    bytes[] signatures; // one per node over the ResultSet, or one per node and item over the Result (so for one item)
    ResultItem[] items;
    bytes[] results; // empty, or one per item: the answer's bytes ("" = by hash only)
    bytes[] proofs; // empty, or one per item: for verifier plug-ins
}

/// With the request id, the preimage of the digest that the market keeps of a fulfilled request.
struct ResultRef {
    bytes32 resultHash;
    address relayer;
    uint64 round;
    address[] nodes;
    uint40 settledAt;
}

/// A relayer's signed word that a node shall serve a request in a round.
struct Assignment {
    bytes32 requestId;
    address relayer;
    address node;
    uint64 round;
    uint96 reward;
    uint40 deadline;
}

/// One leaf of a round: what became of a request in it. `kind` and `reason` are listed in docs/glossary.md.
struct Decision {
    bytes32 requestId;
    address node; // 0 unless assigned
    uint8 kind; // 0 = assigned, 1 = skipped, 2 = too late
    uint8 reason;
    uint96 reward;
    uint64 supersedesRound; // 0, or the round of the assignment that this one replaces
}

/// What closes a round. `assigned + skipped + tooLate` is the number of leaves under `decisionsRoot`.
struct RoundRecord {
    uint64 round;
    bytes32 decisionsRoot;
    bytes32 snapshotHash;
    bytes32 policyHash;
    uint64 anchorBlock;
    bytes32 anchorHash;
    uint32 assigned;
    uint32 skipped;
    uint32 tooLate;
}
