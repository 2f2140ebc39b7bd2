// SPDX-License-Identifier: MIT
pragma solidity ^0.8.30;

import {Mode, Request, RequestParams, Status} from "../../contracts/Types.sol";
import {IInferenceMarket} from "../../contracts/interfaces/IInferenceMarket.sol";
import {Base} from "./Base.sol";
import {VM, Vm} from "./Vm.sol";

/// requestInference and requestInferenceBatch.
contract RequestsTest is Base {
    address private requester = address(0x4E9);

    function setUp() external {
        _deploy(0);
    }

    /* TAKEN */

    /// Whatever a request says within the terms: its id is foreseen, its escrow is taken, all of it is logged.
    function testFuzz_requestInference_takesWhatIsWithinTheTerms(uint256[18] memory seed, bytes memory prompt)
        external
    {
        RequestParams memory params = _anyParams(seed, prompt);
        uint256 escrow = uint256(params.maxReward) + params.gasBudget + params.priorityFee;
        Request memory expected = _packed(params, requester);
        VM.deal(requester, escrow);
        VM.recordLogs();
        VM.prank(requester);
        bytes32 requestId = market.requestInference{value: escrow}(params, prompt);
        Vm.Log[] memory logs = VM.getRecordedLogs();

        VM.assertEq(requestId, _idOf(expected), "I12: the id is a hash of what is asked");
        VM.assertEq(market.requestIdOf(market.packRequest(params, requester)), requestId, "views agree");
        VM.assertEq(market.wordOf(requestId), (uint256(1) << 248) | uint256(params.deadline) << 96, "word");
        VM.assertEq(address(market).balance, escrow, "escrow");
        VM.assertEq(logs.length, 1, "one event");
        VM.assertEq(logs[0].topics[0], IInferenceMarket.InferenceRequested.selector, "event");
        VM.assertEq(logs[0].topics[1], requestId, "event's id");
        VM.assertEq(logs[0].topics[2], bytes32(uint256(uint160(requester))), "event's requester");
        VM.assertEq(logs[0].topics[3], bytes32(uint256(uint160(params.relayer))), "event's relayer");
        VM.assertEq(logs[0].data, abi.encode(expected, prompt), "event's data");
    }

    /// Wei and credit make up the escrow together; what is over is credited.
    function testFuzz_requestInference_takesWeiThenCredit(uint80 maxReward, uint96 value, uint96 credit) external {
        RequestParams memory params = _params(1);
        (params.maxReward, params.gasBudget, params.priorityFee) = (maxReward, 0, 0);
        _deposit(requester, credit);
        VM.deal(requester, value);
        bool isShort = uint256(value) + credit < maxReward;
        if (isShort) {
            VM.expectRevert(
                abi.encodeWithSelector(IInferenceMarket.EscrowShort.selector, maxReward, uint256(value) + credit)
            );
        }
        VM.prank(requester);
        market.requestInference{value: value}(params, "");
        uint256 sent = isShort ? 0 : uint256(value);
        VM.assertEq(_credit(requester), credit + sent - (isShort ? 0 : uint256(maxReward)), "credit");
        VM.assertEq(address(market).balance, credit + sent, "balance");
    }

    function testFuzz_requestInferenceBatch_takesEach(uint8 count, uint80 maxReward, uint96 credit) external {
        count = uint8(_bound(count, 1, 20));
        RequestParams[] memory params = new RequestParams[](count);
        uint256 escrow = 0;
        for (uint256 i = 0; i < count; ++i) {
            params[i] = _params(uint64(i));
            params[i].maxReward = uint80(uint256(maxReward) * (i + 1) / count);
            escrow += market.escrowOf(params[i]);
        }
        _deposit(requester, credit);
        VM.deal(requester, escrow);
        VM.prank(requester);
        bytes32[] memory ids = market.requestInferenceBatch{value: escrow}(params, new bytes[](count));
        for (uint256 i = 0; i < count; ++i) {
            VM.assertEq(ids[i], _idOf(_packed(params[i], requester)), "id");
            _assertStatus(_packed(params[i], requester), Status.PENDING);
        }
        VM.assertEq(_credit(requester), credit, "nothing is taken from credit");
        VM.assertEq(address(market).balance, escrow + credit, "balance");
    }

    /// The escrow of a batch comes from credit as well.
    function testFuzz_requestInferenceBatch_takesWeiThenCredit(uint80 a, uint80 b, uint96 value) external {
        RequestParams[] memory params = new RequestParams[](2);
        (params[0], params[1]) = (_params(1), _params(2));
        (params[0].maxReward, params[1].maxReward) = (a, b);
        uint256 escrow = market.escrowOf(params[0]) + market.escrowOf(params[1]);
        value = uint96(_bound(value, 0, 2 * escrow));
        if (value < escrow) _deposit(requester, escrow - value);
        VM.deal(requester, value);
        VM.prank(requester);
        market.requestInferenceBatch{value: value}(params, new bytes[](2));
        VM.assertEq(_credit(requester), value < escrow ? 0 : value - escrow, "credit");
    }

    /* REFUSED */

    function test_requestInferenceBatch_refusesAnEmptyOneAndOtherLengths() external {
        VM.expectRevert(abi.encodeWithSelector(IInferenceMarket.EmptyBatch.selector));
        market.requestInferenceBatch(new RequestParams[](0), new bytes[](0));
        RequestParams[] memory params = new RequestParams[](1);
        params[0] = _params(1);
        VM.expectRevert(abi.encodeWithSelector(IInferenceMarket.LengthMismatch.selector, 1, 2));
        market.requestInferenceBatch(params, new bytes[](2));
    }

    /// One bad request refuses all.
    function testFuzz_requestInferenceBatch_isAllOrNothing(uint8 bad) external {
        RequestParams[] memory params = new RequestParams[](3);
        for (uint256 i = 0; i < 3; ++i) {
            params[i] = _params(uint64(i));
        }
        params[bad % 3].maxOutputTokens = 0;
        VM.deal(requester, 1 ether);
        VM.expectRevert(abi.encodeWithSelector(IInferenceMarket.InvalidTerms.selector));
        VM.prank(requester);
        market.requestInferenceBatch{value: 1 ether}(params, new bytes[](3));
    }

    /// I12: what was posted once is refused for ever, whatever became of it.
    function testFuzz_requestInference_refusesAResend(uint256[18] memory seed, uint8 fate) external {
        RequestParams memory params = _anyParams(seed, "");
        params.relayer = relayer;
        params.deadline = uint40(_now() + 600);
        Request memory request = _post(params, requester);
        if (fate % 3 == 1) {
            VM.warp(_now() + 600 + GRACE + 1);
            market.expire(_list(request));
            VM.warp(START);
        } else if (fate % 3 == 2) {
            bytes memory release = _sign(relayerKey, address(market), _hashRelease(_idOf(request), params.deadline));
            VM.prank(requester);
            market.cancelWithRelease(request, params.deadline, release);
        }
        VM.expectRevert(abi.encodeWithSelector(IInferenceMarket.RequestExists.selector, _idOf(request)));
        VM.prank(requester);
        market.requestInference(params, "");
    }

    function testFuzz_requestInference_refusesDeadlinesBeyondTheTimes(uint40 deadline) external {
        RequestParams memory params = _params(1);
        params.deadline = deadline;
        bool ok = deadline >= _now() + 10 && deadline <= _now() + 1 days;
        if (ok) return _accepts(params);
        _refuses(
            params,
            "",
            abi.encodeWithSelector(IInferenceMarket.DeadlineOutOfRange.selector, deadline, _now() + 10, _now() + 1 days)
        );
    }

    function test_requestInference_takesTheFirstAndTheLastDeadline() external {
        RequestParams memory params = _params(1);
        for (uint256 i = 0; i < 2; ++i) {
            params.deadline = uint40(_now() + (i == 0 ? 10 : 1 days));
            _accepts(params);
            params.deadline = uint40(i == 0 ? _now() + 9 : _now() + 1 days + 1);
            _refuses(
                params,
                "",
                abi.encodeWithSelector(
                    IInferenceMarket.DeadlineOutOfRange.selector, params.deadline, _now() + 10, _now() + 1 days
                )
            );
        }
    }

    function test_requestInference_refusesNoPromptAndNoOutput() external {
        RequestParams memory params = _params(1);
        params.promptBytes = 0;
        _refuses(params, "", abi.encodeWithSelector(IInferenceMarket.InvalidTerms.selector));
        params = _params(1);
        params.maxOutputTokens = 0;
        _refuses(params, "", abi.encodeWithSelector(IInferenceMarket.InvalidTerms.selector));
    }

    function testFuzz_requestInference_refusesOtherLanes(uint8 lane) external {
        RequestParams memory params = _params(1);
        params.lane = lane;
        if (lane <= 1) return _accepts(params);
        _refuses(params, "", abi.encodeWithSelector(IInferenceMarket.InvalidTerms.selector));
    }

    function testFuzz_requestInference_boundsCallbackGas(uint24 callbackGas) external {
        RequestParams memory params = _callbackParams(1, callbackGas);
        if (callbackGas <= 2_000_000) return _accepts(params);
        _refuses(
            params, "", abi.encodeWithSelector(IInferenceMarket.CallbackGasTooHigh.selector, callbackGas, 2_000_000)
        );
    }

    function testFuzz_requestInference_takesQuorumsOfSixteenAtMost(uint8 mode, uint8 k, uint8 n) external {
        RequestParams memory params = _params(1);
        (params.mode, params.k, params.n) = (Mode(mode % 2), k % 20, n % 20);
        bool isQuorum = params.mode == Mode.QUORUM;
        bool ok = isQuorum ? params.k >= 2 && params.k <= params.n && params.n <= 16 : params.k == 0 && params.n == 0;
        if (ok) return _accepts(params);
        _refuses(params, "", abi.encodeWithSelector(IInferenceMarket.InvalidQuorum.selector, params.k, params.n));
    }

    function test_requestInference_refusesTheReservedMode() external {
        RequestParams memory params = _params(1);
        params.mode = Mode.OPTIMISTIC;
        _refuses(params, "", abi.encodeWithSelector(IInferenceMarket.UnsupportedMode.selector, Mode.OPTIMISTIC));
    }

    function testFuzz_requestInference_namesAContractAsVerifierInItsModeOnly(uint8 mode, address named) external {
        RequestParams memory params = _params(1);
        params.mode = mode % 2 == 0 ? Mode.SIGNATURE : Mode.VERIFIER;
        params.verifier = mode % 3 == 0 ? named : mode % 3 == 1 ? address(verifier) : address(0);
        bool ok = params.mode == Mode.VERIFIER ? params.verifier.code.length != 0 : params.verifier == address(0);
        if (ok) return _accepts(params);
        _refuses(params, "", abi.encodeWithSelector(IInferenceMarket.InvalidVerifier.selector, params.verifier));
    }

    function testFuzz_requestInference_checksAPromptThatItIsGiven(bytes memory prompt, bytes32 hash, uint32 size)
        external
    {
        VM.assume(prompt.length != 0 && size != 0);
        RequestParams memory params = _params(1);
        (params.promptHash, params.promptBytes) = (hash, uint32(prompt.length));
        bytes memory refusal = abi.encodeWithSelector(IInferenceMarket.PromptMismatch.selector, hash, prompt.length);
        if (hash != keccak256(prompt)) _refuses(params, prompt, refusal);
        (params.promptHash, params.promptBytes) = (keccak256(prompt), size);
        if (size == prompt.length) return;
        refusal = abi.encodeWithSelector(IInferenceMarket.PromptMismatch.selector, params.promptHash, prompt.length);
        _refuses(params, prompt, refusal);
    }

    function test_requestInference_takesEightKiBOfPromptAndNoByteMore() external {
        for (uint256 size = 8192; size <= 8193; ++size) {
            bytes memory prompt = new bytes(size);
            RequestParams memory params = _params(1);
            (params.promptHash, params.promptBytes) = (keccak256(prompt), uint32(size));
            if (size == 8193) {
                _refuses(params, prompt, abi.encodeWithSelector(IInferenceMarket.PromptTooLong.selector, 8193, 8192));
            } else {
                uint256 escrow = market.escrowOf(params);
                VM.deal(address(this), escrow);
                market.requestInference{value: escrow}(params, prompt);
            }
        }
    }

    /// No bit beyond a field's width gets into the words of a request.
    function testFuzz_requestInference_refusesBitsBeyondAField(uint8 field, uint8 bit) external {
        uint16[18] memory width = [160, 256, 256, 64, 40, 32, 24, 24, 8, 1, 1, 2, 8, 8, 160, 80, 80, 80];
        field %= 18;
        VM.assume(width[field] < 256);
        RequestParams memory params = _params(1);
        bytes memory data = abi.encodeCall(IInferenceMarket.requestInference, (params, ""));
        uint256 mask = uint256(1) << _bound(bit, width[field], 255);
        assembly ("memory-safe") {
            let at := add(add(data, 0x24), mul(field, 0x20))
            mstore(at, or(mload(at), mask))
        }
        VM.deal(address(this), 1 ether);
        (bool ok, bytes memory answer) = address(market).call{value: 1 ether}(data);
        VM.assertTrue(!ok, "refused");
        bool isAddress = width[field] == 160;
        VM.assertEq(
            answer, isAddress ? bytes("") : abi.encodeWithSelector(IInferenceMarket.InvalidTerms.selector), "why"
        );
    }

    function testFuzz_requestInference_stopsWhilePaused(uint40 later) external {
        VM.prank(marketOwner);
        market.setRequestsPaused(true);
        VM.warp(_now() + later % 8 days);
        if (_now() >= START + 7 days) return _accepts(_params(1));
        bytes memory paused = abi.encodeWithSelector(IInferenceMarket.RequestsPaused.selector);
        _refuses(_params(1), "", paused);
        RequestParams[] memory params = new RequestParams[](1);
        VM.expectRevert(paused);
        market.requestInferenceBatch(params, new bytes[](1));
    }

    /* HELPERS */

    function _accepts(RequestParams memory params) private {
        Request memory request = _post(params, requester);
        _assertStatus(request, Status.PENDING);
    }

    function _refuses(RequestParams memory params, bytes memory prompt, bytes memory refusal) private {
        uint256 escrow = market.escrowOf(params);
        VM.deal(requester, escrow);
        VM.expectRevert(refusal);
        VM.prank(requester);
        market.requestInference{value: escrow}(params, prompt);
    }
}
