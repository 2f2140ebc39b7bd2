// SPDX-License-Identifier: MIT
pragma solidity ^0.8.30;

import {ItemStatus, Request, RequestParams, ResultItem, ResultRef, ResultSet, Status} from "../../contracts/Types.sol";
import {IInferenceMarket} from "../../contracts/interfaces/IInferenceMarket.sol";
import {MarketBase} from "../../contracts/market/MarketBase.sol";
import {Base} from "./Base.sol";
import {VM} from "./Vm.sol";

/// submitResults of requests in QUORUM mode.
contract QuorumsTest is Base {
    address private requester = address(0x4E9);

    function setUp() external {
        _deploy(16);
    }

    /// I3: each node has the same, the dust is the requester's, and the gas of further nodes is charged.
    function testFuzz_quorum_splitsEqually(uint8 k, uint8 n, uint80 reward, uint80 fee, uint8 count, uint48 price)
        external
    {
        n = uint8(_bound(n, 2, 16));
        k = uint8(_bound(k, 2, n));
        count = uint8(_bound(count, 1, 4));
        ResultItem[] memory items = new ResultItem[](count);
        for (uint256 i = 0; i < count; ++i) {
            RequestParams memory params = _quorumParams(uint64(i), k, n);
            (params.maxReward, params.gasBudget, params.priorityFee) = (type(uint80).max, type(uint80).max, fee);
            items[i] = _item(_post(params, requester), uint96(_bound(reward, 0, type(uint80).max / k)));
        }
        ResultSet memory set = _set(items, _record(relayer), _keys(k));
        VM.txGasPrice(price);
        ItemStatus[] memory statuses = _submit(set);
        uint256 charge = market.gasChargeOf(k, 0, count);
        // Shares that divide the fixed gas and that of the nodes apart may lose a unit of gas each.
        uint256 gasPrice = price < 2 gwei ? price : 2 gwei;
        uint256 nodePaid = items[0].reward + (uint256(fee) - fee / 5) / k;
        for (uint256 i = 0; i < k; ++i) {
            VM.assertEq(_credit(operators[i].payee), count * nodePaid, "node");
            (, uint64 settled) = market.accountOf(operators[i].payee);
            VM.assertEq(settled, count, "settled");
        }
        uint256 left = type(uint80).max - charge;
        uint256 relayerPaid = _credit(relayer) / count;
        VM.assertLe(relayerPaid, uint256(fee) / 5 + charge + left / 10 + 1, "relayer at most");
        VM.assertGe(relayerPaid + gasPrice, uint256(fee) / 5 + charge + left / 10, "relayer at least");
        uint256 escrow = count * (2 * uint256(type(uint80).max) + fee);
        VM.assertEq(_credit(requester) + _credit(relayer) + k * count * nodePaid, escrow, "I3: the rest is refunded");
        _assertStatus(statuses[count - 1], ItemStatus.OK);
        _assertStatus(items[0].request, Status.FULFILLED);
    }

    /// The reference names all of them: no other set of nodes passes for the one that was paid.
    function test_quorum_isRememberedWithItsNodes() external {
        Request memory request = _post(_quorumParams(1, 3, 5), requester);
        ResultItem[] memory items = new ResultItem[](1);
        items[0] = _item(request, 1);
        uint64 round = _record(relayer);
        _submit(_set(items, round, _keys(3)));
        VM.assertTrue(market.verifyResult(_idOf(request), _refOf(round, _keys(3)), ""), "the three");
        VM.assertTrue(!market.verifyResult(_idOf(request), _refOf(round, _keys(2)), ""), "not two");
        VM.assertTrue(!market.verifyResult(_idOf(request), _refOf(round, _keys(4)), ""), "nor four");
    }

    /// One signature that does not hold, and nobody is paid.
    function testFuzz_quorum_needsEachSignature(uint8 k, uint8 which, uint8 bit, bool singly) external {
        k = uint8(_bound(k, 2, 16));
        ResultItem[] memory items = new ResultItem[](2);
        items[0] = _item(_post(_quorumParams(1, k, 16), requester), 1);
        items[1] = _item(_post(_quorumParams(2, k, 16), requester), 1);
        uint64 round = _record(relayer);
        ResultSet memory set = singly ? _setSingly(items, round, _keys(k)) : _set(items, round, _keys(k));
        uint256 spoilt = which % set.signatures.length;
        set.signatures[spoilt][bit % 64] ^= bytes1(uint8(1) << (bit / 64));
        ItemStatus[] memory statuses = _submit(set);
        for (uint256 i = 0; i < 2; ++i) {
            bool isBad = !singly || spoilt / k == i;
            _assertStatus(statuses[i], isBad ? ItemStatus.BAD_SIGNATURE : ItemStatus.OK);
        }
    }

    /// Signatures are item by item, and within an item as the nodes are; in another order they are others'.
    function testFuzz_quorum_readsSignaturesItemMajor(uint8 a, uint8 b) external {
        ResultItem[] memory items = new ResultItem[](2);
        items[0] = _item(_post(_quorumParams(1, 3, 3), requester), 1);
        items[1] = _item(_post(_quorumParams(2, 3, 3), requester), 1);
        ResultSet memory set = _setSingly(items, _record(relayer), _keys(3));
        (a, b) = (a % 6, b % 6);
        (set.signatures[a], set.signatures[b]) = (set.signatures[b], set.signatures[a]);
        ItemStatus[] memory statuses = _submit(set);
        for (uint256 i = 0; i < 2; ++i) {
            bool isBad = a != b && (a / 3 == i || b / 3 == i);
            _assertStatus(statuses[i], isBad ? ItemStatus.BAD_SIGNATURE : ItemStatus.OK);
        }
    }

    /// Exactly k: neither more nor fewer nodes than the request asks for, nor a quorum for a request of one.
    function testFuzz_quorum_isOfExactlyK(uint8 asked, uint8 given) external {
        given = uint8(_bound(given, 1, 16));
        asked = uint8(_bound(asked, 1, 16));
        Request memory request = _post(asked == 1 ? _params(1) : _quorumParams(1, asked, 16), requester);
        ResultItem[] memory items = new ResultItem[](1);
        items[0] = _item(request, 1);
        ItemStatus status = _submit(_set(items, _record(relayer), _keys(given)))[0];
        _assertStatus(status, asked == given ? ItemStatus.OK : ItemStatus.BAD_SIGNATURE);
    }

    /// I5: what all of them earn together is within the maximum; no product of theirs wraps round.
    function testFuzz_quorum_rewardsAreWithinTheMaximumTogether(uint8 k, uint96 reward, uint80 maxReward) external {
        k = uint8(_bound(k, 2, 16));
        RequestParams memory params = _quorumParams(1, k, 16);
        params.maxReward = maxReward;
        if (reward % 2 == 0) reward = uint96(_bound(reward, maxReward / k - (maxReward / k == 0 ? 0 : 1), maxReward));
        ResultItem[] memory items = new ResultItem[](1);
        items[0] = _item(_post(params, requester), reward);
        ItemStatus status = _submit(_set(items, _record(relayer), _keys(k)))[0];
        _assertStatus(status, uint256(reward) * k > maxReward ? ItemStatus.REWARD_TOO_HIGH : ItemStatus.OK);
    }

    /// Two nodes of one payee are paid for both.
    function test_quorum_paysOnePayeeForEachNode() external {
        VM.prank(operators[1].owner);
        stakes.setPayee(operators[1].node, address(market), operators[0].payee);
        ResultItem[] memory items = new ResultItem[](1);
        items[0] = _item(_post(_quorumParams(1, 2, 2), requester), 100);
        _submit(_set(items, _record(relayer), _keys(2)));
        VM.assertEq(_credit(operators[0].payee), 200 + 8e13, "both");
        (, uint64 settled) = market.accountOf(operators[0].payee);
        VM.assertEq(settled, 2, "settled");
    }

    /// Attack: one node with as many keys as a quorum needs, all of them members for a time.
    function testFuzz_quorum_countsANodeOnceWhateverKeysItHas(uint8 rotations) external {
        rotations = uint8(_bound(rotations, 1, 5));
        address owner = operators[0].owner;
        address[] memory markets = new address[](1);
        markets[0] = address(market);
        uint256[] memory keys = new uint256[](uint256(rotations) + 1);
        keys[0] = operators[0].key;
        for (uint256 i = 1; i <= rotations; ++i) {
            uint256 key = 1000 + i;
            bytes memory signature = _signRegistration(key, VM.addr(key), owner);
            VM.prank(owner);
            stakes.rotateKey(VM.addr(keys[i - 1]), VM.addr(key), signature, markets);
            keys[i] = key;
        }
        for (uint256 i = 0; i <= rotations; ++i) {
            for (uint256 j = i; j > 0 && VM.addr(keys[j]) < VM.addr(keys[j - 1]); --j) {
                (keys[j], keys[j - 1]) = (keys[j - 1], keys[j]);
            }
        }
        ResultItem[] memory items = new ResultItem[](1);
        items[0] = _item(_post(_quorumParams(1, rotations + 1, rotations + 1), requester), 1);
        _assertStatus(_submit(_set(items, _record(relayer), keys))[0], ItemStatus.NODE_NOT_JOINED);
    }

    /// One that is not joined, or on probation, holds for all.
    function testFuzz_quorum_isAsGoodAsItsWorstNode(uint8 which, bool left) external {
        which %= 3;
        delete operators;
        _deploy(3, MarketBase.ProbationTerms({maxReward: 100, settledCount: 0, duration: 1 days}));
        VM.prank(operators[which].owner);
        if (left) {
            stakes.leaveMarket(operators[which].node, address(market));
            VM.warp(_now() + UNBOND_DELAY);
        } else {
            stakes.rotateKey(
                operators[which].node,
                VM.addr(1),
                _signRegistration(1, VM.addr(1), operators[which].owner),
                new address[](0)
            );
            VM.warp(_now() + 1 days);
            VM.startPrank(operators[which].owner);
            stakes.joinMarket(VM.addr(1), address(market));
            VM.stopPrank();
        }
        ResultItem[] memory items = new ResultItem[](1);
        items[0] = _item(_post(_quorumParams(1, 3, 3), requester), 101);
        uint256[] memory keys = _keys(3);
        if (!left) keys[which] = 1;
        for (uint256 i = 1; i < 3; ++i) {
            for (uint256 j = i; j > 0 && VM.addr(keys[j]) < VM.addr(keys[j - 1]); --j) {
                (keys[j], keys[j - 1]) = (keys[j - 1], keys[j]);
            }
        }
        ItemStatus status = _submit(_set(items, _record(relayer), keys))[0];
        _assertStatus(status, left ? ItemStatus.NODE_NOT_JOINED : ItemStatus.PROBATION);
    }

    /// Attack: a quorum with a node twice, in any place, is no set at all.
    function testFuzz_quorum_countsNoNodeTwice(uint8 k, uint8 place) external {
        k = uint8(_bound(k, 2, 16));
        place = uint8(_bound(place, 1, k - 1));
        ResultItem[] memory items = new ResultItem[](1);
        items[0] = _item(_post(_quorumParams(1, k, 16), requester), 1);
        uint256[] memory keys = _keys(k);
        keys[place] = keys[place - 1];
        ResultSet[] memory sets = new ResultSet[](1);
        sets[0] = _set(items, _record(relayer), keys);
        VM.expectRevert(abi.encodeWithSelector(IInferenceMarket.MalformedSet.selector, 0));
        VM.prank(relayer);
        market.submitResults(relayer, sets);
    }
}
