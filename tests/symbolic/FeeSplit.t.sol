// SPDX-License-Identifier: MIT
pragma solidity ^0.8.30;

import {InferenceMarket} from "../../contracts/InferenceMarket.sol";
import {ResultItem} from "../../contracts/Types.sol";
import {IScheduleLog} from "../../contracts/interfaces/IScheduleLog.sol";
import {IStakeManager} from "../../contracts/interfaces/IStakeManager.sol";
import {MarketBase} from "../../contracts/market/MarketBase.sol";
import {VM} from "../forge/Vm.sol";

/// The market's own arithmetic, with all around it left to the caller.
contract FeeSplit is InferenceMarket {
    constructor()
        InferenceMarket(
            msg.sender,
            IStakeManager(address(new LongDelay())),
            IScheduleLog(address(0)),
            MarketBase.GasTerms(0, 0, 0, 0, 0),
            MarketBase.ProbationTerms(0, 0, 0)
        )
    {}

    /// What an item pays: all its nodes together, the relayer, the requester.
    function split(
        uint256 k,
        uint256 charge,
        uint256 gasPrice,
        uint256 extraGas,
        uint256 feeAdded,
        ResultItem calldata item
    ) external returns (uint256 nodes, uint256 relayer, uint256 refund) {
        SetContext memory ctx;
        ctx.nodes = new address[](k);
        (ctx.chargePerItem, ctx.gasPrice, ctx.requester) = (charge, gasPrice, item.request.requester);
        _pay(ctx, item, 0, feeAdded, extraGas, 0);
        unchecked {
            return (ctx.nodeCredit * k, ctx.relayerCredit, ctx.requesterCredit);
        }
    }
}

contract LongDelay {
    uint40 public constant UNBOND_DELAY = 3 days;
}

/// For Halmos (`make halmos`): whatever the amounts and prices, an escrow is split to the wei, each part within its bounds.
contract FeeSplitSymbolic {
    FeeSplit private market;

    function setUp() external {
        market = new FeeSplit();
    }

    /// I3, I4, I5 of a request that one node answers.
    function check_split(
        uint80 maxReward,
        uint80 gasBudget,
        uint80 priorityFee,
        uint96 added,
        uint96 reward,
        uint128 charge
    ) external {
        _check(1, maxReward, gasBudget, priorityFee, added, reward, charge);
    }

    function check_splitOfTwo(
        uint80 maxReward,
        uint80 gasBudget,
        uint80 priorityFee,
        uint96 added,
        uint96 reward,
        uint128 charge
    ) external {
        _check(2, maxReward, gasBudget, priorityFee, added, reward, charge);
    }

    function check_splitOfThree(
        uint80 maxReward,
        uint80 gasBudget,
        uint80 priorityFee,
        uint96 added,
        uint96 reward,
        uint128 charge
    ) external {
        _check(3, maxReward, gasBudget, priorityFee, added, reward, charge);
    }

    function _check(
        uint256 k,
        uint256 maxReward,
        uint256 gasBudget,
        uint256 priorityFee,
        uint256 added,
        uint96 reward,
        uint256 charge
    ) private {
        unchecked {
            // No product here can overflow; the checks of that would be divisions.
            if (k * reward > maxReward) return; // refused before it is paid
            uint256 fee = added + priorityFee; // in the order of the market, so that the solver sees one term
            uint256 share = _part(fee, 2000);
            _part(gasBudget - (charge < gasBudget ? charge : gasBudget), 1000);
            uint256 each = k == 1 ? fee - share : _quotient(fee - share, k);
            ResultItem memory item;
            item.request.amounts = maxReward | gasBudget << 80 | priorityFee << 160;
            item.reward = reward;
            (uint256 nodes, uint256 relayer, uint256 refund) = market.split(k, charge, 0, 0, added, item);
            uint256 escrow = maxReward + gasBudget + fee;
            assert(nodes == k * (reward + each));
            assert(relayer <= share + gasBudget);
            assert(relayer >= share);
            assert(nodes <= escrow && relayer <= escrow && refund <= escrow);
            assert(nodes + relayer + refund == escrow);
        }
    }

    /// Solvers take long to divide. All that they need to know of a quotient here is said instead.
    function _part(uint256 amount, uint256 bps) private pure returns (uint256 part) {
        unchecked {
            part = amount * bps / 10_000;
        }
        VM.assume(part <= amount);
    }

    function _quotient(uint256 dividend, uint256 divisor) private pure returns (uint256 quotient) {
        unchecked {
            quotient = dividend / divisor;
            VM.assume(quotient <= dividend && quotient * divisor <= dividend);
        }
    }
}
