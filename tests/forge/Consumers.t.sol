// SPDX-License-Identifier: MIT
pragma solidity ^0.8.30;

import {Mode, Request, RequestParams, ResultItem, ResultSet, Status} from "../../contracts/Types.sol";
import {InferenceConsumer} from "../../contracts/consumers/InferenceConsumer.sol";
import {JudgedBounty} from "../../contracts/consumers/JudgedBounty.sol";
import {IInferenceMarket} from "../../contracts/interfaces/IInferenceMarket.sol";
import {IInferenceReceiver} from "../../contracts/interfaces/IInferenceReceiver.sol";
import {Base} from "./Base.sol";
import {Puppet} from "./Puppet.sol";
import {VM} from "./Vm.sol";

/// InferenceConsumer and JudgedBounty, from question to prize.
contract ConsumersTest is Base {
    JudgedBounty private bounty;
    address private author = address(0xA47);

    function setUp() external {
        _deploy(2);
        VM.deal(address(this), 1 ether);
        bounty = new JudgedBounty{value: 1 ether}(IInferenceMarket(address(market)));
    }

    receive() external payable {}

    /// Only exactly YES pays, once, after the veto time.
    function testFuzz_bounty_paysAGoodEntryAfterTheVetoTime(bytes memory answer, bool isGood, uint40 wait) external {
        VM.assume(answer.length != 0);
        if (isGood) answer = "YES";
        isGood = keccak256(answer) == keccak256("YES");
        bytes32 id = _askAndAnswer(answer);
        (address who, uint40 payableAt) = bounty.entries(id);
        VM.assertEq(who, author, "author");
        VM.assertEq(payableAt, isGood ? START + 1 days : 0, "payable");
        VM.assertTrue(!bounty.isOpen(id), "answered");
        VM.warp(START + _bound(wait, 1 days - 2, 1 days + 2));
        bool isDue = isGood && _now() >= START + 1 days;
        if (!isDue) VM.expectRevert(abi.encodeWithSelector(JudgedBounty.NotPayable.selector, id, payableAt));
        bounty.claim(id);
        VM.assertEq(author.balance, isDue ? 1 ether : 0, "paid");
        if (!isDue) return;
        VM.assertEq(bounty.prize(), 0, "once");
        VM.expectRevert(abi.encodeWithSelector(JudgedBounty.NotPayable.selector, id, 0));
        bounty.claim(id);
    }

    function testFuzz_bounty_canBeVetoedByItsSponsor(address by) external {
        bytes32 id = _askAndAnswer("YES");
        bool isSponsor = by == address(this);
        if (!isSponsor) VM.expectRevert(abi.encodeWithSelector(JudgedBounty.NotSponsor.selector, by));
        VM.prank(by);
        bounty.veto(id);
        bounty.veto(id);
        VM.warp(START + 2 days);
        VM.expectRevert(abi.encodeWithSelector(JudgedBounty.NotPayable.selector, id, 0));
        bounty.claim(id);
    }

    /// One node's word is not taken, nor an answer that it would not be told.
    function testFuzz_bounty_refusesAnswersThatItCannotTrust(uint8 mode, bool isInline, uint24 callbackGas) external {
        RequestParams memory params = _question();
        params.mode = Mode(mode % 2);
        params.inlineResult = isInline;
        params.callbackGas = callbackGas % 3 == 0 ? 0 : 200_000;
        if (params.mode == Mode.SIGNATURE) {
            VM.expectRevert(abi.encodeWithSelector(JudgedBounty.AnswerNotTrusted.selector, params.mode));
        } else if (!isInline || params.callbackGas == 0) {
            VM.expectRevert(abi.encodeWithSelector(JudgedBounty.NotInline.selector));
        }
        VM.deal(author, 1 ether);
        VM.prank(author);
        bounty.handIn{value: 1 ether}(params, "");
    }

    function test_bounty_takesAVerifiersWord() external {
        RequestParams memory params = _question();
        (params.mode, params.k, params.n, params.verifier) = (Mode.VERIFIER, 0, 0, address(verifier));
        VM.deal(author, 1 ether);
        VM.prank(author);
        bytes32 id = bounty.handIn{value: 1 ether}(params, "");
        VM.assertTrue(bounty.isOpen(id), "asked");
    }

    function test_bounty_authorThatRefusesIsNotPaid() external {
        Puppet refuser = new Puppet();
        refuser.orderEnding(Puppet.Ending.REVERT, "");
        author = address(refuser);
        bytes32 id = _askAndAnswer("YES");
        VM.warp(START + 1 days);
        VM.expectRevert(abi.encodeWithSelector(JudgedBounty.TransferFailed.selector, author, 1 ether));
        bounty.claim(id);
    }

    /// Nobody but the market tells it answers, and the market none that it did not ask for.
    function testFuzz_consumer_listensToTheMarketOnly(address by, bytes32 id) external {
        VM.assume(by != address(market));
        VM.expectRevert(abi.encodeWithSelector(InferenceConsumer.NotTheMarket.selector, by));
        VM.prank(by);
        bounty.onInferenceResult(id, HASH, "YES");
        VM.expectRevert(abi.encodeWithSelector(InferenceConsumer.NotAsked.selector, id));
        VM.prank(address(market));
        bounty.onInferenceResult(id, HASH, "YES");
        bytes32 asked = _askAndAnswer("YES");
        VM.expectRevert(abi.encodeWithSelector(InferenceConsumer.NotAsked.selector, asked));
        VM.prank(address(market));
        bounty.onInferenceResult(asked, HASH, "YES");
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
        VM.assertTrue(bounty.supportsInterface(type(IInferenceReceiver).interfaceId), "receiver");
        VM.assertTrue(bounty.supportsInterface(0x01ffc9a7), "ERC-165");
        VM.assertTrue(!bounty.supportsInterface(0xffffffff), "invalid");
    }

    /* HELPERS */

    function _question() private view returns (RequestParams memory params) {
        params = _quorumParams(1, 2, 2);
        (params.inlineResult, params.callbackGas) = (true, 200_000);
    }

    function _askAndAnswer(bytes memory answer) private returns (bytes32 id) {
        RequestParams memory params = _question();
        uint256 escrow = market.escrowOf(params);
        VM.deal(author, escrow);
        VM.prank(author);
        id = bounty.handIn{value: escrow}(params, "");
        VM.deal(author, 0);
        Request memory request = _packed(params, address(bounty));
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
