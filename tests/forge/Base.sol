// SPDX-License-Identifier: MIT
pragma solidity ^0.8.30;

import {InferenceMarket} from "../../contracts/InferenceMarket.sol";
import {ScheduleLog} from "../../contracts/ScheduleLog.sol";
import {StakeManager} from "../../contracts/StakeManager.sol";
import {Mode, Request, RequestParams, ResultItem, ResultSet, RoundRecord} from "../../contracts/Types.sol";
import {IScheduleLog} from "../../contracts/interfaces/IScheduleLog.sol";
import {IStakeManager} from "../../contracts/interfaces/IStakeManager.sol";
import {MarketBase} from "../../contracts/market/MarketBase.sol";
import {MessageHashUtils} from "@openzeppelin/contracts/utils/cryptography/MessageHashUtils.sol";

/// The cheatcodes that these tests use.
interface Vm {
    function addr(uint256 key) external pure returns (address);
    function deal(address account, uint256 balance) external;
    function fee(uint256 baseFee) external;
    function prank(address sender) external;
    function sign(uint256 key, bytes32 digest) external pure returns (uint8 v, bytes32 r, bytes32 s);
    function txGasPrice(uint256 price) external;
    function warp(uint256 timestamp) external;
}

/// A market with a bonded relayer and a joined node, and what the node signs.
abstract contract Base {
    Vm internal constant VM = Vm(address(uint160(uint256(keccak256("hevm cheat code")))));
    uint256 internal constant NODE_KEY = 0xA11CE;
    uint256 internal constant FIXED_GAS = 90_000;
    uint256 internal constant ITEM_GAS = 16_000;
    uint256 internal constant NODE_GAS = 15_000;
    uint256 internal constant ASSIGNED_GAS = 100_000;
    uint256 internal constant TIP_CAP = 2 gwei;

    StakeManager internal stakes;
    ScheduleLog internal log;
    InferenceMarket internal market;
    address internal relayer = address(0xBE1A);
    address internal payee = address(0x9A7EE);
    address internal node = VM.addr(NODE_KEY);

    function _deploy() internal {
        VM.warp(1_800_000_000);
        stakes = new StakeManager(1 ether, 1 ether, 200_000, 3600, address(0));
        log = new ScheduleLog(IStakeManager(address(stakes)));
        market = new InferenceMarket(
            address(this),
            IStakeManager(address(stakes)),
            IScheduleLog(address(log)),
            MarketBase.GasTerms({
                tipCap: TIP_CAP, fixedGas: FIXED_GAS, itemGas: ITEM_GAS, nodeGas: NODE_GAS, assignedGas: ASSIGNED_GAS
            }),
            MarketBase.ProbationTerms({maxReward: 0, settledCount: 0, duration: 0})
        );
        VM.deal(relayer, 1 ether);
        VM.prank(relayer);
        stakes.registerRelayer{value: 1 ether}("");
        VM.deal(payee, 1 ether);
        bytes32 registration = keccak256(abi.encode(keccak256("RegisterNode(address key,address owner)"), node, payee));
        bytes memory signature = _sign(address(stakes), registration);
        VM.prank(payee);
        stakes.registerNode{value: 1 ether}(node, "", signature);
        VM.prank(payee);
        stakes.joinMarket(node, address(market));
    }

    function _params(uint64 salt, uint80 maxReward, uint80 gasBudget, uint80 priorityFee)
        internal
        view
        returns (RequestParams memory params)
    {
        params.relayer = relayer;
        params.modelId = keccak256("model");
        params.promptHash = keccak256("prompt");
        params.salt = salt;
        params.deadline = uint40(block.timestamp + 600);
        params.promptBytes = 6;
        params.maxOutputTokens = 100;
        params.mode = Mode.SIGNATURE;
        (params.maxReward, params.gasBudget, params.priorityFee) = (maxReward, gasBudget, priorityFee);
    }

    function _recordRound() internal returns (uint64 round) {
        round = log.nextRound(relayer);
        RoundRecord memory record;
        record.round = round;
        record.assigned = 1;
        VM.prank(relayer);
        log.recordRound(relayer, record, "");
    }

    /// A set of `items`, signed by the node as the protocol says: a lone item as a Result, several as a ResultSet.
    function _signedSet(ResultItem[] memory items, uint64 round) internal view returns (ResultSet[] memory sets) {
        bytes32[] memory results = new bytes32[](items.length);
        for (uint256 i = 0; i < items.length; ++i) {
            results[i] = keccak256(
                abi.encode(
                    keccak256(
                        "Result(bytes32 requestId,bytes32 resultHash,uint96 reward,address relayer,uint64 round)"
                    ),
                    market.requestIdOf(items[i].request),
                    items[i].resultHash,
                    items[i].reward,
                    relayer,
                    round
                )
            );
        }
        bytes32 signed = items.length == 1
            ? results[0]
            : keccak256(
                abi.encode(
                    keccak256("ResultSet(address relayer,uint64 round,bytes32[] results)"),
                    relayer,
                    round,
                    keccak256(abi.encodePacked(results))
                )
            );
        sets = new ResultSet[](1);
        sets[0].round = round;
        sets[0].nodes = new address[](1);
        sets[0].nodes[0] = node;
        sets[0].signatures = new bytes[](1);
        sets[0].signatures[0] = _sign(address(market), signed);
        sets[0].items = items;
    }

    function _sign(address verifyingContract, bytes32 structHash) private view returns (bytes memory) {
        bytes32 domain = keccak256(
            abi.encode(
                keccak256("EIP712Domain(string name,string version,uint256 chainId,address verifyingContract)"),
                keccak256("Headrace"),
                keccak256("1"),
                block.chainid,
                verifyingContract
            )
        );
        (uint8 v, bytes32 r, bytes32 s) = VM.sign(NODE_KEY, MessageHashUtils.toTypedDataHash(domain, structHash));
        return abi.encodePacked(r, s, v);
    }

    function _credit(address account) internal view returns (uint256 balance) {
        (balance,) = market.accountOf(account);
    }
}
