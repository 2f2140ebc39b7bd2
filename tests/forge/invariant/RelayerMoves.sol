// SPDX-License-Identifier: MIT
pragma solidity ^0.8.30;

import {
    Assignment,
    Decision,
    ItemStatus,
    Mode,
    Request,
    RequestParams,
    ResultItem,
    ResultRef,
    ResultSet,
    RoundRecord,
    Status
} from "../../../contracts/Types.sol";
import {IInferenceMarket} from "../../../contracts/interfaces/IInferenceMarket.sol";
import {IScheduleLog} from "../../../contracts/interfaces/IScheduleLog.sol";
import {IStakeManager} from "../../../contracts/interfaces/IStakeManager.sol";
import {Puppet} from "../Puppet.sol";
import {VM, Vm} from "../Vm.sol";
import {RequesterMoves} from "./RequesterMoves.sol";

/// What relayers do: record rounds, settle whatever they please, have it settled by others, bond and unbond; and what nodes
/// settle without them.
abstract contract RelayerMoves is RequesterMoves {
    /// A batch, and what the rules say of it before it is sent.
    struct Plan {
        address relayer;
        uint256 key;
        uint64 round;
        uint256 recordedAt; // 0 = not
        uint256[] operators;
        address[] payees;
        bool notJoined;
        bool onProbation;
        bool singly;
        uint256 badSignature; // index of the signature that is spoilt; beyond them = none
        uint256[] entries;
        bool[] forged;
        ItemStatus[] expected;
        uint256 price;
        uint256 charge; // wei for an item
        ResultSet set;
    }

    struct Paid {
        uint256 node; // each node's, of all items
        uint256 relayer;
        uint256 refund; // of those who are not called back
        uint256 called; // refunds of the consumer
    }

    /* ROUNDS */

    function record(uint256 seed) external chosenBy(seed) {
        (address account, uint256 key) = _anyRelayer();
        RoundRecord memory r;
        r.round = uint64(rounds[account].length + 1);
        Decision[] memory decisions = _someDecisions(account);
        r.decisionsRoot = _root(decisions);
        r.assigned = uint32(decisions.length);
        r.snapshotHash = bytes32(_pick(type(uint256).max));
        bool byItself = _oneIn(2);
        address by = byItself ? account : _anyAccount();
        bytes memory signature = byItself && by == account ? bytes("") : _sign(key, address(log), _hashRecord(r));
        bytes memory data = abi.encodeCall(IScheduleLog.recordRound, (account, r, signature));
        if (!stakes.isBonded(account)) {
            return _mustRefuse(by, address(log), 0, data, IScheduleLog.NotBonded.selector);
        }
        _mustCall(by, address(log), 0, data);
        heads[account] = keccak256(abi.encode(heads[account], account, r)) & ~bytes32(uint256(type(uint40).max));
        _keep(account, r, decisions);
        _mustRefuse(by, address(log), 0, data, IScheduleLog.RoundAlreadyRecorded.selector);
        uint256 index = _pick(decisions.length);
        bytes32[] memory proof = _proof(decisions, index);
        VM.assertTrue(log.verifyDecision(account, r, decisions[index], index, proof), "I18: a leaf is proven");
        decisions[index].reward ^= 1;
        VM.assertTrue(!log.verifyDecision(account, r, decisions[index], index, proof), "I18: nothing else is");
    }

    function recordOutOfOrder(uint256 seed) external chosenBy(seed) {
        (address account,) = _anyRelayer();
        RoundRecord memory r;
        uint64 next = uint64(rounds[account].length + 1);
        r.round = _oneIn(3) ? 0 : next + 1 + uint64(_pick(100));
        r.assigned = 1;
        bytes memory data = abi.encodeCall(IScheduleLog.recordRound, (account, r, ""));
        bytes4 why = stakes.isBonded(account) ? IScheduleLog.RoundOutOfOrder.selector : IScheduleLog.NotBonded.selector;
        _mustRefuse(account, address(log), 0, data, why);
    }

    /* SETTLEMENT */

    /// Any requests, by any nodes, in any round, signed well or badly: what is not owed must be skipped.
    function settle(uint256 seed) public chosenBy(seed) {
        if (entries.length == 0) return;
        Plan memory plan = _plan(_openEntry());
        _foresee(plan);
        RequestParams memory asked = _orderConsumer();
        uint256[] memory before = _creditsOf(plan);
        ResultSet[] memory sets = new ResultSet[](1);
        sets[0] = plan.set;
        VM.txGasPrice(plan.price);
        VM.recordLogs();
        if (_oneIn(2)) {
            bytes memory data = abi.encodeCall(IInferenceMarket.submitResults, (plan.relayer, sets));
            _mustRefuse(watcher, address(market), 0, data, IInferenceMarket.NotSubmitter.selector);
            VM.recordLogs();
            _mustCall(plan.relayer, address(market), 0, data);
        } else {
            bytes32 mandate = _hashSubmitter(plan.relayer, delegate, type(uint40).max);
            _mustCall(
                delegate,
                address(market),
                0,
                abi.encodeCall(
                    IInferenceMarket.submitResultsFor,
                    (plan.relayer, sets, type(uint40).max, _sign(plan.key, address(market), mandate))
                )
            );
        }
        _check(plan, VM.getRecordedLogs(), before);
        _adopt(asked);
    }

    /// Twice as likely as other moves.
    function settleMore(uint256 seed) external {
        settle(uint256(keccak256(abi.encode(seed))));
    }

    /// The node settles by itself, on an assignment that any relayer may have signed.
    function settleAlone(uint256 seed) external chosenBy(seed) {
        if (entries.length == 0) return;
        uint256 index = _openEntry();
        Entry storage entry = entries[index];
        // Often in the time that is a node's own.
        if (entry.status == Status.PENDING && VM.getBlockTimestamp() <= entry.deadline && _oneIn(2)) {
            VM.warp(entry.deadline + 1 + _pick(GRACE));
        }
        Plan memory plan = _plan(index);
        plan.entries = _firstOf(plan.entries);
        plan.forged = new bool[](1);
        plan.operators = _firstOf(plan.operators);
        plan.badSignature = type(uint256).max;
        _fill(plan, true);
        Assignment memory a =
            Assignment(entry.id, plan.relayer, plan.set.nodes[0], plan.round, plan.set.items[0].reward, entry.deadline);
        bytes memory signature = _sign(plan.key, address(market), _hashAssignment(a));
        bytes memory data = abi.encodeCall(IInferenceMarket.submitAssigned, (a, signature, plan.set));
        plan.recordedAt = 1; // none is needed
        plan.charge = market.ASSIGNED_GAS() * _cappedPrice(plan.price);
        bool isOpen = entry.status == Status.PENDING && VM.getBlockTimestamp() > entry.deadline;
        bool isOk = _foreseen(plan, 0) == ItemStatus.OK && isOpen && entry.request.relayer != address(0);
        VM.txGasPrice(plan.price);
        if (!isOk) {
            return _mustRefuse(_anyAccount(), address(market), 0, data, IInferenceMarket.ItemRefused.selector);
        }
        RequestParams memory asked = _orderConsumer();
        uint256[] memory before = _creditsOf(plan);
        plan.expected = new ItemStatus[](1);
        _settleEntry(plan, 0);
        VM.recordLogs();
        _mustCall(_anyAccount(), address(market), 0, data);
        Vm.Log[] memory logs = VM.getRecordedLogs();
        Paid memory paid = _paidIn(plan, logs);
        VM.assertEq(_credit(plan.payees[0]), before[0] + paid.node + paid.relayer, "I6: the node has both parts");
        VM.assertEq(_credit(plan.relayer), before[plan.payees.length], "I6: the relayer has none");
        seen["settled by its node"] += 1;
        _adopt(asked);
    }

    function retry(uint256 seed) external chosenBy(seed) {
        if (entries.length == 0) return;
        Entry storage entry = entries[_anyEntry()];
        bytes memory answer = _isInline(entry.request) ? _answerOf(entry.id) : bytes("");
        bytes memory data = abi.encodeCall(IInferenceMarket.retryCallback, (entry.request, entry.ref, answer));
        if (entry.status != Status.FULFILLED_CALLBACK_FAILED) {
            return _mustRefuse(watcher, address(market), 0, data, IInferenceMarket.NoFailedCallback.selector);
        }
        bool fails = _oneIn(2);
        consumer.orderEnding(fails ? Puppet.Ending.REVERT : Puppet.Ending.ANSWER, "");
        wallet.orderEnding(fails ? Puppet.Ending.REVERT : Puppet.Ending.ANSWER, "");
        uint256 total = _totalCredit();
        if (fails) {
            return _mustRefuse(watcher, address(market), 0, data, IInferenceMarket.CallbackFailedAgain.selector);
        }
        _mustCall(watcher, address(market), 0, data);
        entry.status = Status.FULFILLED;
        VM.assertEq(_totalCredit(), total, "I3: a retry pays nobody");
        seen["retried callback"] += 1;
    }

    /* BONDS */

    function bond(uint256 seed) external chosenBy(seed) {
        (address account,) = _anyRelayer();
        IStakeManager.Relayer memory known = stakes.relayerOf(account);
        address to = address(stakes);
        uint256 kind = _pick(8);
        if (known.registeredAt == 0) {
            bytes memory data = abi.encodeCall(IStakeManager.registerRelayer, (""));
            _mustRefuse(account, to, STAKE - 1, data, IStakeManager.BondTooSmall.selector);
            return _discard(_mustCall(account, to, STAKE + _pick(1 ether), data));
        }
        if (kind == 0 && rounds[account].length > 4) {
            _mustCall(account, to, 0, abi.encodeCall(IStakeManager.beginUnbondRelayer, ()));
        } else if (kind < 4) {
            uint256 amount = 1 + _pick(0.5 ether);
            _mustCall(account, to, amount, abi.encodeCall(IStakeManager.addBond, ()));
            VM.assertEq(stakes.relayerOf(account).bond, known.bond + amount, "I14: bond");
        } else {
            bytes memory data = abi.encodeCall(IStakeManager.withdrawBond, ());
            if (known.unbondAt == 0) {
                return _mustRefuse(account, to, 0, data, IStakeManager.NothingUnbonding.selector);
            }
            if (VM.getBlockTimestamp() < known.unbondAt) {
                return _mustRefuse(account, to, 0, data, IStakeManager.StillUnbonding.selector);
            }
            uint256 before = account.balance;
            _mustCall(account, to, 0, data);
            VM.assertEq(account.balance, before + known.bond, "I16: the bond leaves after its time");
            seen["bond withdrawn"] += 1;
        }
    }

    /* PLANS */

    /// @param first The first of its requests: the rest of the plan suits it more often than not.
    function _plan(uint256 first) private returns (Plan memory plan) {
        (plan.relayer, plan.key) = _anyRelayer();
        address named = entries[first].request.relayer;
        if (named != address(0) && !_oneIn(8)) {
            (plan.relayer, plan.key) = (named, named == rival ? rivalKey : relayerKey);
        }
        uint256 count = rounds[plan.relayer].length;
        plan.round = uint64(count == 0 || _oneIn(10) ? count + 1 : count - _pick(_min(count, 3)));
        plan.recordedAt = plan.round > count ? 0 : rounds[plan.relayer][plan.round - 1].recordedAt;
        plan.entries = new uint256[](1 + _pick(4));
        plan.forged = new bool[](plan.entries.length);
        for (uint256 i = 0; i < plan.entries.length; ++i) {
            plan.entries[i] = i == 0 ? first : _openEntry();
            plan.forged[i] = _oneIn(20);
        }
        uint256 k = _kOf(entries[plan.entries[0]].request);
        if (_oneIn(10)) k = 1 + _pick(4);
        plan.operators = _someOperators(k == 0 ? 1 : k);
        plan.singly = plan.entries.length == 1 || _oneIn(2);
        plan.badSignature = _oneIn(6) ? _pick(plan.operators.length * plan.entries.length) : type(uint256).max;
        plan.price = 1 gwei + _pick(4 gwei);
        _fill(plan, plan.singly);
        uint256 gas = market.FIXED_GAS() / plan.entries.length + market.ITEM_GAS() + market.NODE_GAS()
            * (plan.operators.length - 1) / plan.entries.length;
        plan.charge = gas * _cappedPrice(plan.price);
    }

    /// In ascending order of their keys, none twice.
    function _someOperators(uint256 k) private returns (uint256[] memory chosen) {
        chosen = new uint256[](k);
        uint256 first = _pick(operators.length - k + 1);
        for (uint256 i = 0; i < k; ++i) {
            chosen[i] = first + i;
        }
    }

    /// The set, signed by all, but for the signature that is to be spoilt.
    function _fill(Plan memory plan, bool singly) private {
        uint256 n = plan.entries.length;
        uint256 k = plan.operators.length;
        ResultSet memory set;
        (set.round, set.nodes, set.items) = (plan.round, new address[](k), new ResultItem[](n));
        (set.results, set.proofs) = (new bytes[](n), new bytes[](n));
        plan.payees = new address[](k);
        (plan.notJoined, plan.onProbation) = (false, false);
        for (uint256 i = 0; i < k; ++i) {
            set.nodes[i] = operators[plan.operators[i]].node;
            (address payee, uint40 joinedAt) = stakes.membershipOf(set.nodes[i], address(market));
            plan.payees[i] = payee;
            if (payee == address(0)) plan.notJoined = true;
            (, uint64 settled) = market.accountOf(payee);
            if (settled < PROBATION_COUNT || VM.getBlockTimestamp() < joinedAt + PROBATION_TIME) {
                plan.onProbation = true;
            }
        }
        for (uint256 i = 0; i < n; ++i) {
            Entry storage entry = entries[plan.entries[i]];
            set.items[i] = ResultItem(entry.request, _someReward(entry.request, k), keccak256(_answerOf(entry.id)));
            if (plan.forged[i]) set.items[i].request.promptHash ^= bytes32(uint256(1));
            if (_isInline(entry.request) ? !_oneIn(6) : _oneIn(12)) set.results[i] = _answerOf(entry.id);
            if (entry.request.verifier != address(0) && !_oneIn(4)) set.proofs[i] = _proofOf(set, i);
        }
        plan.set = set;
        _signPlan(plan, singly);
    }

    function _signPlan(Plan memory plan, bool singly) private view {
        ResultSet memory set = plan.set;
        uint256 n = set.items.length;
        uint256 k = set.nodes.length;
        bytes32[] memory results = new bytes32[](n);
        for (uint256 i = 0; i < n; ++i) {
            ResultItem memory item = set.items[i];
            results[i] = _hashResult(_idOf(item.request), item.resultHash, item.reward, plan.relayer, plan.round);
        }
        set.signatures = new bytes[](singly ? n * k : k);
        for (uint256 i = 0; i < set.signatures.length; ++i) {
            uint256 key = plan.badSignature == i ? uint256(666) : operators[plan.operators[i % k]].key;
            set.signatures[i] = _sign(
                key, address(market), singly ? results[i / k] : _hashResultSet(plan.relayer, plan.round, results)
            );
        }
    }

    function _someReward(Request memory request, uint256 k) private returns (uint96) {
        uint256 most = uint80(request.amounts) / k;
        uint256 kind = _pick(8);
        if (kind == 0) return uint96(most + 1);
        if (kind < 4) return uint96(_min(most, PROBATION_CAP));
        if (kind == 4) return uint96(most);
        return uint96(_pick(_min(most, PROBATION_CAP + 10) + 1));
    }

    function _proofOf(ResultSet memory set, uint256 index) private view returns (bytes memory) {
        ResultItem memory item = set.items[index];
        bytes32 structHash = _hashAttestation(_idOf(item.request), set.nodes[0], item.resultHash);
        return _signDigest(attestedKey, _digest("Headrace AttestedKeyVerifier", address(verifier), structHash));
    }

    function _answerOf(bytes32 id) internal pure returns (bytes memory) {
        return abi.encodePacked("the answer to ", id);
    }

    /* FORESIGHT */

    function _foresee(Plan memory plan) private {
        plan.expected = new ItemStatus[](plan.entries.length);
        for (uint256 i = 0; i < plan.entries.length; ++i) {
            plan.expected[i] = _foreseen(plan, i);
            if (plan.expected[i] == ItemStatus.OK) _settleEntry(plan, i);
        }
    }

    function _foreseen(Plan memory plan, uint256 index) private view returns (ItemStatus) {
        Entry storage entry = entries[plan.entries[index]];
        Request memory request = entry.request;
        uint256 k = plan.operators.length;
        uint256 reward = plan.set.items[index].reward;
        uint256 time = VM.getBlockTimestamp();
        if (plan.forged[index]) return ItemStatus.UNKNOWN;
        if (entry.status != Status.PENDING) return ItemStatus.ALREADY_DONE;
        if (time > entry.deadline + GRACE) return ItemStatus.LATE;
        if (plan.recordedAt == 0 || plan.recordedAt > entry.deadline) return ItemStatus.NO_ROUND;
        bool isOpen = request.relayer == address(0);
        if (isOpen ? !stakes.isBonded(plan.relayer) : request.relayer != plan.relayer) return ItemStatus.WRONG_RELAYER;
        if (plan.notJoined) return ItemStatus.NODE_NOT_JOINED;
        if (_kOf(request) != (k == 1 ? 0 : k)) return ItemStatus.BAD_SIGNATURE;
        if (plan.onProbation && reward > PROBATION_CAP) return ItemStatus.PROBATION;
        if (reward * k > uint80(request.amounts)) return ItemStatus.REWARD_TOO_HIGH;
        uint256 signatures = plan.set.signatures.length;
        bool isSpoilt = plan.badSignature < signatures && (signatures == k || plan.badSignature / k == index);
        if (isSpoilt) return ItemStatus.BAD_SIGNATURE;
        if (_modeOf(request) == Mode.VERIFIER && plan.set.proofs[index].length == 0) {
            return ItemStatus.VERIFICATION_FAILED;
        }
        bool hasBytes = plan.set.results[index].length != 0;
        if (hasBytes ? !_isInline(request) : _isInline(request) && _callbackGasOf(request) != 0) {
            return ItemStatus.BAD_RESULT;
        }
        return ItemStatus.OK;
    }

    /// Its status is final but for how its callback went.
    function _settleEntry(Plan memory plan, uint256 index) private {
        Entry storage entry = entries[plan.entries[index]];
        entry.status = Status.FULFILLED;
        entry.ref = ResultRef(
            plan.set.items[index].resultHash, plan.relayer, plan.round, plan.set.nodes, uint40(VM.getBlockTimestamp())
        );
    }

    /* AFTERWARDS */

    function _creditsOf(Plan memory plan) private view returns (uint256[] memory credits) {
        uint256 k = plan.payees.length;
        credits = new uint256[](k + 2);
        for (uint256 i = 0; i < k; ++i) {
            credits[i] = _credit(plan.payees[i]);
        }
        credits[k] = _credit(plan.relayer);
        credits[k + 1] = _othersCredit();
    }

    /// Of the requesters that are not called back.
    function _othersCredit() private view returns (uint256 total) {
        for (uint256 i = 0; i < 3; ++i) {
            total += _credit(plain[i]);
        }
        return total + _credit(signer) + _credit(address(wallet));
    }

    function _check(Plan memory plan, Vm.Log[] memory logs, uint256[] memory before) private {
        ItemStatus[] memory statuses = _statusesIn(logs);
        for (uint256 i = 0; i < statuses.length; ++i) {
            VM.assertEq(uint256(statuses[i]), uint256(plan.expected[i]), "I7, I9: status of an item");
            seen[keccak256(abi.encode("item", statuses[i]))] += 1;
        }
        Paid memory paid = _paidIn(plan, logs);
        uint256 k = plan.payees.length;
        for (uint256 i = 0; i < k; ++i) {
            uint256 times = 0;
            for (uint256 j = 0; j < k; ++j) {
                if (plan.payees[j] == plan.payees[i]) ++times;
            }
            if (plan.payees[i] == address(0)) continue;
            VM.assertEq(_credit(plan.payees[i]), before[i] + times * paid.node, "I42: each node has the same");
        }
        VM.assertEq(_credit(plan.relayer), before[k] + paid.relayer, "I3: the relayer's credit");
        VM.assertEq(_othersCredit(), before[k + 1] + paid.refund, "I3: the requesters' credit");
    }

    /// Reads what the events say was paid, and holds each to the rule.
    function _paidIn(Plan memory plan, Vm.Log[] memory logs) private returns (Paid memory paid) {
        for (uint256 i = 0; i < logs.length; ++i) {
            if (logs[i].emitter != address(market)) continue;
            if (logs[i].topics[0] == IInferenceMarket.CallbackFailed.selector) {
                entries[entryOf[logs[i].topics[1]] - 1].status = Status.FULFILLED_CALLBACK_FAILED;
                seen["failed callback"] += 1;
            }
            if (logs[i].topics[0] != IInferenceMarket.ResultFulfilled.selector) continue;
            uint256 index = entryOf[logs[i].topics[1]] - 1;
            (, uint256 nodePaid, uint256 relayerPaid, uint256 refund) =
                abi.decode(logs[i].data, (bytes32, uint256, uint256, uint256));
            _checkSplit(plan, index, nodePaid, relayerPaid, refund);
            paid.node += nodePaid / plan.payees.length;
            paid.relayer += relayerPaid;
            seen[keccak256(abi.encode("mode", _modeOf(entries[index].request)))] += 1;
            if (entries[index].request.requester == address(consumer)) paid.called += refund;
            else paid.refund += refund;
        }
    }

    function _checkSplit(Plan memory plan, uint256 index, uint256 nodePaid, uint256 relayerPaid, uint256 refund)
        private
        view
    {
        Entry storage entry = entries[index];
        Request memory request = entry.request;
        uint256 item = 0;
        while (plan.entries[item] != index || plan.expected[item] != ItemStatus.OK) ++item;
        uint256 k = plan.payees.length;
        VM.assertEq(nodePaid + relayerPaid + refund, entry.escrow, "I3: the three are the escrow");
        uint256 fee = uint80(request.amounts >> 160) + entry.added;
        uint256 reward = plan.set.items[item].reward;
        VM.assertEq(nodePaid, k * (reward + (fee - fee / 5) / k), "I42: nodes share equally");
        VM.assertLe(k * reward, uint80(request.amounts), "I5: within the maximum");
        if (plan.onProbation) VM.assertLe(reward, PROBATION_CAP, "I5: within the cap");
        uint256 budget = uint80(request.amounts >> 80);
        uint256 least = plan.charge + 40 * plan.set.results[item].length * _cappedPrice(plan.price);
        uint256 most = least;
        if (_modeOf(request) == Mode.VERIFIER) most += 100_000 * _cappedPrice(plan.price);
        if (_callbackGasOf(request) != 0) most += (_callbackGasOf(request) + 150_000) * _cappedPrice(plan.price);
        VM.assertGe(relayerPaid, fee / 5 + _withSaving(least, budget), "I4: at least the charge");
        VM.assertLe(
            relayerPaid, fee / 5 + _withSaving(most, budget), "I4, I41: at most what may be used, in the budget"
        );
    }

    function _withSaving(uint256 charge, uint256 budget) private pure returns (uint256) {
        charge = _min(charge, budget);
        return charge + (budget - charge) / 10;
    }

    function _cappedPrice(uint256 price) private pure returns (uint256) {
        return _min(price, 1 gwei + 2 gwei);
    }

    /* THE CONSUMER */

    /// What it will do in its next callback, and how it ends it.
    /// @return asked The request that it may post.
    function _orderConsumer() private returns (RequestParams memory asked) {
        uint256 kind = _pick(10);
        bytes memory reason = kind % 2 == 0 ? bytes("no") : bytes("");
        consumer.orderEnding(kind < 5 ? Puppet.Ending.ANSWER : Puppet.Ending(kind - 4), reason);
        asked = _someParams();
        uint256 escrow = market.escrowOf(asked);
        VM.deal(address(consumer), escrow + 1 ether);
        address to = address(market);
        if (_oneIn(3)) consumer.orderStep(to, escrow, abi.encodeCall(IInferenceMarket.requestInference, (asked, "")));
        if (_oneIn(4)) consumer.orderStep(to, 3, abi.encodeCall(IInferenceMarket.deposit, (address(consumer))));
        if (_oneIn(4)) {
            consumer.orderStep(to, 0, abi.encodeCall(IInferenceMarket.withdrawTo, (address(0x0507), 2)));
        }
        if (_oneIn(3)) {
            Entry storage entry = entries[_anyEntry()];
            consumer.orderStep(to, 0, abi.encodeCall(IInferenceMarket.cancel, (entry.request)));
            consumer.orderStep(to, 0, abi.encodeCall(IInferenceMarket.retryCallback, (entry.request, entry.ref, "")));
        }
        if (_oneIn(3)) {
            Request[] memory requests = new Request[](1);
            requests[0] = entries[_anyEntry()].request;
            // Of others a refund would come in between that is not foreseen here.
            if (requests[0].requester != address(consumer)) return asked;
            consumer.orderStep(to, 0, abi.encodeCall(IInferenceMarket.expire, (requests)));
        }
    }

    /// Enters into the books what the consumer did in its callback: to its own requests, and to those that were due.
    function _adopt(RequestParams memory asked) private {
        consumer.orderNoSteps();
        bytes32 askedId = _idOf(_packed(asked, address(consumer)));
        if (entryOf[askedId] == 0 && market.wordOf(askedId) != 0) {
            _enter(asked, address(consumer));
            seen["request from a callback"] += 1;
        }
        for (uint256 i = 0; i < entries.length; ++i) {
            Entry storage entry = entries[i];
            if (entry.status != Status.PENDING) continue;
            uint256 word = market.wordOf(entry.id);
            if (_statusIn(word) == Status.EXPIRED) {
                VM.assertTrue(VM.getBlockTimestamp() > entry.deadline + GRACE, "I8: expired when it was due");
                entry.status = Status.EXPIRED;
            } else if (uint40(word >> 96) != entry.deadline) {
                VM.assertEq(entry.request.requester, address(consumer), "cancelled by its own requester");
                VM.assertEq(uint40(word >> 96), VM.getBlockTimestamp(), "as of now");
                entry.deadline = uint40(VM.getBlockTimestamp());
            }
        }
    }

    /* DECISIONS */

    function _someDecisions(address account) private returns (Decision[] memory decisions) {
        uint256 count = entries.length == 0 ? 0 : 1 + _pick(4);
        Decision[] memory made = new Decision[](count * 4 + 1);
        uint256 used = 0;
        for (uint256 i = 0; i < count; ++i) {
            Entry storage entry = entries[_anyEntry()];
            uint256 k = _kOf(entry.request);
            uint256[] memory chosen = _someOperators(k == 0 ? 1 : k);
            for (uint256 j = 0; j < chosen.length; ++j) {
                Decision memory d = made[used];
                (d.requestId, d.node) = (entry.id, operators[chosen[j]].node);
                d.reward = uint96(_pick(1e15));
                // The last round, this one or one to come.
                d.supersedesRound = _oneIn(2) ? uint64(rounds[account].length + _pick(3)) : 0;
                if (!_isAmong(made, used, d)) ++used;
            }
        }
        if (used == 0) (made[0].requestId, used) = (bytes32(uint256(1)), 1);
        decisions = new Decision[](used);
        for (uint256 i = 0; i < used; ++i) {
            decisions[i] = made[i];
        }
        return _sort(decisions);
    }

    function _isAmong(Decision[] memory made, uint256 used, Decision memory d) private pure returns (bool) {
        for (uint256 i = 0; i < used; ++i) {
            if (made[i].requestId == d.requestId && made[i].node == d.node) return true;
        }
        return false;
    }

    function _keep(address account, RoundRecord memory r, Decision[] memory decisions) private {
        Round storage kept = rounds[account].push();
        kept.record = r;
        kept.recordedAt = uint40(VM.getBlockTimestamp());
        for (uint256 i = 0; i < decisions.length; ++i) {
            kept.decisions.push(decisions[i]);
        }
    }

    function _firstOf(uint256[] memory list) private pure returns (uint256[] memory first) {
        first = new uint256[](1);
        first[0] = list[0];
    }

    function _discard(bytes memory) internal pure {}
}
