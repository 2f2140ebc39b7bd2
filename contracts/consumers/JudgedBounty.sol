// SPDX-License-Identifier: MIT
pragma solidity ^0.8.30;

import {Mode, RequestParams} from "../Types.sol";
import {IInferenceMarket} from "../interfaces/IInferenceMarket.sol";
import {InferenceConsumer} from "./InferenceConsumer.sol";

/// @title Example: a bounty that a model judges.
/// @notice A sponsor locks wei for who hands in a text that the model calls good enough. Value hangs on the answer, so one
/// node's word (SIGNATURE mode, which says who answered and not that the answer is right) is not taken for it: the question
/// goes out in QUORUM or VERIFIER mode, and an answer that is not exactly `YES` pays nobody. A model can be talked round by
/// the text that it judges: the sponsor may veto within `VETO_TIME`.
contract JudgedBounty is InferenceConsumer {
    uint256 public constant VETO_TIME = 1 days;

    struct Entry {
        address author;
        uint40 payableAt; // 0 = not judged good
    }

    address public immutable SPONSOR;
    bytes32 private constant YES = keccak256("YES");

    uint256 public prize;
    mapping(bytes32 requestId => Entry) public entries;

    event EntryJudged(bytes32 indexed requestId, address indexed author, bool isGood);
    event BountyPaid(bytes32 indexed requestId, address indexed author, uint256 amount);
    event EntryVetoed(bytes32 indexed requestId);

    error AnswerNotTrusted(Mode mode);
    error NotInline();
    error NotSponsor(address caller);
    error NotPayable(bytes32 requestId, uint256 payableAt);
    error TransferFailed(address to, uint256 amount);

    constructor(IInferenceMarket market) payable InferenceConsumer(market) {
        SPONSOR = msg.sender;
        prize = msg.value;
    }

    /// Refunds of escrow come back through here.
    receive() external payable {}

    /// @notice Hands in a text for judgement. The author pays for the question.
    function handIn(RequestParams calldata params, bytes calldata prompt) external payable returns (bytes32 requestId) {
        if (params.mode != Mode.QUORUM && params.mode != Mode.VERIFIER) revert AnswerNotTrusted(params.mode);
        if (!params.inlineResult || params.callbackGas == 0) revert NotInline();
        requestId = _ask(params, prompt, msg.value);
        entries[requestId].author = msg.sender;
    }

    /// @notice Pays a good entry's author once the veto time is over.
    function claim(bytes32 requestId) external {
        Entry memory entry = entries[requestId];
        if (entry.payableAt == 0 || block.timestamp < entry.payableAt) revert NotPayable(requestId, entry.payableAt);
        uint256 amount = prize;
        prize = 0;
        delete entries[requestId];
        emit BountyPaid(requestId, entry.author, amount);
        (bool ok,) = entry.author.call{value: amount}("");
        if (!ok) revert TransferFailed(entry.author, amount);
    }

    function veto(bytes32 requestId) external {
        if (msg.sender != SPONSOR) revert NotSponsor(msg.sender);
        delete entries[requestId];
        emit EntryVetoed(requestId);
    }

    function _onAnswer(bytes32 requestId, bytes32, bytes calldata result) internal override {
        Entry storage entry = entries[requestId];
        bool isGood = keccak256(result) == YES;
        if (isGood) entry.payableAt = uint40(block.timestamp + VETO_TIME);
        emit EntryJudged(requestId, entry.author, isGood);
    }
}
