// SPDX-License-Identifier: MIT
pragma solidity ^0.8.30;

import {ItemStatus, Request, RequestParams, ResultItem, ResultSet, Status} from "../../contracts/Types.sol";
import {IInferenceMarket} from "../../contracts/interfaces/IInferenceMarket.sol";
import {IResultVerifier} from "../../contracts/interfaces/IResultVerifier.sol";
import {AttestedKeyVerifier} from "../../contracts/verifiers/AttestedKeyVerifier.sol";
import {Base} from "./Base.sol";
import {Puppet, newPuppet} from "./Puppet.sol";
import {VM, Vm} from "./Vm.sol";

/// Results in VERIFIER mode, and every function of AttestedKeyVerifier.
contract VerifiersTest is Base {
    uint256 private attestedKey = uint256(keccak256("attested key"));
    address private attested = VM.addr(attestedKey);
    address private requester = address(0x4E9);

    function setUp() external {
        _deploy(2);
    }

    /* PLUG-INS */

    /// Paid only on exactly the right word; a revert, a short word, a bomb, burnt gas: not paid, still pending.
    function testFuzz_verifier_paysOnTheRightAnswerOnly(uint8 how, bytes32 word, uint8 size) external {
        bytes32 magic = bytes32(IResultVerifier.verifyInference.selector);
        Puppet plugIn = newPuppet();
        plugIn.orderReadOnly(true);
        bytes memory answer = abi.encode(how % 8 == 7 || word == magic ? magic : word);
        plugIn.orderEnding(Puppet.Ending(how % 8 < 6 ? how % 8 : 0), answer);
        if (how % 8 == 6) plugIn.orderEnding(Puppet.Ending.ANSWER, _cut(abi.encode(magic), size % 32));
        bool isRight = (how % 8 == 7 || how % 8 == 0) && abi.decode(answer, (bytes32)) == magic;
        Request memory request = _post(_verifierParams(1, address(plugIn)), requester);
        ItemStatus status = _submit(_one(request, 1, _record(relayer), 0))[0];
        _assertStatus(status, isRight ? ItemStatus.OK : ItemStatus.VERIFICATION_FAILED);
        _assertStatus(request, isRight ? Status.FULFILLED : Status.PENDING);
    }

    /// Beside a hostile plug-in the others are settled, and the batch costs no more than the plug-in may use.
    function testFuzz_verifier_hostileOneCostsItsOwnGasOnly(uint8 how) external {
        Puppet plugIn = newPuppet();
        plugIn.orderReadOnly(true);
        plugIn.orderEnding(Puppet.Ending(2 + how % 4), "");
        ResultItem[] memory items = new ResultItem[](3);
        items[0] = _item(_post(_params(1), requester), 1);
        items[1] = _item(_post(_verifierParams(2, address(plugIn)), requester), 1);
        items[2] = _item(_post(_params(3), requester), 1);
        ResultSet memory set = _set(items, _record(relayer), _oneKey(0));
        ResultSet[] memory sets = new ResultSet[](1);
        sets[0] = set;
        VM.startPrank(relayer);
        uint256 before = gasleft();
        market.submitResults(relayer, sets);
        VM.stopPrank();
        VM.assertLe(before - gasleft(), 400_000 + 300_000, "gas");
        _assertStatus(items[0].request, Status.FULFILLED);
        _assertStatus(items[1].request, Status.PENDING);
        _assertStatus(items[2].request, Status.FULFILLED);
    }

    /// It is asked with the request, its id, the node, the hash and this item's proof, read-only; its gas is charged.
    function testFuzz_verifier_isAskedAboutTheItem(bytes memory proof, uint48 price, uint80 gasBudget) external {
        Notary plugIn = new Notary();
        RequestParams memory params = _verifierParams(1, address(plugIn));
        params.gasBudget = gasBudget;
        ResultItem[] memory items = new ResultItem[](2);
        items[0] = _item(_post(_verifierParams(2, address(plugIn)), requester), 1);
        items[1] = _item(_post(params, address(0x4EA)), 1);
        bytes32 expected = keccak256(
            abi.encodeCall(
                IResultVerifier.verifyInference,
                (items[1].request, _idOf(items[1].request), operators[1].node, HASH, proof)
            )
        );
        plugIn.expect(expected);
        ResultSet memory set = _set(items, _record(relayer), _oneKey(1));
        set.proofs = new bytes[](2);
        set.proofs[1] = proof;
        VM.txGasPrice(price);
        ItemStatus[] memory statuses = _submit(set);
        _assertStatus(statuses[0], ItemStatus.VERIFICATION_FAILED);
        _assertStatus(statuses[1], ItemStatus.OK);
        uint256 capped = price < 2 gwei ? price : 2 gwei;
        uint256 charge = market.gasChargeOf(1, 0, 2);
        uint256 least = charge < gasBudget ? charge : gasBudget;
        uint256 most = charge + 60_000 * capped;
        if (most > gasBudget) most = gasBudget;
        VM.assertGe(_credit(relayer), 2e13 + least + (gasBudget - least) / 10, "charged at least");
        VM.assertLe(_credit(relayer), 2e13 + most + (gasBudget - most) / 10 + 1, "charged at most");
        uint256 escrow = 1e15 + uint256(gasBudget) + 1e14;
        VM.assertEq(_credit(relayer) + _credit(operators[1].payee) + _credit(address(0x4EA)), escrow, "I3");
    }

    /// The bytes of an answer are charged beside the gas of its verifier.
    function testFuzz_verifier_isChargedBesideTheBytes(uint8 size) external {
        bytes memory answer = new bytes(_bound(size, 1, 255));
        uint256[2] memory charged;
        RequestParams memory params = _verifierParams(1, address(verifier));
        params.gasBudget = 1 ether;
        VM.prank(marketOwner);
        verifier.attest(attested, MODEL, uint40(START + 1200));
        VM.txGasPrice(1 gwei);
        uint256 state = VM.snapshotState();
        for (uint256 i = 0; i < 2; ++i) {
            params.inlineResult = i == 1;
            Request memory request = _post(params, requester);
            ResultItem[] memory items = new ResultItem[](1);
            items[0] = ResultItem(request, 1, keccak256(answer));
            ResultSet memory set = _set(items, _record(relayer), _oneKey(0));
            set.proofs = new bytes[](1);
            set.proofs[0] = _attest(attestedKey, request, operators[0].node, keccak256(answer));
            if (i == 1) {
                set.results = new bytes[](1);
                set.results[0] = answer;
            }
            _assertStatus(_submit(set)[0], ItemStatus.OK);
            // A tenth of what is not charged is the relayer's, too.
            charged[i] = (_credit(relayer) - 2e13 - 0.1 ether) * 10 / 9;
            if (i == 0) VM.assertTrue(VM.revertToState(state), "back");
        }
        uint256 bytes_ = 40 * answer.length * 1 gwei;
        VM.assertGe(charged[1] + 60 gwei, charged[0] + bytes_, "the bytes");
        VM.assertLe(charged[1], charged[0] + bytes_ + 60 gwei, "and no more");
    }

    /// Gas griefing: the relayer cannot have a good proof fail by sending little gas; the whole call reverts.
    function testFuzz_verifier_neverFailsForWantOfGas(uint24 gas_) external {
        Notary plugIn = new Notary();
        Request memory request = _post(_verifierParams(1, address(plugIn)), requester);
        bytes memory asked =
            abi.encodeCall(IResultVerifier.verifyInference, (request, _idOf(request), operators[0].node, HASH, ""));
        plugIn.expect(keccak256(asked));
        plugIn.setHunger(380_000);
        ResultSet[] memory sets = new ResultSet[](1);
        sets[0] = _one(request, 1, _record(relayer), 0);
        bytes memory data = abi.encodeCall(IInferenceMarket.submitResults, (relayer, sets));
        uint256 gas = _bound(gas_, 100_000, 900_000);
        VM.prank(relayer);
        (bool ok, bytes memory why) = address(market).call{gas: gas}(data);
        _assertStatus(request, ok ? Status.FULFILLED : Status.PENDING);
        if (ok || why.length == 0) return;
        VM.assertEq(bytes32(bytes4(why)), bytes32(IInferenceMarket.InsufficientGas.selector), "why");
    }

    /* THE ATTESTED KEY */

    /// A proof holds for its request, node and hash, of the attested model, until its time.
    function testFuzz_attestedKey_vouchesForOneResult(uint8 what, uint40 validUntil, uint40 later) external {
        validUntil = uint40(_bound(validUntil, START + 1, START + 1200));
        VM.prank(marketOwner);
        verifier.attest(attested, what % 8 == 0 ? keccak256("another") : MODEL, validUntil);
        Request memory request = _post(_verifierParams(1, address(verifier)), requester);
        Request memory other = _post(_verifierParams(2, address(verifier)), requester);
        bytes memory proof = _attest(attestedKey, request, operators[0].node, HASH);
        if (what % 8 == 1) proof = _attest(attestedKey, other, operators[0].node, HASH);
        if (what % 8 == 2) proof = _attest(attestedKey, request, operators[1].node, HASH);
        if (what % 8 == 3) proof = _attest(attestedKey, request, operators[0].node, keccak256("other"));
        if (what % 8 == 4) proof = _attest(operators[0].key, request, operators[0].node, HASH);
        if (what % 8 == 5) proof = "";
        if (what % 8 == 6) {
            proof = _sign(attestedKey, address(verifier), _hashAttestation(_idOf(request), operators[0].node, HASH)); // the market's domain name
        }
        uint64 round = _record(relayer);
        VM.warp(START + later % 900);
        ResultSet memory set = _one(request, 1, round, 0);
        set.proofs = new bytes[](1);
        set.proofs[0] = proof;
        bool ok = what % 8 == 7 && _now() <= validUntil;
        _assertStatus(_submit(set)[0], ok ? ItemStatus.OK : ItemStatus.VERIFICATION_FAILED);
        VM.assertEq(
            bytes32(verifier.verifyInference(request, _idOf(request), operators[0].node, HASH, proof)),
            ok ? bytes32(IResultVerifier.verifyInference.selector) : bytes32(0),
            "the answer"
        );
    }

    function test_attestedKey_isValidToTheSecond() external {
        VM.prank(marketOwner);
        verifier.attest(attested, MODEL, uint40(START + 1));
        Request memory request = _packed(_verifierParams(1, address(verifier)), requester);
        bytes memory proof = _attest(attestedKey, request, operators[0].node, HASH);
        for (uint256 i = 0; i < 3; ++i) {
            VM.warp(START + i);
            bytes4 magic = verifier.verifyInference(request, _idOf(request), operators[0].node, HASH, proof);
            VM.assertTrue((magic != 0) == (i < 2), "valid until then");
        }
    }

    function testFuzz_attest_isTheRegistrarsAndForAKeyAndAFuture(address by, address key, bytes32 modelId, uint40 until)
        external
    {
        VM.recordLogs();
        bytes memory refusal;
        if (by != marketOwner) refusal = abi.encodeWithSignature("OwnableUnauthorizedAccount(address)", by);
        else if (key == address(0)) refusal = abi.encodeWithSelector(AttestedKeyVerifier.InvalidKey.selector, key);
        else if (until <= START) refusal = _expired(until);
        if (refusal.length != 0) VM.expectRevert(refusal);
        VM.prank(by);
        verifier.attest(key, modelId, until);
        _assertAttested(key, refusal.length == 0 ? modelId : bytes32(0), refusal.length == 0 ? until : 0);
    }

    function test_attest_refusesTheKeyOfZero() external {
        VM.expectRevert(abi.encodeWithSelector(AttestedKeyVerifier.InvalidKey.selector, address(0)));
        VM.prank(marketOwner);
        verifier.attest(address(0), MODEL, uint40(START + 1));
    }

    function testFuzz_attest_changesForWhatAndHowLong(bytes32[2] memory models, uint40[2] memory until) external {
        for (uint256 i = 0; i < 2; ++i) {
            until[i] = uint40(_bound(until[i], 0, START + 100));
            bool isPast = until[i] <= START;
            if (isPast) VM.expectRevert(_expired(until[i]));
            VM.recordLogs();
            VM.prank(marketOwner);
            verifier.attest(attested, models[i], until[i]);
            if (isPast) return;
            Vm.Log[] memory logs = VM.getRecordedLogs();
            VM.assertEq(logs[0].topics[0], AttestedKeyVerifier.KeyAttested.selector, "event");
            VM.assertEq(logs[0].topics[1], bytes32(uint256(uint160(attested))), "key");
            VM.assertEq(logs[0].topics[2], models[i], "model");
            VM.assertEq(logs[0].data, abi.encode(until[i]), "time");
            _assertAttested(attested, models[i], until[i]);
        }
    }

    /// At once, by the registrar only, and only what was vouched for.
    function testFuzz_revoke_endsItAtOnce(address by) external {
        VM.assume(by != marketOwner);
        VM.expectRevert(abi.encodeWithSelector(AttestedKeyVerifier.NotAttested.selector, attested));
        VM.prank(marketOwner);
        verifier.revoke(attested);
        VM.prank(marketOwner);
        verifier.attest(attested, MODEL, type(uint40).max);
        VM.expectRevert(abi.encodeWithSignature("OwnableUnauthorizedAccount(address)", by));
        VM.prank(by);
        verifier.revoke(attested);
        VM.recordLogs();
        VM.prank(marketOwner);
        verifier.revoke(attested);
        Vm.Log[] memory logs = VM.getRecordedLogs();
        VM.assertEq(logs[0].topics[0], AttestedKeyVerifier.KeyRevoked.selector, "event");
        VM.assertEq(logs[0].topics[1], bytes32(uint256(uint160(attested))), "key");
        _assertAttested(attested, 0, 0);
        Request memory request = _post(_verifierParams(1, address(verifier)), requester);
        bytes memory proof = _attest(attestedKey, request, operators[0].node, HASH);
        VM.assertTrue(verifier.verifyInference(request, _idOf(request), operators[0].node, HASH, proof) == 0, "no more");
    }

    /// Nobody's signature is no key's: a key of zero cannot be vouched for, nor a digest without signer be taken.
    function testFuzz_verifyInference_refusesWhatNobodySigned(Request memory request, bytes memory proof)
        external
        view
    {
        VM.assume(proof.length != 65);
        VM.assertTrue(verifier.verifyInference(request, _idOf(request), operators[0].node, HASH, proof) == 0, "no");
    }

    function testFuzz_digestOf_isTheTypedDatas(bytes32 requestId, address node, bytes32 hash) external view {
        bytes32 expected =
            _digest("Headrace AttestedKeyVerifier", address(verifier), _hashAttestation(requestId, node, hash));
        VM.assertEq(verifier.digestOf(requestId, node, hash), expected, "digest");
    }

    function test_supportsInterface() external view {
        VM.assertTrue(verifier.supportsInterface(type(IResultVerifier).interfaceId), "verifier");
        VM.assertTrue(verifier.supportsInterface(0x01ffc9a7), "ERC-165");
        VM.assertTrue(!verifier.supportsInterface(0xffffffff), "invalid");
    }

    /* HELPERS */

    function _attest(uint256 key, Request memory request, address node, bytes32 hash)
        private
        view
        returns (bytes memory)
    {
        bytes32 structHash = _hashAttestation(_idOf(request), node, hash);
        return _signDigest(key, _digest("Headrace AttestedKeyVerifier", address(verifier), structHash));
    }

    function _expired(uint40 until) private pure returns (bytes memory) {
        return abi.encodeWithSelector(AttestedKeyVerifier.AlreadyExpired.selector, until, START);
    }

    function _assertAttested(address key, bytes32 modelId, uint40 until) private view {
        (bytes32 gotModel, uint40 gotUntil) = verifier.attestedOf(key);
        VM.assertEq(gotModel, modelId, "model");
        VM.assertEq(gotUntil, until, "until");
    }

    function _cut(bytes memory data, uint256 size) private pure returns (bytes memory) {
        assembly ("memory-safe") {
            mstore(data, size)
        }
        return data;
    }
}

/// Says yes to one question, after using some gas.
contract Notary {
    bytes32 private _expected;
    uint256 private _hunger;

    function expect(bytes32 expected) external {
        _expected = expected;
    }

    function setHunger(uint256 hunger) external {
        _hunger = hunger;
    }

    fallback() external {
        uint256 start = gasleft();
        uint256 hunger = _hunger;
        while (start - gasleft() < hunger) {}
        bytes4 magic = keccak256(msg.data) == _expected ? IResultVerifier.verifyInference.selector : bytes4(0);
        bytes memory answer = abi.encode(magic);
        assembly ("memory-safe") {
            return(add(answer, 0x20), mload(answer))
        }
    }
}
