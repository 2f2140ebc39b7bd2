// SPDX-License-Identifier: MIT
pragma solidity ^0.8.30;

import {Faults} from "../../contracts/Faults.sol";
import {InferenceMarket} from "../../contracts/InferenceMarket.sol";
import {ScheduleLog} from "../../contracts/ScheduleLog.sol";
import {StakeManager} from "../../contracts/StakeManager.sol";
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
} from "../../contracts/Types.sol";
import {IFaults} from "../../contracts/interfaces/IFaults.sol";
import {IInferenceMarket} from "../../contracts/interfaces/IInferenceMarket.sol";
import {IScheduleLog} from "../../contracts/interfaces/IScheduleLog.sol";
import {IStakeManager} from "../../contracts/interfaces/IStakeManager.sol";
import {MarketBase} from "../../contracts/market/MarketBase.sol";
import {AttestedKeyVerifier} from "../../contracts/verifiers/AttestedKeyVerifier.sol";
import {Rounds} from "./Rounds.sol";
import {Signing} from "./Signing.sol";
import {VM, Vm} from "./Vm.sol";

/// The whole deployment with two bonded relayers and some joined nodes, and what each of them signs.
abstract contract Base is Signing, Rounds {
    struct Operator {
        uint256 key;
        address node; // the key's address
        address owner;
        address payee;
    }

    uint256 internal constant START = 1_800_000_000;
    uint256 internal constant GRACE = 300;
    uint40 internal constant UNBOND_DELAY = 259_200;
    uint40 internal constant PRICE_NOTICE = 3600;
    uint256 internal constant STAKE = 1 ether;
    uint96 internal constant MISSED_WEI = 0.01 ether;
    uint96 internal constant EQUIVOCATION_WEI = 0.25 ether;
    uint96 internal constant RELAYER_WEI = 0.25 ether;
    bytes32 internal constant MODEL = keccak256("model");
    bytes32 internal constant HASH = keccak256("result");

    StakeManager internal stakes;
    ScheduleLog internal log;
    InferenceMarket internal market;
    Faults internal faults;
    AttestedKeyVerifier internal verifier;
    address internal marketOwner = address(0x0E4E);

    uint256 internal relayerKey = uint256(keccak256("relayer"));
    address internal relayer = VM.addr(relayerKey);
    uint256 internal rivalKey = uint256(keccak256("rival relayer"));
    address internal rival = VM.addr(rivalKey);
    Operator[] internal operators; // in ascending order of their nodes

    /* DEPLOYMENT */

    function _deploy(uint256 nodes) internal {
        _deploy(nodes, MarketBase.ProbationTerms({maxReward: type(uint256).max, settledCount: 0, duration: 0}));
    }

    function _deploy(uint256 nodes, MarketBase.ProbationTerms memory probation) internal {
        VM.warp(START);
        VM.fee(0);
        VM.txGasPrice(0);
        // The stake manager names Faults, which comes fourth.
        address faultsAddress = VM.computeCreateAddress(address(this), VM.getNonce(address(this)) + 3);
        stakes = new StakeManager(STAKE, STAKE, UNBOND_DELAY, PRICE_NOTICE, faultsAddress);
        log = new ScheduleLog(IStakeManager(address(stakes)));
        market = new InferenceMarket(
            marketOwner,
            IStakeManager(address(stakes)),
            IScheduleLog(address(log)),
            MarketBase.GasTerms({
                tipCap: 2 gwei, fixedGas: 130_500, itemGas: 13_800, nodeGas: 20_000, assignedGas: 87_500
            }),
            probation
        );
        faults = new Faults(
            IStakeManager(address(stakes)),
            IScheduleLog(address(log)),
            IInferenceMarket(address(market)),
            IFaults.Schedule({missed: MISSED_WEI, equivocation: EQUIVOCATION_WEI, relayer: RELAYER_WEI})
        );
        assert(address(faults) == faultsAddress);
        verifier = new AttestedKeyVerifier(marketOwner);
        _bond(relayer);
        _bond(rival);
        _join(nodes);
    }

    function _bond(address account) internal {
        VM.deal(account, STAKE);
        VM.prank(account);
        stakes.registerRelayer{value: STAKE}("");
    }

    function _join(uint256 nodes) private {
        for (uint256 i = 0; i < nodes; ++i) {
            uint256 key = uint256(keccak256(abi.encode("node", i)));
            operators.push(Operator(key, VM.addr(key), address(uint160(0xA000 + i)), address(uint160(0xB000 + i))));
            for (uint256 j = i; j > 0 && operators[j].node < operators[j - 1].node; --j) {
                Operator memory swapped = operators[j];
                operators[j] = operators[j - 1];
                operators[j - 1] = swapped;
            }
            _register(key, VM.addr(key), address(uint160(0xA000 + i)));
            VM.startPrank(address(uint160(0xA000 + i)));
            stakes.joinMarket(VM.addr(key), address(market));
            stakes.setPayee(VM.addr(key), address(market), address(uint160(0xB000 + i)));
            VM.stopPrank();
        }
    }

    function _register(uint256 key, address node, address owner) internal {
        bytes memory signature = _signRegistration(key, node, owner);
        VM.deal(owner, STAKE);
        VM.prank(owner);
        stakes.registerNode{value: STAKE}(node, "", signature);
    }

    function _signRegistration(uint256 key, address node, address owner) internal view returns (bytes memory) {
        return _sign(key, address(stakes), _hashRegisterNode(node, owner));
    }

    /* REQUESTS */

    /// A plain request to `relayer`.
    function _params(uint64 salt) internal view returns (RequestParams memory params) {
        params.relayer = relayer;
        params.modelId = MODEL;
        params.promptHash = keccak256("prompt");
        params.salt = salt;
        params.deadline = uint40(_now() + 600);
        params.promptBytes = 6;
        params.maxOutputTokens = 100;
        params.mode = Mode.SIGNATURE;
        (params.maxReward, params.gasBudget, params.priorityFee) = (1e15, 1e15, 1e14);
    }

    function _quorumParams(uint64 salt, uint8 k, uint8 n) internal view returns (RequestParams memory params) {
        params = _params(salt);
        (params.mode, params.k, params.n) = (Mode.QUORUM, k, n);
    }

    function _verifierParams(uint64 salt, address plugIn) internal view returns (RequestParams memory params) {
        params = _params(salt);
        (params.mode, params.verifier) = (Mode.VERIFIER, plugIn);
    }

    function _callbackParams(uint64 salt, uint24 callbackGas) internal view returns (RequestParams memory params) {
        params = _params(salt);
        params.callbackGas = callbackGas;
    }

    /// Whatever a market takes, from random words.
    function _anyParams(uint256[18] memory seed, bytes memory prompt) internal view returns (RequestParams memory p) {
        (p.relayer, p.modelId, p.promptHash) = (address(uint160(seed[0])), bytes32(seed[1]), bytes32(seed[2]));
        (p.salt, p.deadline) = (uint64(seed[3]), uint40(_now() + _bound(seed[4], 10, 1 days)));
        p.promptBytes = uint32(_bound(seed[5], 1, type(uint32).max));
        p.maxOutputTokens = uint24(_bound(seed[6], 1, type(uint24).max));
        p.callbackGas = uint24(seed[7] % 2_000_001);
        (p.lane, p.batchable, p.inlineResult) = (uint8(seed[8] % 2), seed[9] % 2 == 1, seed[10] % 2 == 1);
        p.mode = seed[11] % 3 == 0 ? Mode.SIGNATURE : seed[11] % 3 == 1 ? Mode.QUORUM : Mode.VERIFIER;
        if (p.mode == Mode.QUORUM) {
            p.n = uint8(_bound(seed[12], 2, 16));
            p.k = uint8(_bound(seed[13], 2, p.n));
        }
        if (p.mode == Mode.VERIFIER) p.verifier = address(verifier);
        (p.maxReward, p.gasBudget, p.priorityFee) = (uint80(seed[15]), uint80(seed[16]), uint80(seed[17]));
        if (prompt.length != 0) (p.promptHash, p.promptBytes) = (keccak256(prompt), uint32(prompt.length));
    }

    /// Written down a second time, from the layout in the documentation.
    function _packed(RequestParams memory p, address by) internal pure returns (Request memory request) {
        request = Request(by, p.relayer, p.modelId, p.promptHash, 0, 0, p.verifier);
        request.amounts = uint256(p.maxReward) | uint256(p.gasBudget) << 80 | uint256(p.priorityFee) << 160;
        request.terms = uint256(p.salt) | uint256(p.deadline) << 64 | uint256(p.promptBytes) << 104
            | uint256(p.maxOutputTokens) << 136 | uint256(p.callbackGas) << 160 | uint256(p.lane) << 184
            | uint256(p.mode) << 192 | uint256(p.k) << 200 | uint256(p.n) << 208 | (p.batchable ? uint256(1) << 216 : 0)
            | (p.inlineResult ? uint256(1) << 217 : 0);
    }

    /// Posts with exactly the escrow.
    function _post(RequestParams memory params, address requester) internal returns (Request memory request) {
        request = market.packRequest(params, requester);
        uint256 escrow = market.escrowOf(params);
        VM.deal(requester, requester.balance + escrow);
        VM.prank(requester);
        market.requestInference{value: escrow}(params, "");
    }

    function _idOf(Request memory request) internal view returns (bytes32) {
        return keccak256(abi.encode(block.chainid, address(market), request));
    }

    function _statusOf(Request memory request) internal view returns (Status) {
        bytes32[] memory ids = new bytes32[](1);
        ids[0] = _idOf(request);
        return market.statusOf(ids)[0];
    }

    function _escrowOf(Request memory request) internal pure returns (uint256) {
        return uint256(uint80(request.amounts)) + uint80(request.amounts >> 80) + uint80(request.amounts >> 160);
    }

    /* ROUNDS */

    /// Closes the relayer's next round, over nothing that could be proven.
    function _record(address account) internal returns (uint64) {
        RoundRecord memory record = _recordOf(account);
        VM.prank(account);
        log.recordRound(account, record, "");
        return record.round;
    }

    /// Closes the relayer's next round over these decisions, which must be in order.
    function _recordDecisions(address account, Decision[] memory decisions)
        internal
        returns (RoundRecord memory record)
    {
        record = _recordOf(account);
        record.decisionsRoot = _root(decisions);
        record.assigned = uint32(decisions.length);
        VM.prank(account);
        log.recordRound(account, record, "");
    }

    function _recordOf(address account) internal view returns (RoundRecord memory record) {
        record.round = log.nextRound(account);
        record.assigned = 1;
    }

    /* RESULTS */

    function _item(Request memory request, uint96 reward) internal pure returns (ResultItem memory) {
        return ResultItem({request: request, reward: reward, resultHash: HASH});
    }

    /// A set of one item by the operator.
    function _one(Request memory request, uint96 reward, uint64 round, uint256 operator)
        internal
        view
        returns (ResultSet memory)
    {
        ResultItem[] memory items = new ResultItem[](1);
        items[0] = _item(request, reward);
        return _set(items, round, _oneKey(operator));
    }

    /// A set for `relayer`, signed as a set by each key, or for a lone item as a Result. Keys as their addresses ascend.
    function _set(ResultItem[] memory items, uint64 round, uint256[] memory keys)
        internal
        view
        returns (ResultSet memory set)
    {
        set = _unsigned(items, round, keys);
        set.signatures = new bytes[](keys.length);
        bytes32[] memory results = _resultsOf(items, round);
        bytes32 signed = items.length == 1 ? results[0] : _hashResultSet(relayer, round, results);
        for (uint256 i = 0; i < keys.length; ++i) {
            set.signatures[i] = _sign(keys[i], address(market), signed);
        }
    }

    /// As `_set`, signed result by result.
    function _setSingly(ResultItem[] memory items, uint64 round, uint256[] memory keys)
        internal
        view
        returns (ResultSet memory set)
    {
        set = _unsigned(items, round, keys);
        set.signatures = new bytes[](keys.length * items.length);
        bytes32[] memory results = _resultsOf(items, round);
        for (uint256 i = 0; i < set.signatures.length; ++i) {
            set.signatures[i] = _sign(keys[i % keys.length], address(market), results[i / keys.length]);
        }
    }

    function _unsigned(ResultItem[] memory items, uint64 round, uint256[] memory keys)
        internal
        pure
        returns (ResultSet memory set)
    {
        set.round = round;
        set.items = items;
        set.nodes = new address[](keys.length);
        for (uint256 i = 0; i < keys.length; ++i) {
            set.nodes[i] = VM.addr(keys[i]);
        }
    }

    function _resultsOf(ResultItem[] memory items, uint64 round) internal view returns (bytes32[] memory results) {
        results = new bytes32[](items.length);
        for (uint256 i = 0; i < items.length; ++i) {
            results[i] = _hashResult(_idOf(items[i].request), items[i].resultHash, items[i].reward, relayer, round);
        }
    }

    function _keys(uint256 count) internal view returns (uint256[] memory keys) {
        keys = new uint256[](count);
        for (uint256 i = 0; i < count; ++i) {
            keys[i] = operators[i].key;
        }
    }

    function _oneKey(uint256 operator) internal view returns (uint256[] memory keys) {
        keys = new uint256[](1);
        keys[0] = operators[operator].key;
    }

    /// Sends a set by its relayer, and returns what became of each item.
    function _submit(ResultSet memory set) internal returns (ItemStatus[] memory) {
        ResultSet[] memory sets = new ResultSet[](1);
        sets[0] = set;
        VM.recordLogs();
        VM.prank(relayer);
        market.submitResults(relayer, sets);
        return _statusesIn(VM.getRecordedLogs());
    }

    /// Settles a request by operator 0 in a new round.
    function _settle(Request memory request, uint96 reward) internal returns (ResultRef memory ref) {
        uint64 round = _record(relayer);
        _assertStatus(_submit(_one(request, reward, round, 0))[0], ItemStatus.OK);
        return _refOf(round, _oneKey(0));
    }

    function _refOf(uint64 round, uint256[] memory keys) internal view returns (ResultRef memory ref) {
        ResultItem[] memory none;
        ref = ResultRef({
            resultHash: HASH,
            relayer: relayer,
            round: round,
            nodes: _unsigned(none, round, keys).nodes,
            settledAt: uint40(_now())
        });
    }

    /// One status for each item of all `BatchSettled` events.
    function _statusesIn(Vm.Log[] memory logs) internal pure returns (ItemStatus[] memory statuses) {
        bytes memory all;
        for (uint256 i = 0; i < logs.length; ++i) {
            if (logs[i].topics[0] != IInferenceMarket.BatchSettled.selector) continue;
            (, bytes memory some) = abi.decode(logs[i].data, (address[], bytes));
            all = bytes.concat(all, some);
        }
        statuses = new ItemStatus[](all.length);
        for (uint256 i = 0; i < all.length; ++i) {
            statuses[i] = ItemStatus(uint8(all[i]));
        }
    }

    /* ASSIGNMENTS */

    function _assignment(Request memory request, uint96 reward, uint64 round, uint256 operator)
        internal
        view
        returns (Assignment memory)
    {
        return Assignment({
            requestId: _idOf(request),
            relayer: relayer,
            node: operators[operator].node,
            round: round,
            reward: reward,
            deadline: uint40(request.terms >> 64)
        });
    }

    function _assigned(Request memory request, uint96 reward, uint256 operator)
        internal
        view
        returns (Decision memory decision)
    {
        (decision.requestId, decision.node, decision.reward) = (_idOf(request), operators[operator].node, reward);
    }

    /* MONEY */

    function _credit(address account) internal view returns (uint256 balance) {
        (balance,) = market.accountOf(account);
    }

    function _deposit(address account, uint256 amount) internal {
        if (amount == 0) return;
        VM.deal(address(this), amount);
        market.deposit{value: amount}(account);
    }

    /// Sends wei to who cannot refuse them: from a contract that destroys itself while it is made.
    function _force(address to, uint256 amount) internal {
        VM.deal(address(this), amount);
        bytes memory code = abi.encodePacked(hex"73", to, hex"ff");
        assembly ("memory-safe") {
            pop(create(amount, add(code, 0x20), mload(code)))
        }
    }

    function _list(Request memory request) internal pure returns (Request[] memory requests) {
        requests = new Request[](1);
        requests[0] = request;
    }

    /* ASSERTIONS */

    function _now() internal view returns (uint256) {
        // The compiler takes TIMESTAMP for a constant of the call; warps change it.
        return VM.getBlockTimestamp();
    }

    function _assertStatus(ItemStatus got, ItemStatus expected) internal pure {
        VM.assertEq(uint256(got), uint256(expected), "status of the item");
    }

    function _assertStatus(Request memory request, Status expected) internal view {
        VM.assertEq(uint256(_statusOf(request)), uint256(expected), "status of the request");
    }

    function _bound(uint256 value, uint256 least, uint256 most) internal pure returns (uint256) {
        uint256 size = most - least + 1;
        return size == 0 || (value >= least && value <= most) ? value : least + value % size;
    }
}
