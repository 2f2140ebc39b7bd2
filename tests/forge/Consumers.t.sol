// SPDX-License-Identifier: MIT
pragma solidity ^0.8.30;

import {Mode, Request, RequestParams, ResultItem, ResultSet, Status} from "../../contracts/Types.sol";
import {BountyQuestion} from "../../contracts/consumers/BountyQuestion.sol";
import {InferenceConsumer} from "../../contracts/consumers/InferenceConsumer.sol";
import {JudgedBounty} from "../../contracts/consumers/JudgedBounty.sol";
import {IInferenceMarket} from "../../contracts/interfaces/IInferenceMarket.sol";
import {IInferenceReceiver} from "../../contracts/interfaces/IInferenceReceiver.sol";
import {Base} from "./Base.sol";
import {Puppet, newPuppet} from "./Puppet.sol";
import {VM, Vm} from "./Vm.sol";

/// InferenceConsumer and JudgedBounty, from question to prize.
contract ConsumersTest is Base {
    bytes private constant TEXT = "Water moves, the mill stands still.";
    bytes private constant YES =
        '{"choices":[{"finish_reason":"stop","index":0,"message":{"content":"YES","role":"assistant"}}],';

    JudgedBounty private bounty;
    address private author = address(0xA47);

    function setUp() external {
        _deploy(2);
        VM.deal(address(this), 1 ether);
        bounty = _bounty(_terms(Mode.QUORUM, 2, 2, address(0)), 1 ether);
    }

    receive() external payable {}

    function _assertLog(Vm.Log memory entry, bytes32 event_, bytes32 id, bytes memory data) private pure {
        VM.assertEq(entry.topics[0], event_, "event");
        VM.assertEq(entry.topics[1], id, "id");
        VM.assertEq(entry.data, data, "data");
    }

    /// Only a YES that the model ended with pays, once, after the veto time.
    function testFuzz_bounty_paysAGoodEntryAfterTheVetoTime(bytes memory answer, bool isGood, uint40 wait) external {
        VM.assume(answer.length != 0);
        if (isGood) answer = bytes.concat(YES, answer);
        (bytes32 id,) = _askAndAnswer(answer);
        (BountyQuestion question, uint40 payableAt, bool isVetoed) = bounty.entries(id);
        VM.assertEq(question.author(), author, "author");
        VM.assertEq(payableAt, isGood ? START + 1 days : 0, "payable");
        VM.assertTrue(!isVetoed, "not vetoed");
        VM.assertTrue(!question.isOpen(id), "answered");
        VM.warp(START + _bound(wait, 1 days - 2, 1 days + 2));
        bool isDue = isGood && _now() >= START + 1 days;
        if (!isDue) VM.expectRevert(abi.encodeWithSelector(JudgedBounty.NotPayable.selector, id, payableAt));
        VM.recordLogs();
        bounty.claim(id);
        Vm.Log[] memory logs = VM.getRecordedLogs();
        if (isDue) _assertLog(logs[logs.length - 1], JudgedBounty.BountyPaid.selector, id, abi.encode(1 ether));
        VM.assertEq(author.balance, isDue ? 1 ether : 0, "paid");
        if (!isDue) return;
        VM.assertEq(bounty.prize(), 0, "once");
        VM.expectRevert(abi.encodeWithSelector(JudgedBounty.NothingToWin.selector));
        bounty.claim(id);
    }

    function testFuzz_bounty_canBeVetoedByItsSponsorInTime(address by, uint40 wait) external {
        (bytes32 id,) = _askAndAnswer(bytes.concat(YES, "}"));
        VM.warp(START + _bound(wait, 0, 2 days));
        bool isSponsor = by == address(this);
        bool isLate = _now() >= START + 1 days;
        if (!isSponsor) VM.expectRevert(abi.encodeWithSelector(JudgedBounty.NotSponsor.selector, by));
        VM.prank(by);
        bounty.veto(id);
        uint256 payableAt = START + 1 days;
        if (isLate) VM.expectRevert(abi.encodeWithSelector(JudgedBounty.TooLateToVeto.selector, id, payableAt));
        VM.recordLogs();
        bounty.veto(id);
        Vm.Log[] memory logs = VM.getRecordedLogs();
        VM.assertEq(logs.length, isLate ? 0 : 1, "logs");
        if (!isLate) _assertLog(logs[0], JudgedBounty.EntryVetoed.selector, id, "");
        VM.warp(START + 2 days);
        if (!isLate) VM.expectRevert(abi.encodeWithSelector(JudgedBounty.NotPayable.selector, id, payableAt));
        bounty.claim(id);
    }

    /// Whatever is handed in, it stands in the prompt as it is, or is refused for a byte that would not.
    function testFuzz_bounty_takesTextsThatJsonTakesAsTheyAre(bytes memory text) external {
        VM.assume(text.length != 0 && text.length <= bounty.MAX_TEXT_BYTES());
        (bool isTaken, uint256 index) = (true, 0);
        for (; index < text.length && isTaken; ++index) {
            bytes1 each = text[index];
            isTaken = each >= 0x20 && each != '"' && each != "\\";
        }
        uint256 escrow = bounty.escrowOfEntry();
        VM.deal(author, escrow);
        if (!isTaken) VM.expectRevert(abi.encodeWithSelector(JudgedBounty.ByteNotAllowed.selector, index - 1));
        VM.prank(author);
        bounty.handIn{value: escrow}(text);
    }

    function testFuzz_bounty_refusesAnyButTheEscrow(uint96 sent) external {
        uint256 escrow = bounty.escrowOfEntry();
        VM.assume(sent != escrow);
        VM.deal(author, sent);
        VM.expectRevert(abi.encodeWithSelector(JudgedBounty.WrongEscrow.selector, escrow, sent));
        VM.prank(author);
        bounty.handIn{value: sent}(TEXT);
    }

    /// One node's word is not taken, nor an answer that it would not be told.
    function testFuzz_bounty_refusesAnswersThatItCannotTrust(uint8 mode, uint24 callbackGas) external {
        JudgedBounty.Terms memory terms = _terms(Mode(mode % 4), 2, 2, address(0));
        terms.callbackGas = callbackGas % 3 == 0 ? 0 : 200_000;
        if (terms.mode != Mode.QUORUM && terms.mode != Mode.VERIFIER) {
            VM.expectRevert(abi.encodeWithSelector(JudgedBounty.AnswerNotTrusted.selector, terms.mode));
        } else if (terms.callbackGas == 0) {
            VM.expectRevert(abi.encodeWithSelector(JudgedBounty.NoCallback.selector));
        }
        _bounty(terms, 0);
    }

    function test_bounty_takesAVerifiersWord() external {
        VM.deal(address(this), 1);
        bounty = _bounty(_terms(Mode.VERIFIER, 0, 0, address(verifier)), 1);
        (bytes32 id, RequestParams memory params) = _handIn();
        (BountyQuestion question,,) = bounty.entries(id);
        VM.assertTrue(question.isOpen(id), "asked");
        VM.assertEq(params.verifier, address(verifier), "of the verifier");
    }

    function test_bounty_authorThatRefusesIsNotPaid() external {
        Puppet refuser = newPuppet();
        refuser.orderEnding(Puppet.Ending.REVERT, "");
        author = address(refuser);
        (bytes32 id,) = _askAndAnswer(bytes.concat(YES, "}"));
        VM.warp(START + 1 days);
        VM.expectRevert(abi.encodeWithSelector(JudgedBounty.TransferFailed.selector, author, 1 ether));
        bounty.claim(id);
    }

    /// What is left of an escrow is its own author's, to the wei.
    function testFuzz_bounty_givesTheAuthorWhatIsLeft(bytes memory answer) external {
        VM.assume(answer.length != 0);
        (bytes32 id,) = _askAndAnswer(answer);
        (BountyQuestion question,,) = bounty.entries(id);
        uint256 credit = _credit(address(question));
        VM.assertTrue(credit != 0, "something is left");
        VM.assertEq(bounty.collect(id), credit, "all of it");
        VM.assertEq(author.balance, credit, "to the author");
        VM.assertEq(bounty.collect(id), 0, "once");
        VM.assertEq(address(bounty).balance, 1 ether, "the prize stays");
    }

    function testFuzz_bounty_isJudgedByItsQuestionsOnly(address by) external {
        (bytes32 id,) = _handIn();
        (BountyQuestion question,,) = bounty.entries(id);
        VM.assume(by != address(question));
        VM.expectRevert(abi.encodeWithSelector(JudgedBounty.NotTheQuestion.selector, by));
        VM.prank(by);
        bounty.judge(id, YES);
        VM.expectRevert(abi.encodeWithSelector(BountyQuestion.NotTheBounty.selector, by));
        VM.prank(by);
        question.ask(by, _params(1), "");
    }

    function testFuzz_bounty_isReclaimedLongAfter(uint40 wait) external {
        uint256 until = bounty.CLOSES_AT() + 600 + 8 days;
        VM.warp(_bound(wait, until - 2, until + 2));
        bool isOver = _now() > until;
        if (!isOver) VM.expectRevert(abi.encodeWithSelector(JudgedBounty.StillOpen.selector, until));
        uint256 before = address(this).balance;
        VM.recordLogs();
        bounty.reclaim();
        Vm.Log[] memory logs = VM.getRecordedLogs();
        VM.assertEq(logs.length, isOver ? 1 : 0, "logs");
        if (isOver) {
            VM.assertEq(logs[0].topics[0], JudgedBounty.PrizeReclaimed.selector, "event");
            VM.assertEq(logs[0].data, abi.encode(1 ether), "amount");
        }
        VM.assertEq(address(this).balance - before, isOver ? 1 ether : 0, "back to the sponsor");
    }

    /// Nobody but the market tells it answers, and the market none that it did not ask for.
    function testFuzz_consumer_listensToTheMarketOnly(address by, bytes32 id) external {
        VM.assume(by != address(market));
        Collector consumer = new Collector(IInferenceMarket(address(market)));
        VM.expectRevert(abi.encodeWithSelector(InferenceConsumer.NotTheMarket.selector, by));
        VM.prank(by);
        consumer.onInferenceResult(id, HASH, "YES");
        VM.expectRevert(abi.encodeWithSelector(InferenceConsumer.NotAsked.selector, id));
        VM.prank(address(market));
        consumer.onInferenceResult(id, HASH, "YES");
        (bytes32 asked,) = _askAndAnswer(YES);
        (BountyQuestion question,,) = bounty.entries(asked);
        VM.expectRevert(abi.encodeWithSelector(InferenceConsumer.NotAsked.selector, asked));
        VM.prank(address(market));
        question.onInferenceResult(asked, HASH, "YES");
    }

    /// What is left of the escrows is the contract's credit, and it takes it out.
    function testFuzz_consumer_collectsItsCredit(uint96 credit) external {
        Collector collector = new Collector(IInferenceMarket(address(market)));
        _deposit(address(collector), credit);
        VM.assertEq(collector.collect(), credit, "all of it");
        VM.assertEq(address(collector).balance, credit, "taken out");
        VM.assertEq(_credit(address(collector)), 0, "nothing left");
    }

    function test_supportsInterface() external view {
        BountyQuestion question = BountyQuestion(payable(bounty.QUESTION()));
        VM.assertTrue(question.supportsInterface(type(IInferenceReceiver).interfaceId), "receiver");
        VM.assertTrue(question.supportsInterface(0x01ffc9a7), "ERC-165");
        VM.assertTrue(!question.supportsInterface(0xffffffff), "invalid");
    }

    /* HELPERS */

    function _terms(Mode mode, uint8 k, uint8 n, address plugIn)
        private
        view
        returns (JudgedBounty.Terms memory terms)
    {
        RequestParams memory params = _params(1);
        return JudgedBounty.Terms({
            relayer: params.relayer,
            modelId: params.modelId,
            mode: mode,
            k: k,
            n: n,
            verifier: plugIn,
            callbackGas: 200_000,
            maxOutputTokens: 4,
            ttl: 600,
            maxReward: 1 gwei,
            gasBudget: 0.1 ether,
            priorityFee: 1
        });
    }

    function _bounty(JudgedBounty.Terms memory terms, uint256 prize) private returns (JudgedBounty) {
        IInferenceMarket asked = IInferenceMarket(address(market));
        return new JudgedBounty{value: prize}(asked, terms, "A poem about water.", uint40(START + 10 days));
    }

    function _handIn() private returns (bytes32 id, RequestParams memory params) {
        uint256 escrow = bounty.escrowOfEntry();
        VM.deal(author, escrow);
        params = _paramsOfEntry();
        VM.prank(author);
        id = bounty.handIn{value: escrow}(TEXT);
        VM.assertEq(author.balance, 0, "paid for");
    }

    function _paramsOfEntry() private view returns (RequestParams memory params) {
        bytes memory prompt = bounty.promptOf(TEXT);
        (params.promptHash, params.promptBytes) = (keccak256(prompt), uint32(prompt.length));
        (params.salt, params.deadline) = (bounty.handedIn(), uint40(_now() + 600));
        (params.lane, params.batchable, params.inlineResult) = (1, true, true);
        (
            params.relayer,
            params.modelId,
            params.mode,
            params.k,
            params.n,
            params.verifier,
            params.callbackGas,
            params.maxOutputTokens,,
            params.maxReward,
            params.gasBudget,
            params.priorityFee
        ) = bounty.terms();
    }

    function _askAndAnswer(bytes memory answer) private returns (bytes32 id, RequestParams memory params) {
        (id, params) = _handIn();
        (BountyQuestion question,,) = bounty.entries(id);
        Request memory request = _packed(params, address(question));
        ResultItem[] memory items = new ResultItem[](1);
        items[0] = ResultItem(request, 1, keccak256(answer));
        ResultSet memory set = _set(items, _record(relayer), _keys(2));
        set.results = new bytes[](1);
        set.results[0] = answer;
        _submit(set);
        _assertStatus(request, Status.FULFILLED);
    }
}

contract Collector is InferenceConsumer {
    constructor(IInferenceMarket market) InferenceConsumer(market) {}

    receive() external payable {}

    function collect() external returns (uint256) {
        return _collect();
    }

    function _onAnswer(bytes32, bytes32, bytes calldata) internal override {}
}
