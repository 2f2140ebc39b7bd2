// SPDX-License-Identifier: MIT
pragma solidity ^0.8.30;

import {Request, RequestParams, Status} from "../../contracts/Types.sol";
import {IInferenceMarket} from "../../contracts/interfaces/IInferenceMarket.sol";
import {Base} from "./Base.sol";
import {VM, Vm} from "./Vm.sol";

/// raisePriorityFee, cancel, cancelWithRelease and expire.
contract EndingsTest is Base {
    address private requester = address(0x4E9);

    function setUp() external {
        _deploy(1);
    }

    /* RAISE */

    function testFuzz_raisePriorityFee_addsUp(uint96 first, uint96 second, address by, uint40 after_) external {
        VM.assume(first != 0 && second != 0 && by != address(market));
        Request memory request = _post(_params(1), requester);
        VM.warp(_now() + after_ % 601);
        _raise(by, request, first);
        uint256 total = uint256(first) + second;
        if (total > type(uint96).max) {
            VM.expectRevert(abi.encodeWithSignature("SafeCastOverflowedUintDowncast(uint8,uint256)", 96, total));
        }
        _raise(by, request, second);
        if (total > type(uint96).max) total = first;
        (uint96 added, uint40 deadline) = market.pendingOf(_idOf(request));
        VM.assertEq(added, total, "added");
        VM.assertEq(deadline, START + 600, "the deadline stays");
        VM.assertEq(address(market).balance, _escrowOf(request) + total, "balance");
    }

    function testFuzz_raisePriorityFee_endsWithTheDeadline(uint40 late, uint64 amount) external {
        VM.assume(amount != 0);
        Request memory request = _post(_params(1), requester);
        VM.warp(START + 601 + late % 1 days);
        VM.expectRevert(abi.encodeWithSelector(IInferenceMarket.DeadlinePassed.selector, START + 600, _now()));
        _raise(requester, request, amount);
    }

    function testFuzz_raisePriorityFee_refusesWhatIsNotPending(uint8 fate, bytes32 unknown) external {
        Request memory request = _post(_params(1), requester);
        VM.expectRevert(abi.encodeWithSelector(IInferenceMarket.NothingSent.selector));
        market.raisePriorityFee(_idOf(request));
        Status ended = _end(request, fate);
        bytes32 requestId = ended == Status.PENDING ? unknown : _idOf(request);
        VM.deal(address(this), 1);
        VM.expectRevert(
            abi.encodeWithSelector(
                IInferenceMarket.NotPending.selector, requestId, ended == Status.PENDING ? Status.NONE : ended
            )
        );
        market.raisePriorityFee{value: 1}(requestId);
    }

    /* CANCEL */

    /// What was raised stays, the deadline is now, and the refund comes a grace later.
    function testFuzz_cancel_setsTheDeadlineToNow(uint40 after_, uint96 raised) external {
        Request memory request = _post(_params(1), requester);
        if (raised != 0) _raise(requester, request, raised);
        VM.warp(START + after_ % 600);
        VM.prank(requester);
        market.cancel(request);
        (uint96 added, uint40 deadline) = market.pendingOf(_idOf(request));
        VM.assertEq(added, raised, "what was raised");
        VM.assertEq(deadline, _now(), "deadline");
        VM.expectRevert(abi.encodeWithSelector(IInferenceMarket.DeadlinePassed.selector, deadline, _now()));
        VM.prank(requester);
        market.cancel(request);
        VM.warp(_now() + GRACE);
        market.expire(_list(request));
        _assertStatus(request, Status.PENDING);
        VM.warp(_now() + 1);
        market.expire(_list(request));
        _assertStatus(request, Status.EXPIRED);
        VM.assertEq(_credit(requester), _escrowOf(request) + raised, "I8: refunded");
    }

    function testFuzz_cancel_isTooLateFromTheDeadlineOn(uint40 late) external {
        Request memory request = _post(_params(1), requester);
        VM.warp(START + 600 + late % 1 days);
        VM.expectRevert(abi.encodeWithSelector(IInferenceMarket.DeadlinePassed.selector, START + 600, _now()));
        VM.prank(requester);
        market.cancel(request);
    }

    function testFuzz_cancel_isTheRequestersOnly(address by, bool released) external {
        VM.assume(by != requester);
        Request memory request = _post(_params(1), requester);
        bytes memory release = _release(relayerKey, request, type(uint40).max);
        VM.expectRevert(abi.encodeWithSelector(IInferenceMarket.NotRequester.selector, by, requester));
        VM.prank(by);
        if (released) market.cancelWithRelease(request, type(uint40).max, release);
        else market.cancel(request);
    }

    function testFuzz_cancel_refusesWhatIsNotPending(uint8 fate, bool released) external {
        Request memory request = _post(_params(1), requester);
        Status ended = _end(request, fate);
        if (ended == Status.PENDING) (request.promptHash, ended) = (bytes32(0), Status.NONE);
        bytes memory release = _release(relayerKey, request, type(uint40).max);
        VM.expectRevert(abi.encodeWithSelector(IInferenceMarket.NotPending.selector, _idOf(request), ended));
        VM.prank(requester);
        if (released) market.cancelWithRelease(request, type(uint40).max, release);
        else market.cancel(request);
    }

    /* CANCEL WITH RELEASE */

    /// At any time while it is pending, also after its deadline.
    function testFuzz_cancelWithRelease_refundsAtOnce(uint80 maxReward, uint96 raised, uint40 after_) external {
        RequestParams memory params = _params(1);
        params.maxReward = maxReward;
        Request memory request = _post(params, requester);
        if (raised != 0) _raise(relayer, request, raised);
        VM.warp(_now() + after_ % 2 days);
        uint40 until = uint40(_now());
        bytes memory release = _release(relayerKey, request, until);
        VM.recordLogs();
        VM.prank(requester);
        market.cancelWithRelease(request, until, release);
        Vm.Log[] memory logs = VM.getRecordedLogs();
        uint256 refund = _escrowOf(request) + raised;
        VM.assertEq(_credit(requester), refund, "refund");
        VM.assertEq(logs[0].topics[0], IInferenceMarket.RequestClosed.selector, "event");
        VM.assertEq(logs[0].data, abi.encode(Status.CANCELLED, refund), "event's data");
        _assertStatus(request, Status.CANCELLED);
    }

    function testFuzz_cancelWithRelease_endsAtItsTime(uint40 until) external {
        until = uint40(_bound(until, 0, START - 1));
        Request memory request = _post(_params(1), requester);
        bytes memory release = _release(relayerKey, request, until);
        VM.expectRevert(abi.encodeWithSelector(IInferenceMarket.SignatureExpired.selector, until, START));
        VM.prank(requester);
        market.cancelWithRelease(request, until, release);
    }

    /// Only the relayer that the request names, for this request and this time; in an open race nobody.
    function testFuzz_cancelWithRelease_needsTheNamedRelayersWord(uint8 what) external {
        RequestParams memory params = _params(1);
        if (what % 5 == 4) params.relayer = address(0);
        Request memory request = _post(params, requester);
        Request memory other = _post(_params(2), requester);
        uint40 until = uint40(START + 100);
        bytes memory release = _release(relayerKey, request, until);
        address signer = relayer;
        if (what % 5 == 0) (release, signer) = (_release(rivalKey, request, until), rival);
        if (what % 5 == 1) release = _release(relayerKey, other, until);
        if (what % 5 == 2) release = _release(relayerKey, request, until + 1);
        if (what % 5 == 3) (release, signer) = (hex"", address(0));
        VM.prank(requester);
        try market.cancelWithRelease(request, until, release) {
            assert(false);
        } catch (bytes memory why) {
            VM.assertEq(
                bytes32(bytes4(why)), bytes32(IInferenceMarket.InvalidSignature.selector), "whose signature it is not"
            );
            if (what % 5 != 1 && what % 5 != 2) {
                VM.assertEq(why, abi.encodeWithSelector(IInferenceMarket.InvalidSignature.selector, signer), "who");
            }
        }
    }

    /* EXPIRE */

    /// Those that are due are refunded, in full and once; all others are left alone, in any order and number.
    function testFuzz_expire_refundsWhatIsDueAndSkipsTheRest(uint8[8] memory fates, uint40 late, uint96 raised)
        external
    {
        Request[] memory requests = new Request[](17);
        uint256 due = 0;
        VM.txGasPrice(0);
        for (uint256 i = 0; i < 8; ++i) {
            requests[i] = _post(_params(uint64(i)), address(uint160(0x1000 + i)));
            if (raised != 0) _raise(address(this), requests[i], raised);
            requests[16 - i] = requests[i];
        }
        uint256[8] memory before;
        Status[8] memory expected;
        for (uint256 i = 0; i < 8; ++i) {
            expected[i] = _end(requests[i], fates[i] % 4 == 2 ? 0 : fates[i]);
        }
        requests[8] = _packed(_params(99), requester); // never posted
        VM.warp(START + 600 + _bound(late, 0, 2 * GRACE));
        for (uint256 i = 0; i < 8; ++i) {
            before[i] = _credit(requests[i].requester);
        }
        market.expire(requests);
        for (uint256 i = 0; i < 8; ++i) {
            bool isDue = expected[i] == Status.PENDING && _now() > START + 600 + GRACE;
            _assertStatus(requests[i], isDue ? Status.EXPIRED : expected[i]);
            due = isDue ? _escrowOf(requests[i]) + raised : 0;
            VM.assertEq(_credit(requests[i].requester), before[i] + due, "refund");
        }
    }

    /// D + GRACE is still the node's; the second after is the requester's.
    function test_expire_beginsASecondAfterTheGrace() external {
        Request memory request = _post(_params(1), requester);
        for (uint256 time = START + 600 + GRACE - 1; time <= START + 600 + GRACE + 1; ++time) {
            VM.warp(time);
            market.expire(_list(request));
            _assertStatus(request, time > START + 600 + GRACE ? Status.EXPIRED : Status.PENDING);
        }
    }

    /// Fields that were changed after posting make another id: nobody's refund.
    function testFuzz_expire_skipsAForgedRequest(Request memory forged) external {
        Request memory request = _post(_params(1), requester);
        VM.assume(_idOf(forged) != _idOf(request));
        VM.warp(START + 2 days);
        market.expire(_list(forged));
        VM.assertEq(_credit(forged.requester), 0, "no refund");
        VM.assertEq(market.wordOf(_idOf(forged)), 0, "no word");
    }

    /* HELPERS */

    function _raise(address by, Request memory request, uint256 amount) private {
        VM.deal(by, amount);
        VM.prank(by);
        market.raisePriorityFee{value: amount}(_idOf(request));
    }

    function _release(uint256 key, Request memory request, uint40 until) private view returns (bytes memory) {
        return _sign(key, address(market), _hashRelease(_idOf(request), until));
    }

    /// Ends a request in one of the ways there are, or leaves it.
    function _end(Request memory request, uint8 fate) private returns (Status) {
        fate %= 4;
        if (fate == 1) _settle(request, 1);
        if (fate == 2) {
            VM.warp(START + 600 + GRACE + 1);
            market.expire(_list(request));
        }
        if (fate == 3) {
            bytes memory release = _release(relayerKey, request, type(uint40).max);
            VM.prank(request.requester);
            market.cancelWithRelease(request, type(uint40).max, release);
        }
        Status[4] memory statuses = [Status.PENDING, Status.FULFILLED, Status.EXPIRED, Status.CANCELLED];
        return statuses[fate];
    }
}
