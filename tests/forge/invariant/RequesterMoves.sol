// SPDX-License-Identifier: MIT
pragma solidity ^0.8.30;

import {Mode, Request, RequestParams, Status} from "../../../contracts/Types.sol";
import {IInferenceMarket} from "../../../contracts/interfaces/IInferenceMarket.sol";
import {Puppet} from "../Puppet.sol";
import {VM} from "../Vm.sol";
import {World} from "./World.sol";

/// What requesters do: plain accounts, one that only signs, a contract with callbacks, and a wallet that signs by contract.
abstract contract RequesterMoves is World {
    /// From wei, from credit, or from both.
    function post(uint256 seed) public chosenBy(seed) {
        address requester = _oneIn(2) ? address(consumer) : plain[_pick(3)];
        RequestParams[] memory params = new RequestParams[](_oneIn(3) ? 1 + _pick(3) : 1);
        uint256 escrow = 0;
        for (uint256 i = 0; i < params.length; ++i) {
            params[i] = _someParams();
            if (requester == address(consumer) && !_oneIn(4)) params[i].callbackGas = uint24(200_000 + _pick(1e6));
            escrow += market.escrowOf(params[i]);
        }
        bytes memory data = params.length == 1
            ? abi.encodeCall(IInferenceMarket.requestInference, (params[0], ""))
            : abi.encodeCall(IInferenceMarket.requestInferenceBatch, (params, new bytes[](params.length)));
        if (VM.getBlockTimestamp() < pausedUntil) {
            return _mustRefuse(requester, address(market), 0, data, IInferenceMarket.RequestsPaused.selector);
        }
        uint256 credit = _credit(requester);
        uint256 value = _oneIn(3) ? escrow - _min(escrow, credit) : escrow + (_oneIn(5) ? _pick(1e15) : 0);
        _mustCall(requester, address(market), value, data);
        VM.assertEq(_credit(requester) + escrow, credit + value, "I3: escrow from wei and credit");
        for (uint256 i = 0; i < params.length; ++i) {
            _enter(params[i], requester);
        }
    }

    /// More often than other moves.
    function postMore(uint256 seed) external {
        post(uint256(keccak256(abi.encode(seed))));
    }

    /// Signed by a key or by a wallet, brought in by anybody, paid from credit.
    function postFor(uint256 seed) external chosenBy(seed) {
        bool isWallet = _oneIn(2);
        address requester = isWallet ? address(wallet) : signer;
        RequestParams memory params = _someParams();
        uint96 fee = params.relayer == address(0) ? 0 : uint96(_pick(1e14));
        bytes memory signature =
            _sign(signerKey, address(market), _hashRequestFor(params, requester, fee, type(uint40).max));
        bytes memory data = abi.encodeCall(
            IInferenceMarket.requestInferenceFor, (params, "", requester, fee, type(uint40).max, signature)
        );
        address by = _anyAccount();
        if (VM.getBlockTimestamp() < pausedUntil) {
            return _mustRefuse(by, address(market), 0, data, IInferenceMarket.RequestsPaused.selector);
        }
        if (isWallet && _orderWallet()) {
            return _mustRefuse(by, address(market), 0, data, IInferenceMarket.InvalidSignature.selector);
        }
        uint256 needed = market.escrowOf(params) + fee;
        uint256 credit = _credit(requester);
        if (credit < needed) {
            _mustRefuse(by, address(market), 0, data, IInferenceMarket.EscrowShort.selector);
            _deposit(requester, needed - credit);
            credit = needed;
        }
        uint256 before = params.relayer == address(0) ? 0 : _credit(params.relayer);
        uint256 total = _totalCredit();
        _mustCall(by, address(market), 0, data);
        VM.assertEq(_credit(requester), credit - needed, "I43: the requester's credit");
        if (fee != 0) VM.assertEq(_credit(params.relayer), before + fee, "I43: the relayer's fee");
        VM.assertEq(_totalCredit(), total - needed + fee, "I43: credit is conserved");
        seen[isWallet ? bytes32("signed by a wallet") : bytes32("signed by a key")] += 1;
        _enter(params, requester);
        _mustRefuse(by, address(market), 0, data, IInferenceMarket.RequestExists.selector);
    }

    /// I12: whatever became of it.
    function resend(uint256 seed) external chosenBy(seed) {
        if (entries.length == 0) return;
        Entry storage entry = entries[_anyEntry()];
        // Later than its deadline it is refused for that; so the time is set back for this move.
        uint256 time = VM.getBlockTimestamp();
        uint256 earlier = uint40(entry.request.terms >> 64) - 10;
        if (earlier < pausedUntil) return;
        VM.warp(earlier);
        bytes memory data = abi.encodeCall(IInferenceMarket.requestInference, (_unpacked(entry.request), ""));
        _mustRefuse(entry.request.requester, address(market), 0, data, IInferenceMarket.RequestExists.selector);
        VM.warp(time);
    }

    function raise(uint256 seed) external chosenBy(seed) {
        if (entries.length == 0) return;
        Entry storage entry = entries[_anyEntry()];
        uint256 amount = 1 + _pick(1e15);
        bytes memory data = abi.encodeCall(IInferenceMarket.raisePriorityFee, (entry.id));
        address by = _anyAccount();
        if (entry.status != Status.PENDING) {
            return _mustRefuse(by, address(market), amount, data, IInferenceMarket.NotPending.selector);
        }
        if (VM.getBlockTimestamp() > entry.deadline) {
            return _mustRefuse(by, address(market), amount, data, IInferenceMarket.DeadlinePassed.selector);
        }
        _mustCall(by, address(market), amount, data);
        entry.escrow += amount;
        entry.added += amount;
    }

    function cancel(uint256 seed) external chosenBy(seed) {
        if (entries.length == 0) return;
        Entry storage entry = entries[_openEntry()];
        bytes memory data = abi.encodeCall(IInferenceMarket.cancel, (entry.request));
        address requester = entry.request.requester;
        if (entry.status != Status.PENDING) {
            return _mustRefuse(requester, address(market), 0, data, IInferenceMarket.NotPending.selector);
        }
        if (VM.getBlockTimestamp() >= entry.deadline) {
            return _mustRefuse(requester, address(market), 0, data, IInferenceMarket.DeadlinePassed.selector);
        }
        _mustRefuse(address(0xBAD), address(market), 0, data, IInferenceMarket.NotRequester.selector);
        _mustCall(requester, address(market), 0, data);
        entry.deadline = uint40(VM.getBlockTimestamp());
    }

    /// The relayer signs a release, whether or not it has assigned the request.
    function release(uint256 seed) external chosenBy(seed) {
        if (entries.length == 0 || !_oneIn(3)) return;
        Entry storage entry = entries[_anyEntry()];
        address requester = entry.request.requester;
        uint256 key = entry.request.relayer == rival ? rivalKey : relayerKey;
        bytes memory signature = _sign(key, address(market), _hashRelease(entry.id, type(uint40).max));
        bytes memory data =
            abi.encodeCall(IInferenceMarket.cancelWithRelease, (entry.request, type(uint40).max, signature));
        if (entry.status != Status.PENDING) {
            return _mustRefuse(requester, address(market), 0, data, IInferenceMarket.NotPending.selector);
        }
        if (entry.request.relayer == address(0)) {
            return _mustRefuse(requester, address(market), 0, data, IInferenceMarket.InvalidSignature.selector);
        }
        uint256 credit = _credit(requester);
        _mustCall(requester, address(market), 0, data);
        VM.assertEq(_credit(requester), credit + entry.escrow, "I3: all of it is refunded");
        entry.status = Status.CANCELLED;
        seen["released"] += 1;
    }

    /// Any requests at all: those that are not due must be skipped.
    function expire(uint256 seed) external chosenBy(seed) {
        if (entries.length == 0) return;
        Request[] memory requests = new Request[](1 + _pick(5));
        uint256 due = 0;
        for (uint256 i = 0; i < requests.length; ++i) {
            Entry storage entry = entries[_anyEntry()];
            requests[i] = entry.request;
            if (entry.status != Status.PENDING || VM.getBlockTimestamp() <= entry.deadline + GRACE) continue;
            entry.status = Status.EXPIRED;
            due += entry.escrow;
            seen["expired"] += 1;
        }
        uint256 total = _totalCredit();
        _mustCall(_anyAccount(), address(market), 0, abi.encodeCall(IInferenceMarket.expire, (requests)));
        VM.assertEq(_totalCredit(), total + due, "I8: what is due is refunded, and nothing else");
    }

    /// In, out, out to another, and by force.
    function bank(uint256 seed) external chosenBy(seed) {
        address account = _anyAccount();
        uint256 credit = _credit(account);
        uint256 kind = _pick(5);
        uint256 amount = _pick(credit + 1);
        if (account == address(consumer) || account == address(wallet)) {
            Puppet(payable(account)).orderEnding(Puppet.Ending.ANSWER, "");
        }
        if (kind == 0) {
            _deposit(account, 1 + _pick(1e16));
        } else if (kind == 1) {
            uint256 before = account.balance;
            bytes memory data = abi.encodeCall(IInferenceMarket.withdraw, (account, amount));
            address by = _anyAccount();
            if (by != account && account.code.length == 0) {
                return _mustRefuse(by, address(market), 0, data, IInferenceMarket.NotAccount.selector);
            }
            _mustCall(by, address(market), 0, data);
            VM.assertEq(account.balance, before + amount, "I1: paid to the account itself");
        } else if (kind == 2) {
            bytes memory data = abi.encodeCall(IInferenceMarket.withdrawTo, (address(0x0507), amount));
            _mustCall(account, address(market), 0, data);
        } else if (kind == 3) {
            bytes memory data = abi.encodeCall(IInferenceMarket.withdraw, (account, credit + 1));
            _mustRefuse(account, address(market), 0, data, IInferenceMarket.BalanceShort.selector);
        } else {
            amount = _pick(1e15);
            bool toMarket = _oneIn(2);
            _force(toMarket ? address(market) : address(stakes), amount);
            if (toMarket) forcedIn += amount;
            else forcedStakes += amount;
        }
    }

    /* HELPERS */

    function _someParams() internal returns (RequestParams memory params) {
        params = _params(++salt);
        uint256 which = _pick(8);
        params.relayer = which == 0 ? address(0) : which < 3 ? rival : relayer;
        params.deadline = uint40(VM.getBlockTimestamp() + 10 + _pick(1500));
        (params.maxReward, params.gasBudget, params.priorityFee) = (_amount(), _amount(), _amount());
        params.inlineResult = _oneIn(3);
        if (_oneIn(3)) params.callbackGas = uint24(_oneIn(4) ? _pick(1000) : 100_000 + _pick(400_000));
        uint256 mode = _pick(6);
        if (mode == 0) {
            params.mode = Mode.QUORUM;
            params.n = uint8(2 + _pick(3));
            params.k = uint8(2 + _pick(params.n - 1));
        } else if (mode == 1) {
            (params.mode, params.verifier) = (Mode.VERIFIER, address(verifier));
        }
    }

    /// Has the wallet say yes, or something else.
    /// @return refuses Whether what it says is no yes.
    function _orderWallet() private returns (bool refuses) {
        uint256 kind = _pick(9);
        refuses = kind >= 4;
        bytes memory yes = abi.encode(bytes4(0x1626ba7e));
        wallet.orderEnding(Puppet.Ending(refuses ? 1 + kind % 5 : 0), yes);
        if (kind == 4) wallet.orderEnding(Puppet.Ending.ANSWER, "1626ba7e");
    }

    function _unpacked(Request memory request) private pure returns (RequestParams memory params) {
        uint256 terms = request.terms;
        (params.relayer, params.modelId, params.promptHash) = (request.relayer, request.modelId, request.promptHash);
        (params.salt, params.deadline) = (uint64(terms), uint40(terms >> 64));
        (params.promptBytes, params.maxOutputTokens) = (uint32(terms >> 104), uint24(terms >> 136));
        (params.callbackGas, params.lane) = (uint24(terms >> 160), uint8(terms >> 184));
        (params.mode, params.k, params.n) = (Mode(uint8(terms >> 192)), uint8(terms >> 200), uint8(terms >> 208));
        (params.batchable, params.inlineResult) = (terms >> 216 & 1 == 1, terms >> 217 & 1 == 1);
        params.verifier = request.verifier;
        (params.maxReward, params.gasBudget) = (uint80(request.amounts), uint80(request.amounts >> 80));
        params.priorityFee = uint80(request.amounts >> 160);
    }

    function _min(uint256 a, uint256 b) internal pure returns (uint256) {
        return a < b ? a : b;
    }
}
