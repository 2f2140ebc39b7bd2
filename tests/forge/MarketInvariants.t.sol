// SPDX-License-Identifier: MIT
pragma solidity ^0.8.30;

import {Request, RequestParams, ResultItem, Status} from "../../contracts/Types.sol";
import {Base} from "./Base.sol";

/// Drives a market at random and keeps its own books. It only ever calls what should succeed or be skipped, so a revert
/// is as much a finding as a wrong sum.
contract MarketHandler is Base {
    uint256 private constant GRACE = 300;

    struct Entry {
        Request request;
        uint256 escrow; // with what was added
        uint40 deadline; // the effective one
        uint256 endings; // how often its escrow was paid out
    }

    Entry[] private _entries;
    uint64 private _salt;
    uint64 private _rounds;

    constructor() {
        _deploy();
        VM.fee(1 gwei);
    }

    /* MOVES */

    function request(uint8 who, uint80 maxReward, uint80 gasBudget, uint80 priorityFee, bool fromCredit) external {
        RequestParams memory params = _params(++_salt, maxReward, gasBudget, priorityFee);
        uint256 escrow = market.escrowOf(params);
        address requester = _actor(who);
        uint256 value = fromCredit && _credit(requester) >= escrow ? 0 : escrow;
        VM.deal(requester, value);
        VM.prank(requester);
        market.requestInference{value: value}(params, "");
        _entries.push(Entry(market.packRequest(params, requester), escrow, params.deadline, 0));
    }

    function raise(uint256 which, uint64 amount) external {
        if (_entries.length == 0 || amount == 0) return;
        Entry storage entry = _entries[which % _entries.length];
        bytes32 requestId = market.requestIdOf(entry.request);
        if (_statusOf(requestId) != Status.PENDING || block.timestamp > entry.deadline) return;
        VM.deal(address(this), amount);
        market.raisePriorityFee{value: amount}(requestId);
        entry.escrow += amount;
    }

    function cancel(uint256 which) external {
        if (_entries.length == 0) return;
        Entry storage entry = _entries[which % _entries.length];
        bytes32 requestId = market.requestIdOf(entry.request);
        if (_statusOf(requestId) != Status.PENDING || block.timestamp >= entry.deadline) return;
        VM.prank(entry.request.requester);
        market.cancel(entry.request);
        entry.deadline = uint40(block.timestamp);
    }

    /// Any requests at all: those that are not due must be skipped.
    function expire(uint256[3] calldata which) external {
        if (_entries.length == 0) return;
        Request[] memory requests = new Request[](which.length);
        uint256 due = 0;
        uint256 before = totalCredit();
        for (uint256 i = 0; i < which.length; ++i) {
            Entry storage entry = _entries[which[i] % _entries.length];
            requests[i] = entry.request;
            if (entry.endings == 0 && block.timestamp > entry.deadline + GRACE) {
                entry.endings += 1;
                due += entry.escrow;
            }
        }
        market.expire(requests);
        assert(totalCredit() == before + due);
    }

    /// Any requests at all, in any round so far or in a new one: what is not owed must be skipped.
    function settle(uint256[] calldata which, uint256 roundSeed, uint80 reward, uint56 tip) external {
        if (_entries.length == 0 || which.length == 0) return;
        if (_rounds == 0 || roundSeed % 3 == 0) _rounds = _recordRound();
        uint64 round = _rounds - uint64((roundSeed >> 8) % _rounds);
        uint256 recordedAt = log.recordedAt(relayer, round);
        ResultItem[] memory items = new ResultItem[](which.length < 5 ? which.length : 5);
        uint256 owed = 0;
        for (uint256 i = 0; i < items.length; ++i) {
            Entry storage entry = _entries[which[i] % _entries.length];
            items[i] = ResultItem({request: entry.request, reward: reward, resultHash: bytes32(which[i])});
            bool inTime = recordedAt <= entry.deadline && block.timestamp <= entry.deadline + GRACE;
            if (entry.endings == 0 && inTime && reward <= uint80(entry.request.amounts)) {
                entry.endings += 1;
                owed += entry.escrow;
            }
        }
        uint256 before = totalCredit();
        VM.txGasPrice(1 gwei + uint256(tip));
        market.submitResults(relayer, _signedSet(items, round));
        assert(totalCredit() == before + owed);
    }

    function deposit(uint8 who, uint64 amount) external {
        if (amount == 0) return;
        VM.deal(address(this), amount);
        market.deposit{value: amount}(_actor(who));
    }

    function withdraw(uint8 who, uint256 amount) external {
        address account = _actor(who);
        market.withdraw(account, amount % (_credit(account) + 1));
    }

    function withdrawTo(uint8 who, uint8 to, uint256 amount) external {
        address account = _actor(who);
        amount %= _credit(account) + 1;
        VM.prank(account);
        market.withdrawTo(_actor(to), amount);
    }

    /// Up to ten minutes pass, so that deadlines and graces are met and missed.
    function wait(uint16 time) external {
        VM.warp(block.timestamp + time % 600);
    }

    /* BOOKS */

    function balance() external view returns (uint256) {
        return address(market).balance;
    }

    function totalCredit() public view returns (uint256 total) {
        for (uint8 i = 0; i < 5; ++i) {
            total += _credit(_actor(i));
        }
    }

    function openEscrow() external view returns (uint256 total) {
        for (uint256 i = 0; i < _entries.length; ++i) {
            if (_entries[i].endings == 0) total += _entries[i].escrow;
        }
    }

    function count() external view returns (uint256) {
        return _entries.length;
    }

    /// How often a request was paid out, and whether the market says that it is still open.
    function entryAt(uint256 index) external view returns (uint256 endings, bool isPending) {
        Entry storage entry = _entries[index];
        return (entry.endings, _statusOf(market.requestIdOf(entry.request)) == Status.PENDING);
    }

    /// Three requesters, the relayer and the node's payee.
    function _actor(uint8 who) private view returns (address) {
        who %= 5;
        if (who == 3) return relayer;
        if (who == 4) return payee;
        return address(uint160(0x1000 + who));
    }

    function _statusOf(bytes32 requestId) private view returns (Status) {
        bytes32[] memory ids = new bytes32[](1);
        ids[0] = requestId;
        return market.statusOf(ids)[0];
    }
}

contract MarketInvariantsTest {
    MarketHandler private handler;

    function setUp() external {
        handler = new MarketHandler();
    }

    function targetContracts() external view returns (address[] memory targets) {
        targets = new address[](1);
        targets[0] = address(handler);
    }

    /// The market holds what it owes: all credits and all open escrow.
    /// forge-config: default.invariant.fail-on-revert = true
    function invariant_balanceCoversCreditsAndOpenEscrow() external view {
        assert(handler.balance() >= handler.totalCredit() + handler.openEscrow());
    }

    /// A request's escrow is paid out once or not yet.
    /// forge-config: default.invariant.fail-on-revert = true
    function invariant_eachRequestIsPaidOutAtMostOnce() external view {
        for (uint256 i = 0; i < handler.count(); ++i) {
            (uint256 endings, bool isPending) = handler.entryAt(i);
            assert(endings == (isPending ? 0 : 1));
        }
    }
}
