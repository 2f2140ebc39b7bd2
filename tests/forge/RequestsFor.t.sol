// SPDX-License-Identifier: MIT
pragma solidity ^0.8.30;

import {Request, RequestParams, Status} from "../../contracts/Types.sol";
import {IInferenceMarket} from "../../contracts/interfaces/IInferenceMarket.sol";
import {Base} from "./Base.sol";
import {Puppet, newPuppet} from "./Puppet.sol";
import {VM, Vm} from "./Vm.sol";

/// requestInferenceFor.
contract RequestsForTest is Base {
    bytes4 private constant MAGIC = 0x1626ba7e;

    uint256 private requesterKey = uint256(keccak256("requester"));
    address private requester = VM.addr(requesterKey);
    address private sender = address(0x5E4D);

    function setUp() external {
        _deploy(0);
    }

    /// Whoever brings it in: escrow and fee leave the requester's credit, the fee is the relayer's, nothing is lost.
    function testFuzz_requestInferenceFor_takesEscrowAndFeeFromCredit(
        uint256[18] memory seed,
        bytes memory prompt,
        uint96 fee,
        uint40 validUntil,
        address by
    ) external {
        RequestParams memory params = _anyParams(seed, prompt);
        if (params.relayer == address(0) || params.relayer == requester) params.relayer = relayer;
        validUntil = uint40(_bound(validUntil, _now(), type(uint40).max));
        uint256 total = market.escrowOf(params) + fee;
        _deposit(requester, total + 7);
        bytes memory signature = _signFor(params, fee, validUntil);
        VM.recordLogs();
        VM.prank(by);
        bytes32 requestId = market.requestInferenceFor(params, prompt, requester, fee, validUntil, signature);

        _assertFeeLogged(VM.getRecordedLogs(), requestId, params.relayer, fee);
        VM.assertEq(requestId, _idOf(_packed(params, requester)), "I12: the same id as when posted by itself");
        _assertStatus(_packed(params, requester), Status.PENDING);
        VM.assertEq(_credit(requester), 7, "the requester's credit");
        VM.assertEq(_credit(params.relayer), fee, "the relayer's fee");
        VM.assertEq(address(market).balance, total + 7, "no wei moved");
    }

    function _assertFeeLogged(Vm.Log[] memory logs, bytes32 requestId, address to, uint96 fee) private pure {
        uint256 found = 0;
        for (uint256 i = 0; i < logs.length; ++i) {
            if (logs[i].topics[0] != IInferenceMarket.RelayerFeePaid.selector) continue;
            ++found;
            VM.assertEq(logs[i].topics[1], requestId, "id");
            VM.assertEq(logs[i].topics[2], bytes32(uint256(uint160(to))), "relayer");
            VM.assertEq(logs[i].data, abi.encode(fee), "fee");
        }
        VM.assertEq(found, fee == 0 ? 0 : 1, "logged");
    }

    /// The request exists for ever, so its signature is worth nothing a second time, also after the request ended.
    function testFuzz_requestInferenceFor_isNoUseTwice(bool ended) external {
        RequestParams memory params = _params(1);
        _deposit(requester, 1 ether);
        bytes memory signature = _signFor(params, 5, type(uint40).max);
        market.requestInferenceFor(params, "", requester, 5, type(uint40).max, signature);
        Request memory request = _packed(params, requester);
        if (ended) {
            VM.warp(params.deadline + GRACE + 1);
            market.expire(_list(request));
            VM.warp(START);
        }
        uint256 credit = _credit(requester);
        VM.expectRevert(abi.encodeWithSelector(IInferenceMarket.RequestExists.selector, _idOf(request)));
        market.requestInferenceFor(params, "", requester, 5, type(uint40).max, signature);
        VM.assertEq(_credit(requester), credit, "credit");
    }

    function testFuzz_requestInferenceFor_isOfNoUseWithAnyFieldChanged(uint8 field, uint8 bit) external {
        RequestParams memory params = _params(1);
        (params.priorityFee, params.gasBudget) = (0, 0);
        _deposit(requester, type(uint96).max);
        bytes memory signature = _signFor(params, 0, type(uint40).max);
        // One of the words of the parameters, changed within its width so that only the signature can tell.
        uint8[7] memory fields = [1, 2, 3, 5, 6, 15, 16];
        uint8[7] memory width = [255, 255, 63, 31, 23, 79, 79];
        uint256 which = field % 7;
        uint256 mask = uint256(1) << (bit % width[which]);
        uint256 offset = uint256(fields[which]) * 32;
        assembly ("memory-safe") {
            let at := add(params, offset)
            mstore(at, xor(mload(at), mask))
        }
        if (params.promptBytes == 0 || params.maxOutputTokens == 0) return;
        VM.expectRevert(abi.encodeWithSelector(IInferenceMarket.InvalidSignature.selector, requester));
        market.requestInferenceFor(params, "", requester, 0, type(uint40).max, signature);
    }

    function testFuzz_requestInferenceFor_isOfNoUseForAnotherFeeTimeOrRequester(uint8 what, uint96 fee) external {
        RequestParams memory params = _params(1);
        _deposit(requester, 1 ether);
        bytes memory signature = _signFor(params, fee, uint40(START + 100));
        address by = what % 3 == 0 ? address(0xBAD) : requester;
        uint40 until = what % 3 == 1 ? uint40(START + 101) : uint40(START + 100);
        if (what % 3 == 2) fee ^= 1;
        VM.expectRevert(abi.encodeWithSelector(IInferenceMarket.InvalidSignature.selector, by));
        market.requestInferenceFor(params, "", by, fee, until, signature);
    }

    function testFuzz_requestInferenceFor_endsAtItsTime(uint40 validUntil) external {
        validUntil = uint40(_bound(validUntil, 0, START + 1 days));
        RequestParams memory params = _params(1);
        _deposit(requester, 1 ether);
        bytes memory signature = _signFor(params, 0, validUntil);
        bool isLate = validUntil < START;
        if (isLate) {
            VM.expectRevert(abi.encodeWithSelector(IInferenceMarket.SignatureExpired.selector, validUntil, START));
        }
        market.requestInferenceFor(params, "", requester, 0, validUntil, signature);
        _assertStatus(_packed(params, requester), isLate ? Status.NONE : Status.PENDING);
    }

    function testFuzz_requestInferenceFor_refusesWhatCreditDoesNotCover(uint80 maxReward, uint96 fee, uint256 credit)
        external
    {
        RequestParams memory params = _params(1);
        params.maxReward = maxReward;
        uint256 needed = market.escrowOf(params) + fee;
        credit = _bound(credit, 0, needed - 1);
        _deposit(requester, credit);
        bytes memory signature = _signFor(params, fee, type(uint40).max);
        VM.expectRevert(abi.encodeWithSelector(IInferenceMarket.EscrowShort.selector, needed, credit));
        market.requestInferenceFor(params, "", requester, fee, type(uint40).max, signature);
    }

    function test_requestInferenceFor_refusesAFeeThatIsNobodys() external {
        RequestParams memory params = _params(1);
        params.relayer = address(0);
        _deposit(requester, 1 ether);
        bytes memory signature = _signFor(params, 1, type(uint40).max);
        VM.expectRevert(abi.encodeWithSelector(IInferenceMarket.InvalidTerms.selector));
        market.requestInferenceFor(params, "", requester, 1, type(uint40).max, signature);
        signature = _signFor(params, 0, type(uint40).max);
        market.requestInferenceFor(params, "", requester, 0, type(uint40).max, signature);
        _assertStatus(_packed(params, requester), Status.PENDING);
    }

    function test_requestInferenceFor_stopsWhilePaused() external {
        VM.prank(marketOwner);
        market.setRequestsPaused(true);
        bytes memory signature = _signFor(_params(1), 0, type(uint40).max);
        VM.expectRevert(abi.encodeWithSelector(IInferenceMarket.RequestsPaused.selector));
        market.requestInferenceFor(_params(1), "", requester, 0, type(uint40).max, signature);
    }

    /// Replay: the same words and key on another chain, or for another market.
    function testFuzz_requestInferenceFor_isOfThisChainAndMarketOnly(uint64 chain, address other) external {
        VM.assume(chain != block.chainid && chain != 0 && other != address(market));
        RequestParams memory params = _params(1);
        _deposit(requester, 1 ether);
        bytes memory here = _signFor(params, 0, type(uint40).max);
        bytes32 structHash = _hashRequestFor(params, requester, 0, type(uint40).max);
        bytes memory elsewhere = _sign(requesterKey, other, structHash);
        VM.expectRevert(abi.encodeWithSelector(IInferenceMarket.InvalidSignature.selector, requester));
        market.requestInferenceFor(params, "", requester, 0, type(uint40).max, elsewhere);
        VM.chainId(chain);
        VM.expectRevert(abi.encodeWithSelector(IInferenceMarket.InvalidSignature.selector, requester));
        market.requestInferenceFor(params, "", requester, 0, type(uint40).max, here);
    }

    /* WALLETS */

    /// ERC-1271: the wallet is asked when the account has no key that signed.
    function testFuzz_requestInferenceFor_asksAWallet(bytes memory signature) external {
        Puppet wallet = _wallet();
        wallet.orderEnding(Puppet.Ending.ANSWER, abi.encode(MAGIC));
        market.requestInferenceFor(_params(1), "", address(wallet), 0, type(uint40).max, signature);
        _assertStatus(_packed(_params(1), address(wallet)), Status.PENDING);
    }

    /// What a wallet answers otherwise is a no: another word, a short one, a revert, burnt gas, a megabyte.
    function testFuzz_requestInferenceFor_takesNothingElseForAYes(uint8 how, bytes32 word, uint8 size) external {
        VM.assume(word != bytes32(MAGIC));
        Puppet wallet = _wallet();
        if (how % 7 == 0) wallet.orderEnding(Puppet.Ending.ANSWER, abi.encode(word));
        else if (how % 7 == 1) wallet.orderEnding(Puppet.Ending.ANSWER, _cut(abi.encode(MAGIC), size % 32));
        else wallet.orderEnding(Puppet.Ending(how % 7 - 1), abi.encode(MAGIC));
        if (how % 7 == 2) wallet.orderEnding(Puppet.Ending.REVERT, abi.encode(MAGIC));
        bytes memory signature = _signFor(_params(1), 0, type(uint40).max);
        VM.expectRevert(abi.encodeWithSelector(IInferenceMarket.InvalidSignature.selector, address(wallet)));
        market.requestInferenceFor(_params(1), "", address(wallet), 0, type(uint40).max, signature);
    }

    /// A bomb or a loop costs at most the wallet's gas, whatever the sender gave.
    function test_requestInferenceFor_hostileWalletBurnsItsOwnGasOnly() external {
        for (uint256 i = 2; i < 6; ++i) {
            Puppet wallet = _wallet();
            wallet.orderEnding(Puppet.Ending(i), "");
            uint256 before = gasleft();
            try market.requestInferenceFor{gas: 20_000_000}(_params(1), "", address(wallet), 0, type(uint40).max, "") {
                assert(false);
            } catch {}
            VM.assertLe(before - gasleft(), 600_000, "gas used");
        }
    }

    /// An account with code and a key (EIP-7702) signs with its key; its code is not asked.
    function test_requestInferenceFor_takesTheKeyOfAnAccountWithCode() external {
        Puppet template = newPuppet();
        template.orderEnding(Puppet.Ending.REVERT, "");
        VM.etch(requester, address(template).code);
        Puppet(payable(requester)).orderEnding(Puppet.Ending.REVERT, "");
        _deposit(requester, 1 ether);
        bytes memory signature = _signFor(_params(1), 0, type(uint40).max);
        VM.prank(sender);
        market.requestInferenceFor(_params(1), "", requester, 0, type(uint40).max, signature);
        _assertStatus(_packed(_params(1), requester), Status.PENDING);
    }

    /* HELPERS */

    function _signFor(RequestParams memory params, uint96 fee, uint40 until) private view returns (bytes memory) {
        return _sign(requesterKey, address(market), _hashRequestFor(params, requester, fee, until));
    }

    function _wallet() private returns (Puppet wallet) {
        wallet = newPuppet();
        wallet.orderReadOnly(true);
        _deposit(address(wallet), 1 ether);
    }

    function _cut(bytes memory data, uint256 size) private pure returns (bytes memory) {
        assembly ("memory-safe") {
            mstore(data, size)
        }
        return data;
    }
}
