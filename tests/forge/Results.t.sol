// SPDX-License-Identifier: MIT
pragma solidity ^0.8.30;

import {
    ItemStatus,
    Mode,
    Request,
    RequestParams,
    ResultItem,
    ResultRef,
    ResultSet,
    Status
} from "../../contracts/Types.sol";
import {IInferenceMarket} from "../../contracts/interfaces/IInferenceMarket.sol";
import {MarketBase} from "../../contracts/market/MarketBase.sol";
import {Base} from "./Base.sol";
import {VM, Vm} from "./Vm.sol";

/// submitResults and submitResultsFor: what is paid, to whom, and what becomes of bad items.
contract ResultsTest is Base {
    address private requester = address(0x4E9);

    function setUp() external {
        _deploy(3);
    }

    /* PAY */

    /// I3, I4, I5: whatever the amounts and gas prices, the three shares are the escrow, each as the rule says.
    function testFuzz_submitResults_splitsTheEscrowByTheRule(
        uint80[3] memory amounts,
        uint80 reward,
        uint64 raised,
        uint56 baseFee,
        uint56 tip
    ) external {
        RequestParams memory params = _params(1);
        (params.maxReward, params.gasBudget, params.priorityFee) = (amounts[0], amounts[1], amounts[2]);
        reward = uint80(_bound(reward, 0, params.maxReward));
        Request memory request = _post(params, requester);
        _raise(request, raised);
        uint64 round = _record(relayer);
        ResultSet memory set = _one(request, reward, round, 0);
        VM.fee(baseFee);
        VM.txGasPrice(uint256(baseFee) + tip);
        _assertStatus(_submit(set)[0], ItemStatus.OK);

        uint256 price = uint256(baseFee) + (tip < 2 gwei ? tip : 2 gwei);
        uint256 charge = (market.FIXED_GAS() + market.ITEM_GAS()) * price;
        uint256 gasPaid = charge < params.gasBudget ? charge : params.gasBudget;
        uint256 fee = uint256(params.priorityFee) + raised;
        uint256 nodePaid = reward + fee - fee / 5;
        uint256 relayerPaid = fee / 5 + gasPaid + (params.gasBudget - gasPaid) / 10;
        VM.assertEq(_credit(operators[0].payee), nodePaid, "I3: node");
        VM.assertEq(_credit(relayer), relayerPaid, "I4: relayer");
        VM.assertEq(_credit(requester), _escrowOf(request) + raised - nodePaid - relayerPaid, "I3: refund");
        VM.assertLe(relayerPaid, fee / 5 + params.gasBudget, "I4: within the budget");
        _assertStatus(request, Status.FULFILLED);
    }

    /// The event says what was credited, and the word what can be shown afterwards.
    function testFuzz_submitResults_logsAndRemembersWhatWasPaid(uint80 reward, bytes32 hash, uint8 flip) external {
        Request memory request = _post(_params(1), requester);
        reward = uint80(_bound(reward, 0, 1e15));
        ResultItem[] memory items = new ResultItem[](1);
        items[0] = ResultItem(request, reward, hash);
        uint64 round = _record(relayer);
        ResultSet[] memory sets = new ResultSet[](1);
        sets[0] = _set(items, round, _oneKey(1));
        VM.recordLogs();
        VM.prank(relayer);
        market.submitResults(relayer, sets);
        Vm.Log[] memory logs = VM.getRecordedLogs();
        VM.assertEq(logs.length, 2, "two events");
        VM.assertEq(logs[0].topics[0], IInferenceMarket.ResultFulfilled.selector, "event");
        VM.assertEq(logs[0].topics[1], _idOf(request), "id");
        uint256 relayerPaid = 1e14 / 5 + 1e15 / 10;
        VM.assertEq(
            logs[0].data,
            abi.encode(hash, reward + 8e13, relayerPaid, 21e14 - reward - 8e13 - relayerPaid),
            "event's data"
        );
        VM.assertEq(logs[1].topics[1], bytes32(uint256(uint160(relayer))), "relayer");
        VM.assertEq(logs[1].topics[2], bytes32(uint256(round)), "round");
        VM.assertEq(logs[1].data, abi.encode(sets[0].nodes, hex"00"), "nodes and statuses");

        ResultRef memory ref = _refOf(round, _oneKey(1));
        ref.resultHash = hash;
        bytes32 id = _idOf(request);
        VM.assertTrue(market.verifyResult(id, ref, ""), "verifies");
        if (flip % 5 == 0) ref.resultHash ^= bytes32(uint256(1));
        if (flip % 5 == 1) ref.relayer = rival;
        if (flip % 5 == 2) ref.round += 1;
        if (flip % 5 == 3) ref.nodes[0] = operators[2].node;
        if (flip % 5 == 4) ref.settledAt += 1;
        VM.assertTrue(!market.verifyResult(id, ref, ""), "nothing else does");
    }

    function testFuzz_verifyResult_checksTheBytesToo(bytes memory result, bytes memory other) external {
        VM.assume(result.length != 0 && other.length != 0 && keccak256(result) != keccak256(other));
        Request memory request = _post(_params(1), requester);
        ResultItem[] memory items = new ResultItem[](1);
        items[0] = ResultItem(request, 1, keccak256(result));
        uint64 round = _record(relayer);
        ResultRef memory ref = _refOf(round, _oneKey(0));
        ref.resultHash = keccak256(result);
        VM.assertTrue(!market.verifyResult(_idOf(request), ref, result), "not settled yet");
        _submit(_set(items, round, _oneKey(0)));
        VM.assertTrue(market.verifyResult(_idOf(request), ref, result), "the bytes");
        VM.assertTrue(!market.verifyResult(_idOf(request), ref, other), "other bytes");
    }

    /// The fixed gas is shared by the items of all sets of a batch, whatever becomes of them.
    function testFuzz_submitResults_sharesTheFixedGas(uint8 count, uint8 unknown, bool singly) external {
        count = uint8(_bound(count, 1, 12));
        unknown = uint8(_bound(unknown, 0, 12));
        ResultItem[] memory items = new ResultItem[](count + unknown);
        for (uint256 i = 0; i < count + unknown; ++i) {
            RequestParams memory params = _params(uint64(i));
            params.gasBudget = 1e18;
            address by = address(uint160(0x1000 + i % 3));
            items[i] = _item(i < count ? _post(params, by) : _packed(params, by), 1e15);
        }
        uint64 round = _record(relayer);
        ResultSet memory set = singly ? _setSingly(items, round, _oneKey(0)) : _set(items, round, _oneKey(0));
        VM.fee(1 gwei);
        VM.txGasPrice(1 gwei);
        ItemStatus[] memory statuses = _submit(set);
        for (uint256 i = 0; i < count + unknown; ++i) {
            _assertStatus(statuses[i], i < count ? ItemStatus.OK : ItemStatus.UNKNOWN);
        }
        uint256 charge = (market.FIXED_GAS() / (count + unknown) + market.ITEM_GAS()) * 1 gwei;
        VM.assertEq(_credit(relayer), count * (2e13 + charge + (1e18 - charge) / 10), "relayer");
        VM.assertEq(_credit(operators[0].payee), count * (1e15 + 8e13), "node");
        (, uint64 settled) = market.accountOf(operators[0].payee);
        VM.assertEq(settled, count, "settled");
        VM.assertEq(market.gasChargeOf(1, 0, count + unknown), charge, "gasChargeOf");
    }

    /// Several sets of other nodes and rounds in one call: each node has its own.
    function testFuzz_submitResults_settlesSeveralSets(uint8[3] memory counts) external {
        ResultSet[] memory sets = new ResultSet[](3);
        uint64 salt = 0;
        for (uint256 s = 0; s < 3; ++s) {
            counts[s] = uint8(_bound(counts[s], 1, 5));
            ResultItem[] memory items = new ResultItem[](counts[s]);
            for (uint256 i = 0; i < counts[s]; ++i) {
                items[i] = _item(_post(_params(++salt), requester), uint96(s + 1));
            }
            sets[s] = _set(items, _record(relayer), _oneKey(s));
        }
        VM.prank(relayer);
        market.submitResults(relayer, sets);
        uint256 paid = _credit(relayer) + _credit(requester);
        for (uint256 s = 0; s < 3; ++s) {
            VM.assertEq(_credit(operators[s].payee), counts[s] * (s + 1 + 8e13), "node");
            paid += counts[s] * (s + 1 + 8e13);
        }
        VM.assertEq(paid, uint256(salt) * 21e14, "I3: all of it");
    }

    /// I6: the relayer itself or whom it named, the same is paid to the same.
    function testFuzz_submitResultsFor_paysAsWhenTheRelayerSends(address submitter, uint40 until, uint80 reward)
        external
    {
        reward = uint80(_bound(reward, 0, 1e15));
        until = uint40(_bound(until, START, type(uint40).max));
        Request memory request = _post(_params(1), requester);
        ResultSet[] memory sets = new ResultSet[](1);
        sets[0] = _one(request, reward, _record(relayer), 0);
        bytes memory signature = _sign(relayerKey, address(market), _hashSubmitter(relayer, submitter, until));
        uint256 state = VM.snapshotState();
        VM.prank(relayer);
        market.submitResults(relayer, sets);
        uint256[3] memory paid = [_credit(operators[0].payee), _credit(relayer), _credit(requester)];
        VM.assertTrue(VM.revertToState(state), "back");
        VM.prank(submitter);
        market.submitResultsFor(relayer, sets, until, signature);
        VM.assertEq(_credit(operators[0].payee), paid[0], "node");
        VM.assertEq(_credit(relayer), paid[1], "relayer");
        VM.assertEq(_credit(requester), paid[2], "requester");
        VM.assertEq(paid[0] + paid[1] + paid[2], 21e14, "all of it");
    }

    /* WHO MAY */

    function testFuzz_submitResults_isTheRelayersOnly(address by) external {
        VM.assume(by != relayer);
        ResultSet[] memory sets = new ResultSet[](1);
        sets[0] = _one(_post(_params(1), requester), 1, _record(relayer), 0);
        VM.expectRevert(abi.encodeWithSelector(IInferenceMarket.NotSubmitter.selector, by, relayer));
        VM.prank(by);
        market.submitResults(relayer, sets);
    }

    function testFuzz_submitResultsFor_needsTheRelayersWordForTheCaller(uint8 what, address by) external {
        VM.assume(by != relayer);
        uint40 until = uint40(START + 100);
        ResultSet[] memory sets = new ResultSet[](1);
        sets[0] = _one(_post(_params(1), requester), 1, _record(relayer), 0);
        bytes memory signature = _sign(relayerKey, address(market), _hashSubmitter(relayer, by, until));
        address caller = by;
        if (what % 4 == 0) signature = _sign(rivalKey, address(market), _hashSubmitter(relayer, by, until));
        if (what % 4 == 1) caller = address(uint160(by) ^ 1);
        if (what % 4 == 2) until += 1;
        if (what % 4 == 3) VM.warp(until + 1);
        VM.expectRevert(
            what % 4 == 3
                ? abi.encodeWithSelector(IInferenceMarket.SignatureExpired.selector, until, _now())
                : abi.encodeWithSelector(IInferenceMarket.NotSubmitter.selector, caller, relayer)
        );
        VM.prank(caller);
        market.submitResultsFor(relayer, sets, until, signature);
    }

    /* ITEMS */

    /// I9: one of every kind of bad item beside good ones. Each has its status, and the good are paid as if alone.
    function testFuzz_submitResults_givesEachBadItemItsStatus(uint8 good) external {
        _deployOnProbation();
        uint64 round = _record(relayer);
        ResultItem[] memory items = new ResultItem[](10);
        for (uint256 i = 0; i < 10; ++i) {
            items[i] = _item(_post(_params(uint64(i)), requester), 1e15);
        }
        items[0].request.promptHash ^= bytes32(uint256(1));
        _cancelWithRelease(items[1].request);
        items[2] = _item(_post(_ofRival(20), requester), 1e15);
        items[3].reward = 1e15 + 1;
        items[4] = _item(_post(_quorumParams(21, 2, 3), requester), 1e15);
        items[5] = _item(_post(_verifierParams(22, address(verifier)), requester), 1e15);
        RequestParams memory rich = _params(23);
        rich.maxReward = 1 ether;
        items[6] = _item(_post(rich, requester), 0.01 ether + 1);
        items[7] = items[8]; // twice in one batch
        ResultSet memory set = _set(items, round, _oneKey(0));
        set.results = new bytes[](10);
        set.results[9] = "the bytes of an answer";
        good = 8;
        ItemStatus[] memory statuses = _submit(set);
        ItemStatus[10] memory expected = [
            ItemStatus.UNKNOWN,
            ItemStatus.ALREADY_DONE,
            ItemStatus.WRONG_RELAYER,
            ItemStatus.REWARD_TOO_HIGH,
            ItemStatus.BAD_SIGNATURE,
            ItemStatus.VERIFICATION_FAILED,
            ItemStatus.PROBATION,
            ItemStatus.OK,
            ItemStatus.ALREADY_DONE,
            ItemStatus.BAD_RESULT
        ];
        for (uint256 i = 0; i < 10; ++i) {
            VM.assertEq(uint256(statuses[i]), uint256(expected[i]), "status of an item");
        }
        VM.assertEq(_credit(operators[0].payee), 1e15 + 8e13, "node is paid for one");
        VM.assertEq(_credit(relayer), 2e13 + 1e14, "so is the relayer");
        for (uint256 i = 2; i < 10; ++i) {
            if (i == 7 || i == 8) continue;
            _assertStatus(items[i].request, Status.PENDING);
        }
    }

    /// The kinds that hold for a whole set: late, no round, not joined, badly signed.
    function testFuzz_submitResults_givesEachBadSetItsStatus(uint8 what, uint40 seconds_) external {
        Request[2] memory requests = [_post(_params(1), requester), _post(_params(2), requester)];
        ResultItem[] memory items = new ResultItem[](2);
        (items[0], items[1]) = (_item(requests[0], 1), _item(requests[1], 1));
        uint64 round = 1;
        uint256[] memory keys = _oneKey(0);
        ItemStatus expected = ItemStatus.NO_ROUND;
        if (what % 5 == 1) {
            // Recorded too late.
            VM.warp(START + 601 + seconds_ % GRACE);
            _record(relayer);
        } else if (what % 5 != 0) {
            _record(relayer);
        }
        if (what % 5 == 2) {
            VM.warp(START + 600 + GRACE + 1 + seconds_);
            expected = ItemStatus.LATE;
        }
        if (what % 5 == 3) {
            keys[0] = uint256(keccak256("nobody's key"));
            expected = ItemStatus.NODE_NOT_JOINED;
        }
        ResultSet memory set = _set(items, round, keys);
        if (what % 5 == 4) {
            set.nodes[0] = operators[1].node;
            expected = ItemStatus.BAD_SIGNATURE;
        }
        ItemStatus[] memory statuses = _submit(set);
        _assertStatus(statuses[0], expected);
        _assertStatus(statuses[1], expected);
        VM.assertEq(_credit(relayer) + _credit(requester) + _credit(operators[0].payee), 0, "nothing is paid");
        _assertStatus(requests[0], Status.PENDING);
    }

    /// I7, at the second: a round is in time at D, a result is in time at D + GRACE.
    function test_submitResults_timesAreInclusive() external {
        for (uint256 i = 0; i < 4; ++i) {
            VM.warp(START);
            Request memory request = _post(_params(uint64(i)), requester);
            VM.warp(START + 600 + (i == 1 ? 1 : 0));
            uint64 round = _record(relayer);
            VM.warp(START + 600 + GRACE + (i == 3 ? 1 : 0));
            ItemStatus status = _submit(_one(request, 1, round, 0))[0];
            _assertStatus(status, i == 1 ? ItemStatus.NO_ROUND : i == 3 ? ItemStatus.LATE : ItemStatus.OK);
        }
    }

    /// I8 and I7: what was cancelled is paid if its round was recorded by then, until GRACE after it.
    function testFuzz_submitResults_afterACancelPaysRoundsOfBefore(uint16 cancelledAfter, uint16 recordedAfter)
        external
    {
        Request memory request = _post(_params(1), requester);
        uint256 cancelledAt = START + cancelledAfter % 600;
        uint256 recordedAt = START + recordedAfter % 900;
        if (recordedAt <= cancelledAt) {
            VM.warp(recordedAt);
            _record(relayer);
        }
        VM.warp(cancelledAt);
        VM.prank(requester);
        market.cancel(request);
        if (recordedAt > cancelledAt) {
            VM.warp(recordedAt);
            _record(relayer);
        }
        bool isLate = _now() > cancelledAt + GRACE;
        ItemStatus status = _submit(_one(request, 1, 1, 0))[0];
        _assertStatus(status, isLate ? ItemStatus.LATE : recordedAt > cancelledAt ? ItemStatus.NO_ROUND : ItemStatus.OK);
    }

    /// Attack: a request of nobody's is paid nothing, whatever its words are.
    function testFuzz_submitResults_forgedRequestIsPaidNothing(Request memory forged, uint96 reward) external {
        Request memory honest = _post(_params(1), requester);
        VM.assume(_idOf(forged) != _idOf(honest));
        ResultItem[] memory items = new ResultItem[](2);
        (items[0], items[1]) = (_item(forged, reward), _item(forged, reward));
        ItemStatus[] memory statuses = _submit(_set(items, _record(relayer), _oneKey(0)));
        _assertStatus(statuses[0], ItemStatus.UNKNOWN);
        VM.assertEq(_credit(operators[0].payee) + _credit(relayer) + _credit(forged.requester), 0, "paid nothing");
        _assertStatus(honest, Status.PENDING);
    }

    /// Attack: the same items again, in any order, in the same call and in the next, are paid once.
    function testFuzz_submitResults_paysOnceInAnyOrder(uint256 seed) external {
        ResultItem[] memory items = new ResultItem[](6);
        for (uint256 i = 0; i < 3; ++i) {
            items[i] = _item(_post(_params(uint64(i)), requester), 1e15);
            items[i + 3] = items[i];
        }
        for (uint256 i = 5; i > 0; --i) {
            uint256 j = seed % (i + 1);
            seed /= i + 1;
            (items[i], items[j]) = (items[j], items[i]);
        }
        uint64 round = _record(relayer);
        ItemStatus[] memory first = _submit(_set(items, round, _oneKey(0)));
        ItemStatus[] memory second = _submit(_setSingly(items, round, _oneKey(0)));
        uint256 ok = 0;
        for (uint256 i = 0; i < 6; ++i) {
            if (first[i] == ItemStatus.OK) ++ok;
            else _assertStatus(first[i], ItemStatus.ALREADY_DONE);
            _assertStatus(second[i], ItemStatus.ALREADY_DONE);
        }
        VM.assertEq(ok, 3, "each once");
        VM.assertEq(_credit(operators[0].payee), 3 * (1e15 + 8e13), "node");
        VM.assertEq(_credit(operators[0].payee) + _credit(relayer) + _credit(requester), 3 * 21e14, "I3");
    }

    /// A signature that is bad spoils its own item when results are signed singly, and the set when they are not.
    function testFuzz_submitResults_aBadSignatureSpoilsWhatItSigns(uint8 which, uint8 bit, bool singly) external {
        ResultItem[] memory items = new ResultItem[](3);
        for (uint256 i = 0; i < 3; ++i) {
            items[i] = _item(_post(_params(uint64(i)), requester), 1);
        }
        uint64 round = _record(relayer);
        ResultSet memory set = singly ? _setSingly(items, round, _oneKey(0)) : _set(items, round, _oneKey(0));
        which = singly ? which % 3 : 0;
        set.signatures[which][bit % 64] ^= bytes1(uint8(1) << (bit / 64));
        ItemStatus[] memory statuses = _submit(set);
        for (uint256 i = 0; i < 3; ++i) {
            _assertStatus(statuses[i], !singly || i == which ? ItemStatus.BAD_SIGNATURE : ItemStatus.OK);
        }
    }

    /* SETS */

    function testFuzz_submitResults_refusesMalformedSets(uint8 what) external {
        what %= 9;
        ResultItem[] memory items = new ResultItem[](2);
        (items[0], items[1]) = (_item(_post(_params(1), requester), 1), _item(_post(_params(2), requester), 1));
        uint64 round = _record(relayer);
        ResultSet[] memory sets = new ResultSet[](2);
        (sets[0], sets[1]) = (_set(items, round, _keys(2)), _set(items, round, _keys(2)));
        ResultSet memory bad = sets[1];
        if (what == 0) bad.items = new ResultItem[](0);
        if (what == 1) bad.nodes = new address[](0);
        if (what == 2) (bad.nodes, bad.signatures) = (_ascending(17), new bytes[](17));
        if (what == 3) bad.signatures = new bytes[](3);
        if (what == 4) bad.results = new bytes[](1);
        if (what == 5) bad.proofs = new bytes[](3);
        if (what == 6) bad.nodes[1] = bad.nodes[0]; // Attack: a quorum of one node twice
        if (what == 7) (bad.nodes[0], bad.nodes[1]) = (bad.nodes[1], bad.nodes[0]);
        if (what == 8) (bad.nodes, bad.signatures) = (new address[](0), new bytes[](0));
        VM.expectRevert(abi.encodeWithSelector(IInferenceMarket.MalformedSet.selector, 1));
        VM.prank(relayer);
        market.submitResults(relayer, sets);
    }

    /// In an open race nobody named the relayer: with no bond left it would have nothing to lose.
    function testFuzz_submitResults_openRaceNeedsABond(uint8 what) external {
        uint64 round = _record(relayer);
        RequestParams memory params = _params(1);
        params.relayer = address(0);
        what %= 3;
        if (what == 1) {
            VM.prank(address(faults));
            stakes.slashRelayer(relayer, 1);
        } else if (what == 2) {
            VM.prank(relayer);
            stakes.beginUnbondRelayer();
            VM.warp(_now() + UNBOND_DELAY);
            VM.prank(relayer);
            stakes.withdrawBond();
            params.deadline = uint40(_now() + 600);
        }
        Request memory request = _post(params, requester);
        ItemStatus status = _submit(_one(request, 1, round, 0))[0];
        _assertStatus(status, what == 0 ? ItemStatus.OK : ItemStatus.WRONG_RELAYER);
    }

    function test_submitResults_refusesAnEmptyBatch() external {
        VM.expectRevert(abi.encodeWithSelector(IInferenceMarket.EmptyBatch.selector));
        VM.prank(relayer);
        market.submitResults(relayer, new ResultSet[](0));
    }

    /* PROBATION */

    /// I5: until a day has passed and ten results of its payee are settled, a node earns at most 0.01 ether a result.
    function testFuzz_submitResults_capsRewardsOnProbation(uint8 settled, uint24 age, uint80 reward) external {
        _deployOnProbation();
        settled %= 13;
        reward = uint80(_bound(reward, 0.01 ether - 2, 0.01 ether + 2));
        for (uint256 i = 0; i < settled; ++i) {
            _settle(_post(_params(uint64(1000 + i)), requester), 1);
        }
        VM.warp(START + _bound(age, 1 days - 3, 1 days + 3));
        RequestParams memory params = _params(1);
        params.maxReward = 1 ether;
        bool isCapped = settled < 10 || _now() < START + 1 days;
        ItemStatus status = _submit(_one(_post(params, requester), reward, _record(relayer), 0))[0];
        _assertStatus(status, isCapped && reward > 0.01 ether ? ItemStatus.PROBATION : ItemStatus.OK);
    }

    /* DELIVERY */

    /// Bytes go on-chain when they were asked for and signed, and cost 40 gas each; otherwise the item is bad.
    function testFuzz_submitResults_deliversBytesThatWereAskedFor(bytes memory result, bool asked, bool signed)
        external
    {
        // Signed for, no bytes are an answer too; otherwise they are none, which is allowed.
        VM.assume(result.length != 0 || (asked && signed));
        RequestParams memory params = _params(1);
        (params.inlineResult, params.gasBudget) = (asked, 1e18);
        Request memory request = _post(params, requester);
        ResultItem[] memory items = new ResultItem[](1);
        items[0] = ResultItem(request, 1, signed ? keccak256(result) : HASH);
        ResultSet[] memory sets = new ResultSet[](1);
        sets[0] = _set(items, _record(relayer), _oneKey(0));
        sets[0].results = new bytes[](1);
        sets[0].results[0] = result;
        VM.txGasPrice(1 gwei);
        VM.recordLogs();
        VM.prank(relayer);
        market.submitResults(relayer, sets);
        Vm.Log[] memory logs = VM.getRecordedLogs();
        bool isDelivered = asked && signed;
        _assertStatus(_statusesIn(logs)[0], isDelivered ? ItemStatus.OK : ItemStatus.BAD_RESULT);
        if (!isDelivered) return;
        VM.assertEq(logs[0].topics[0], IInferenceMarket.ResultDelivered.selector, "event");
        VM.assertEq(logs[0].topics[1], _idOf(request), "id");
        VM.assertEq(logs[0].data, abi.encode(result), "bytes");
        uint256 charge = market.gasChargeOf(1, result.length, 1);
        VM.assertEq(_credit(relayer), 2e13 + charge + (1e18 - charge) / 10, "the relayer is paid for the bytes");
    }

    /* VIEWS */

    function testFuzz_gasChargeOf_isWhatASetIsCharged(uint8 nodes, uint16 bytes_, uint8 batch, uint64 price) external {
        VM.txGasPrice(price);
        if (batch == 0) {
            VM.expectRevert(abi.encodeWithSelector(IInferenceMarket.EmptyBatch.selector));
        } else if (nodes == 0 || nodes > 16) {
            VM.expectRevert(abi.encodeWithSelector(IInferenceMarket.InvalidQuorum.selector, nodes, nodes));
        }
        uint256 charge = market.gasChargeOf(nodes, bytes_, batch);
        if (batch == 0 || nodes == 0 || nodes > 16) return;
        uint256 capped = price < 2 gwei ? price : 2 gwei;
        uint256 shared = market.FIXED_GAS() + market.NODE_GAS() * (uint256(nodes) - 1);
        uint256 gas = shared / batch + market.ITEM_GAS() + 40 * uint256(bytes_);
        VM.assertEq(charge, gas * capped, "charge");
    }

    function test_supportsInterface() external view {
        VM.assertTrue(market.supportsInterface(type(IInferenceMarket).interfaceId), "the market's");
        VM.assertTrue(market.supportsInterface(0x01ffc9a7), "ERC-165's");
        VM.assertTrue(!market.supportsInterface(0xffffffff), "not the invalid one");
    }

    /* HELPERS */

    function _deployOnProbation() private {
        delete operators;
        _deploy(1, MarketBase.ProbationTerms({maxReward: 0.01 ether, settledCount: 10, duration: 1 days}));
    }

    function _ofRival(uint64 salt) private view returns (RequestParams memory params) {
        params = _params(salt);
        params.relayer = rival;
    }

    function _cancelWithRelease(Request memory request) private {
        bytes memory release = _sign(relayerKey, address(market), _hashRelease(_idOf(request), type(uint40).max));
        VM.prank(request.requester);
        market.cancelWithRelease(request, type(uint40).max, release);
    }

    function _raise(Request memory request, uint256 amount) private {
        if (amount == 0) return;
        VM.deal(address(this), amount);
        market.raisePriorityFee{value: amount}(_idOf(request));
    }

    function _ascending(uint256 count) private pure returns (address[] memory nodes) {
        nodes = new address[](count);
        for (uint256 i = 0; i < count; ++i) {
            nodes[i] = address(uint160(i + 1));
        }
    }
}
