// SPDX-License-Identifier: MIT
pragma solidity ^0.8.30;

import {
    Assignment,
    Decision,
    ItemStatus,
    Request,
    RequestParams,
    ResultItem,
    ResultRef,
    ResultSet,
    Status
} from "../../contracts/Types.sol";
import {IFaults} from "../../contracts/interfaces/IFaults.sol";
import {IInferenceMarket} from "../../contracts/interfaces/IInferenceMarket.sol";
import {IResultVerifier} from "../../contracts/interfaces/IResultVerifier.sol";
import {Base} from "./Base.sol";
import {Puppet, newPuppet} from "./Puppet.sol";
import {VM} from "./Vm.sol";

/// Attacks on the market, one a test. Those that belong to one function stand with it: gas griefing and bombs in
/// Callbacks, Verifiers and RequestsFor; times and orders in Results; forced ether in Accounts; the owner in Ownership.
contract AttacksTest is Base {
    uint24 private constant CALLBACK_GAS = 2_000_000;

    Puppet private puppet;
    address private requester = address(0x4E9);

    function setUp() external {
        _deploy(3);
        puppet = newPuppet();
        VM.deal(address(puppet), 10 ether);
    }

    /* RE-ENTRANCY */

    /// Through withdraw and withdrawTo: the credit is gone before the wei arrive.
    function testFuzz_reentrancy_withdraw(uint96 credit, bool to) external {
        VM.assume(credit != 0);
        uint256 before = address(puppet).balance;
        _deposit(address(puppet), credit);
        _deposit(requester, 1 ether);
        bytes memory again = to
            ? abi.encodeCall(IInferenceMarket.withdrawTo, (address(puppet), credit))
            : abi.encodeCall(IInferenceMarket.withdraw, (address(puppet), credit));
        puppet.orderStep(address(market), 0, again);
        puppet.act(address(market), 0, again);
        (bool worked, bytes memory why) = puppet.stepAt(0);
        VM.assertTrue(!worked, "the second time is refused");
        VM.assertEq(
            why,
            abi.encodeWithSelector(IInferenceMarket.BalanceShort.selector, address(puppet), credit, 0),
            "as there is nothing left"
        );
        VM.assertEq(address(puppet).balance, before + credit, "paid once");
        VM.assertEq(address(market).balance, 1 ether, "others' wei stay");
    }

    /// Through a callback: results can be neither submitted nor retried from within, by nobody.
    function test_reentrancy_callbackSubmitsNothing() external {
        Request memory first = _post(_callbackParams(1, CALLBACK_GAS), address(puppet));
        Request memory second = _post(_params(2), requester);
        uint64 round = _record(relayer);
        VM.warp(START + 1);
        ResultSet[] memory sets = new ResultSet[](1);
        sets[0] = _one(second, 1, round, 0);
        bytes memory mandate =
            _sign(relayerKey, address(market), _hashSubmitter(relayer, address(puppet), type(uint40).max));
        Assignment memory assignment = _assignment(second, 1, round, 0);
        bytes memory signature = _sign(relayerKey, address(market), _hashAssignment(assignment));
        ResultRef memory ref = _refOf(round, _oneKey(0));
        puppet.orderStep(
            address(market),
            0,
            abi.encodeCall(IInferenceMarket.submitResultsFor, (relayer, sets, type(uint40).max, mandate))
        );
        puppet.orderStep(
            address(market), 0, abi.encodeCall(IInferenceMarket.submitAssigned, (assignment, signature, sets[0]))
        );
        puppet.orderStep(address(market), 0, abi.encodeCall(IInferenceMarket.retryCallback, (first, ref, "")));
        puppet.orderStep(address(market), 0, abi.encodeCall(IInferenceMarket.submitResults, (address(puppet), sets)));
        _assertStatus(_submit(_one(first, 1, round, 0))[0], ItemStatus.OK);
        _assertStatus(first, Status.FULFILLED);
        _assertStatus(second, Status.PENDING);
        VM.assertEq(puppet.stepsTaken(), 4, "all were tried");
        for (uint256 i = 0; i < 4; ++i) {
            (bool worked, bytes memory why) = puppet.stepAt(i);
            VM.assertTrue(!worked, "refused");
            VM.assertEq(why, abi.encodeWithSignature("ReentrancyGuardReentrantCall()"), "as one that comes back");
        }
    }

    /// What a callback may do (post, raise, cancel, expire, withdraw, deposit), it does to its own only, and the books
    /// balance; also when it ends what comes later in the same batch.
    function testFuzz_reentrancy_callbackKeepsTheBooks(uint8 order, bool fails) external {
        Request[4] memory requests;
        requests[0] = _post(_callbackParams(1, CALLBACK_GAS), address(puppet));
        requests[1] = _post(_params(2), address(puppet)); // of the next set
        requests[2] = _post(_params(3), address(puppet)); // cancelled
        RequestParams memory brief = _params(4);
        brief.deadline = uint40(START + 10);
        requests[3] = _post(brief, address(puppet)); // expired
        uint64 round = _record(relayer);
        VM.warp(START + 311);
        _orderAll(requests, order);
        if (fails) puppet.orderEnding(Puppet.Ending.REVERT, "");
        ResultSet[] memory sets = new ResultSet[](2);
        (sets[0], sets[1]) = (_one(requests[0], 1e15, round, 0), _one(requests[1], 1e15, round, 1));
        VM.prank(relayer);
        market.submitResults(relayer, sets);

        _assertStatus(requests[0], fails ? Status.FULFILLED_CALLBACK_FAILED : Status.FULFILLED);
        _assertStatus(requests[1], fails ? Status.FULFILLED : Status.CANCELLED);
        _assertStatus(requests[3], fails ? Status.PENDING : Status.EXPIRED);
        uint256 open = fails ? 2 * 21e14 : 21e14 + 7; // the cancelled or released ones and the new one, raised
        VM.assertEq(
            address(market).balance,
            open + (fails ? 0 : 21e14) + _credit(address(puppet)) + _credit(relayer) + _credit(operators[0].payee)
                + _credit(operators[1].payee),
            "I1: exactly"
        );
    }

    /// Through a wallet or a verifier: they are asked with static calls, so nothing that they do can write.
    function test_reentrancy_staticCallsWriteNothing() external {
        puppet.orderReadOnly(true);
        Writer writer = new Writer(address(market));
        _deposit(address(writer), 1 ether);
        market.requestInferenceFor(_params(1), "", address(writer), 0, type(uint40).max, "");
        _assertStatus(_packed(_params(1), address(writer)), Status.PENDING);
        Request memory request = _post(_verifierParams(2, address(writer)), requester);
        _assertStatus(_submit(_one(request, 1, _record(relayer), 0))[0], ItemStatus.OK);
        VM.assertEq(_credit(address(writer)), 1 ether - 21e14, "it withdrew nothing");
        VM.assertEq(writer.writes(), 0, "it wrote nothing");
    }

    /// Through the payment of stake to Faults: only the stake manager pays it, and it is passed on in the same call.
    function test_reentrancy_punishmentPaysCreditAndNoCall() external {
        Request memory request = _post(_params(1), address(puppet));
        bytes memory release = _sign(relayerKey, address(market), _hashRelease(_idOf(request), type(uint40).max));
        puppet.act(
            address(market), 0, abi.encodeCall(IInferenceMarket.cancelWithRelease, (request, type(uint40).max, release))
        );
        VM.prank(operators[0].owner);
        stakes.setPayee(operators[0].node, address(market), address(puppet));
        Assignment memory assignment = _assignment(request, 1, 1, 0);
        bytes memory signature = _sign(relayerKey, address(market), _hashAssignment(assignment));
        bytes memory proof = abi.encodeCall(IFaults.proveReleasedAssignment, (request, assignment, signature));
        puppet.orderStep(address(faults), 0, proof);
        puppet.act(address(faults), 0, proof);
        VM.assertEq(puppet.calls(), 0, "neither reporter nor victim is called");
        VM.assertEq(address(faults).balance, 0, "nothing stays");
    }

    /* SIGNATURES */

    /// Malleability: the same signature with the other s, another v, or packed short (EIP-2098) is nobody's.
    function testFuzz_signature_hasOneForm(uint8 what) external {
        Request memory request = _post(_params(1), requester);
        ResultSet memory set = _one(request, 1, _record(relayer), 0);
        bytes memory good = set.signatures[0];
        set.signatures[0] = _mangled(good, what);
        _assertStatus(_submit(set)[0], ItemStatus.BAD_SIGNATURE);
        set.signatures[0] = good;
        _assertStatus(_submit(set)[0], ItemStatus.OK);
    }

    /// The same for every other signature that the contracts take.
    function testFuzz_signature_hasOneFormEverywhere(uint8 what, uint8 where) external {
        Request memory request = _post(_params(1), requester);
        where %= 5;
        bytes32[5] memory hashes = [
            _hashRelease(_idOf(request), type(uint40).max),
            _hashSubmitter(relayer, address(this), type(uint40).max),
            _hashAssignment(_assignment(request, 1, 1, 0)),
            _hashRequestFor(_params(2), relayer, 0, type(uint40).max),
            _hashRecord(_recordOf(relayer))
        ];
        bytes memory good = _sign(relayerKey, where == 4 ? address(log) : address(market), hashes[where]);
        for (uint256 i = 0; i < 2; ++i) {
            bytes memory signature = i == 0 ? _mangled(good, what) : good;
            VM.assertTrue(_takes(where, request, signature) == (i == 1), "one form");
        }
    }

    /// Replay: a result signed for another market or on another chain is nobody's here.
    function testFuzz_signature_isOfOneChainAndMarket(uint64 chain, address other) external {
        VM.assume(chain != 0 && chain != block.chainid && other != address(market));
        Request memory request = _post(_params(1), requester);
        uint64 round = _record(relayer);
        ResultSet memory set = _one(request, 1, round, 0);
        bytes32 structHash = _hashResult(_idOf(request), HASH, 1, relayer, round);
        set.signatures[0] = _sign(operators[0].key, other, structHash);
        _assertStatus(_submit(set)[0], ItemStatus.BAD_SIGNATURE);
        set.signatures[0] = _signOn(chain, operators[0].key, structHash);
        _assertStatus(_submit(set)[0], ItemStatus.BAD_SIGNATURE);
        set.signatures[0] = _sign(operators[0].key, address(market), structHash);
        _assertStatus(_submit(set)[0], ItemStatus.OK);
    }

    /// A node's signature on a ResultSet of one item is no signature of that Result, nor the other way round.
    function test_signature_ofASetIsNotOfItsResult() external {
        Request memory request = _post(_params(1), requester);
        uint64 round = _record(relayer);
        ResultSet memory set = _one(request, 1, round, 0);
        bytes32[] memory results = new bytes32[](1);
        results[0] = _hashResult(_idOf(request), HASH, 1, relayer, round);
        set.signatures[0] = _sign(operators[0].key, address(market), _hashResultSet(relayer, round, results));
        _assertStatus(_submit(set)[0], ItemStatus.BAD_SIGNATURE);
    }

    /// A result signed for one relayer or round is not paid to another, nor in another.
    function testFuzz_signature_isOfOneRelayerAndRound(bool otherRound) external {
        RequestParams memory params = _params(1);
        params.relayer = address(0);
        Request memory request = _post(params, requester);
        _record(relayer);
        _record(relayer);
        _record(rival);
        ResultSet[] memory sets = new ResultSet[](1);
        sets[0] = _one(request, 1, 1, 0);
        if (otherRound) sets[0].round = 2;
        address by = otherRound ? relayer : rival;
        VM.prank(by);
        market.submitResults(by, sets);
        _assertStatus(request, Status.PENDING);
        VM.assertEq(_credit(by), 0, "nothing is paid");
    }

    /* LIFTED FROM THE MEMPOOL */

    /// Another sender is refused; with a node of its own it is as well, as the relayer did not name it.
    function testFuzz_lifted_resultsAreOfNoUse(address thief) external {
        VM.assume(thief != relayer);
        Request memory request = _post(_params(1), requester);
        uint64 round = _record(relayer);
        ResultSet[] memory sets = new ResultSet[](1);
        for (uint256 i = 0; i < 2; ++i) {
            sets[0] = _one(request, 1, round, i);
            VM.expectRevert(abi.encodeWithSelector(IInferenceMarket.NotSubmitter.selector, thief, relayer));
            VM.prank(thief);
            market.submitResults(relayer, sets);
        }
        // As a relayer of its own it gets nothing: the request names another.
        (relayer, rival) = (rival, relayer);
        round = _record(relayer);
        _assertStatus(_submit(_one(request, 1, round, 1))[0], ItemStatus.WRONG_RELAYER);
        VM.assertEq(_credit(operators[1].payee) + _credit(relayer), 0, "nothing is paid");
        _assertStatus(request, Status.PENDING);
    }

    /// A node that was not assigned, brought in by the relayer all the same: paid, and the relayer pays for it.
    function test_lifted_aNodeThatWasNotAssignedCostsTheRelayerItsBond() external {
        Request memory request = _post(_params(1), requester);
        Decision[] memory decisions = new Decision[](1);
        decisions[0] = _assigned(request, 1, 0);
        IFaults.Absence memory absence;
        absence.record = _recordDecisions(relayer, decisions);
        _assertStatus(_submit(_one(request, 1, 1, 1))[0], ItemStatus.OK);
        bool isBefore = operators[1].node < operators[0].node;
        absence.index = isBefore ? 0 : 1;
        (absence.left, absence.right) = (decisions[0], decisions[0]);
        faults.provePaidUndecided(request, _refOf(1, _oneKey(1)), 0, absence);
        VM.assertEq(stakes.relayerOf(relayer).bond, STAKE - RELAYER_WEI, "slashed");
    }

    /* WORDS */

    /// I11: whatever the result hash is made to look like, a settled word is of its own status and request only.
    function testFuzz_words_noHashPassesForAnotherState(uint8 trap, bytes32 hash) external {
        Request memory pending = _post(_params(1), requester);
        Request memory request = _post(_params(2), requester);
        bytes32[6] memory traps = [
            bytes32(market.wordOf(_idOf(pending))),
            bytes32(market.wordOf(_idOf(request))),
            bytes32(uint256(6) << 248),
            keccak256(abi.encode(Status.CANCELLED, _idOf(request))),
            bytes32(0),
            hash
        ];
        hash = traps[trap % 6];
        ResultItem[] memory items = new ResultItem[](1);
        items[0] = ResultItem(request, 1, hash);
        _assertStatus(_submit(_set(items, _record(relayer), _oneKey(0)))[0], ItemStatus.OK);
        _assertStatus(request, Status.FULFILLED);
        uint256 word = market.wordOf(_idOf(request));
        VM.assertEq(word >> 248, uint256(Status.FULFILLED), "status on top");
        (uint96 added, uint40 deadline) = market.pendingOf(_idOf(request));
        VM.assertEq(uint256(added) + deadline, 0, "not pending");
        VM.deal(address(this), 1);
        VM.expectRevert(abi.encodeWithSelector(IInferenceMarket.NotPending.selector, _idOf(request), Status.FULFILLED));
        market.raisePriorityFee{value: 1}(_idOf(request));
        VM.warp(START + 2 days);
        market.expire(_list(request));
        VM.assertEq(market.wordOf(_idOf(request)), word, "the word stays");
    }

    /// I11: all states of all requests have words of their own.
    function test_words_areAllDifferent() external {
        uint256[] memory words = new uint256[](12);
        uint64 round = _record(relayer);
        for (uint64 i = 0; i < 4; ++i) {
            Request memory request = _post(_callbackParams(i, 100_000), address(puppet));
            bytes32 id = _idOf(request);
            uint256 state = VM.snapshotState();
            puppet.orderEnding(i % 2 == 0 ? Puppet.Ending.ANSWER : Puppet.Ending.REVERT, "");
            _submit(_one(request, 1, round, 0));
            words[i * 3] = market.wordOf(id);
            VM.assertTrue(VM.revertToState(state), "back");
            state = VM.snapshotState();
            bytes memory release = _sign(relayerKey, address(market), _hashRelease(id, type(uint40).max));
            VM.prank(address(puppet));
            market.cancelWithRelease(request, type(uint40).max, release);
            words[i * 3 + 1] = market.wordOf(id);
            VM.assertTrue(VM.revertToState(state), "back");
            state = VM.snapshotState();
            VM.warp(START + 2 days);
            market.expire(_list(request));
            words[i * 3 + 2] = market.wordOf(id);
            VM.assertTrue(VM.revertToState(state), "back");
        }
        for (uint256 i = 0; i < 12; ++i) {
            VM.assertTrue(words[i] >> 248 >= uint256(Status.FULFILLED), "ended");
            for (uint256 j = 0; j < i; ++j) {
                VM.assertTrue(words[i] != words[j], "different");
            }
        }
    }

    /* DUST AND EXTREMES */

    /// The smallest and the greatest amounts, for sixteen nodes, with raises: nothing wraps round, nothing is lost.
    function testFuzz_extremes_areSplitToTheWei(uint8 k, bool high, uint8 dust, bool raised, uint56 price) external {
        VM.assume(price != 0);
        delete operators;
        _deploy(16);
        k = uint8(_bound(k, 2, 16));
        RequestParams memory params = _quorumParams(1, k, 16);
        uint80 amount = high ? type(uint80).max : dust % 20;
        (params.maxReward, params.gasBudget, params.priorityFee) = (amount, amount, amount);
        Request memory request = _post(params, requester);
        uint256 added = raised ? high ? type(uint96).max : 1 : 0;
        if (raised) {
            VM.deal(address(this), added);
            market.raisePriorityFee{value: added}(_idOf(request));
        }
        ResultItem[] memory items = new ResultItem[](1);
        items[0] = _item(request, amount / k);
        ResultSet memory set = _set(items, _record(relayer), _keys(k));
        VM.txGasPrice(price);
        _assertStatus(_submit(set)[0], ItemStatus.OK);
        uint256 total = _credit(requester) + _credit(relayer);
        for (uint256 i = 0; i < k; ++i) {
            VM.assertEq(_credit(operators[i].payee), _credit(operators[0].payee), "each the same");
            total += _credit(operators[i].payee);
        }
        VM.assertEq(total, 3 * uint256(amount) + added, "I3: to the wei");
        VM.assertEq(address(market).balance, total, "I1");
    }

    /* SPAM */

    /// Cheap requests of a spammer, before or within the batch, change nothing of what others pay but their share of the
    /// fixed gas, which falls.
    function testFuzz_spam_raisesNobodysCosts(uint8 count, bool inBatch) external {
        count = uint8(_bound(count, 1, 30));
        RequestParams memory params = _params(1000);
        params.gasBudget = 1 ether;
        Request memory request = _post(params, requester);
        uint64 round = _record(relayer);
        VM.txGasPrice(1 gwei);
        uint256 state = VM.snapshotState();
        _assertStatus(_submit(_one(request, 1e15, round, 0))[0], ItemStatus.OK);
        uint256 refundAlone = _credit(requester);
        VM.assertTrue(VM.revertToState(state), "back");

        ResultItem[] memory items = new ResultItem[](inBatch ? count + 1 : 1);
        items[0] = _item(request, 1e15);
        for (uint256 i = 1; i <= count; ++i) {
            RequestParams memory spam = _params(uint64(i));
            (spam.maxReward, spam.gasBudget, spam.priorityFee) = (0, 0, 0);
            Request memory posted = _post(spam, address(0x5BA4));
            if (inBatch) items[i] = _item(posted, 0);
        }
        _submit(_set(items, round, _oneKey(0)));
        VM.assertGe(_credit(requester), refundAlone, "no more is taken");
        if (!inBatch) VM.assertEq(_credit(requester), refundAlone, "to the wei");
    }

    /// The cost of a settled item does not grow with the batch, however bad the other items are.
    function test_spam_costOfAnItemDoesNotGrowWithTheBatch() external {
        uint256[2] memory gas;
        for (uint256 size = 0; size < 2; ++size) {
            uint256 count = size == 0 ? 20 : 200;
            ResultItem[] memory items = new ResultItem[](count);
            for (uint256 i = 0; i < count; ++i) {
                items[i] = _item(_packed(_params(uint64(i)), requester), 0);
            }
            uint256 start = 1000 * (size + 1);
            for (uint256 i = 0; i < count; ++i) {
                items[i] = _item(_post(_params(uint64(start + i)), requester), 0);
            }
            ResultSet[] memory sets = new ResultSet[](1);
            sets[0] = _set(items, _record(relayer), _oneKey(0));
            bytes memory data = abi.encodeCall(IInferenceMarket.submitResults, (relayer, sets));
            VM.prank(relayer);
            uint256 before = gasleft();
            (bool ok,) = address(market).call(data);
            gas[size] = (before - gasleft()) / count;
            VM.assertTrue(ok, "settled");
        }
        VM.assertLe(gas[1], gas[0], "gas of an item in the larger batch");
    }

    /* HELPERS */

    function _mangled(bytes memory good, uint8 what) private pure returns (bytes memory) {
        bytes32 r;
        uint256 s;
        uint8 v = uint8(good[64]);
        assembly ("memory-safe") {
            r := mload(add(good, 0x20))
            s := mload(add(good, 0x40))
        }
        uint256 n = 0xFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFEBAAEDCE6AF48A03BBFD25E8CD0364141;
        what %= 7;
        if (what == 0) return abi.encodePacked(r, n - s, uint8(55 - v)); // high s
        if (what == 1) return abi.encodePacked(r, s, uint8(v - 27)); // 0 or 1
        if (what == 2) return abi.encodePacked(r, s, uint8(55 - v)); // the other v
        if (what == 3) return abi.encodePacked(r, s | (uint256(v - 27) << 255)); // EIP-2098
        if (what == 4) return abi.encodePacked(r, s);
        if (what == 5) return abi.encodePacked(r, s, v, uint8(0));
        return new bytes(65);
    }

    function _takes(uint256 where, Request memory request, bytes memory signature) private returns (bool ok) {
        bytes memory data;
        address target = address(market);
        address by = address(this);
        ResultSet[] memory sets = new ResultSet[](1);
        if (where == 0) {
            by = requester;
            data = abi.encodeCall(IInferenceMarket.cancelWithRelease, (request, type(uint40).max, signature));
        } else if (where == 1) {
            sets[0] = _one(request, 1, 1, 0);
            data = abi.encodeCall(IInferenceMarket.submitResultsFor, (relayer, sets, type(uint40).max, signature));
        } else if (where == 2) {
            VM.warp(START + 601);
            data = abi.encodeCall(
                IInferenceMarket.submitAssigned, (_assignment(request, 1, 1, 0), signature, _one(request, 1, 1, 0))
            );
        } else if (where == 3) {
            _deposit(relayer, 1 ether);
            data = abi.encodeCall(
                IInferenceMarket.requestInferenceFor, (_params(2), "", relayer, 0, type(uint40).max, signature)
            );
        } else {
            (target, data) = (address(log), abi.encodeCall(log.recordRound, (relayer, _recordOf(relayer), signature)));
        }
        VM.prank(by);
        (ok,) = target.call(data);
    }

    function _signOn(uint256 chain, uint256 key, bytes32 structHash) private view returns (bytes memory) {
        bytes32 domain = keccak256(
            abi.encode(
                keccak256("EIP712Domain(string name,string version,uint256 chainId,address verifyingContract)"),
                keccak256("Headrace"),
                keccak256("1"),
                chain,
                address(market)
            )
        );
        return _signDigest(key, keccak256(abi.encodePacked("\x19\x01", domain, structHash)));
    }

    /// What the callback does: everything that the market lets it.
    function _orderAll(Request[4] memory requests, uint8 order) private {
        address to = address(market);
        RequestParams memory fresh = _params(77);
        bytes32 freshId = _idOf(_packed(fresh, address(puppet)));
        bytes memory release = _sign(relayerKey, to, _hashRelease(_idOf(requests[1]), type(uint40).max));
        puppet.orderStep(to, 21e14, abi.encodeCall(IInferenceMarket.requestInference, (fresh, "")));
        puppet.orderStep(to, 7, abi.encodeCall(IInferenceMarket.raisePriorityFee, (freshId)));
        if (order % 2 == 0) puppet.orderStep(to, 5, abi.encodeCall(IInferenceMarket.deposit, (address(puppet))));
        puppet.orderStep(
            to, 0, abi.encodeCall(IInferenceMarket.cancelWithRelease, (requests[1], type(uint40).max, release))
        );
        puppet.orderStep(to, 0, abi.encodeCall(IInferenceMarket.cancel, (requests[2])));
        puppet.orderStep(to, 0, abi.encodeCall(IInferenceMarket.expire, (_list(requests[3]))));
        if (order % 3 == 0) puppet.orderStep(to, 0, abi.encodeCall(IInferenceMarket.withdrawTo, (address(0x111), 9)));
        if (order % 5 == 0) puppet.orderStep(to, 0, abi.encodeCall(IInferenceMarket.withdraw, (address(puppet), 3)));
    }
}

/// Tries to write when it is asked, as a wallet and as a verifier, and says yes.
contract Writer {
    address private immutable _market;
    uint256 public writes;

    constructor(address market) {
        _market = market;
    }

    function isValidSignature(bytes32, bytes calldata) external returns (bytes4) {
        _try();
        return 0x1626ba7e;
    }

    function verifyInference(Request calldata, bytes32, address, bytes32, bytes calldata) external returns (bytes4) {
        _try();
        return IResultVerifier.verifyInference.selector;
    }

    function _try() private {
        (bool ok,) = _market.call{gas: 100_000}(abi.encodeCall(IInferenceMarket.withdrawTo, (address(this), 1)));
        if (ok) writes += 1;
    }

    receive() external payable {}
}
