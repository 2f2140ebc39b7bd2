// SPDX-License-Identifier: MIT
pragma solidity ^0.8.30;

import {IStakeManager} from "../../../contracts/interfaces/IStakeManager.sol";
import {VM} from "../Vm.sol";
import {RelayerMoves} from "./RelayerMoves.sol";

/// What owners of nodes do: register, rotate keys, stake and unbond, join and leave, and name who is paid.
abstract contract NodeMoves is RelayerMoves {
    uint256 private _lastKey = 1000;

    /// I15: a new key, once; one that was ever used, never.
    function register(uint256 seed) external chosenBy(seed) {
        if (_oneIn(2) || operators.length == MAX_OPERATORS) {
            address used = keysSeen[_pick(keysSeen.length)];
            bytes memory data = abi.encodeCall(IStakeManager.registerNode, (used, "", new bytes(65)));
            return _mustRefuse(address(0xA999), address(stakes), STAKE, data, IStakeManager.KeyAlreadyUsed.selector);
        }
        uint256 key = ++_lastKey;
        Operator memory operator = Operator(
            key, VM.addr(key), address(uint160(0xA000 + _lastKey)), address(uint160(0xB000 + operators.length % 7))
        );
        _register(key, operator.node, operator.owner);
        VM.startPrank(operator.owner);
        stakes.joinMarket(operator.node, address(market));
        stakes.setPayee(operator.node, address(market), operator.payee);
        VM.stopPrank();
        operators.push(operator);
        _listOperator(operators.length - 1);
        _sortOperators();
    }

    /// The operator goes on with the new key; what the old one signed is no longer its, but it stays the node's.
    function rotate(uint256 seed) external chosenBy(seed) {
        if (!_oneIn(4)) return;
        Operator storage operator = operators[_pick(operators.length)];
        uint256 key = _oneIn(4) ? operator.key : ++_lastKey;
        address newKey = VM.addr(key);
        (address payee,) = stakes.membershipOf(operator.node, address(market));
        address[] memory markets = new address[](payee == address(0) || _oneIn(5) ? 0 : 1);
        if (markets.length == 1) markets[0] = address(market);
        bytes memory data = abi.encodeCall(
            IStakeManager.rotateKey, (operator.node, newKey, _signRegistration(key, newKey, operator.owner), markets)
        );
        _mustRefuse(watcher, address(stakes), 0, data, IStakeManager.NotOwner.selector);
        if (key == operator.key) {
            return _mustRefuse(operator.owner, address(stakes), 0, data, IStakeManager.KeyAlreadyUsed.selector);
        }
        _mustCall(operator.owner, address(stakes), 0, data);
        canonical[newKey] = canonical[operator.node];
        keysSeen.push(newKey);
        (operator.key, operator.node) = (key, newKey);
        seen["key rotated"] += 1;
        _sortOperators();
    }

    /// I16: out only after its time.
    function stake(uint256 seed) external chosenBy(seed) {
        Operator storage operator = operators[_pick(operators.length)];
        IStakeManager.Node memory known = stakes.nodeOf(operator.node);
        address to = address(stakes);
        uint256 kind = _pick(4);
        if (kind == 0) {
            uint256 amount = 1 + _pick(1 ether);
            _mustCall(_anyAccount(), to, amount, abi.encodeCall(IStakeManager.addStake, (operator.node)));
            VM.assertEq(stakes.nodeOf(operator.node).stake, known.stake + amount, "I14: stake");
        } else if (kind == 1) {
            uint256 available = known.stake - known.unbonding;
            uint256 amount = _pick(available + 2);
            bytes memory data = abi.encodeCall(IStakeManager.beginUnbond, (operator.node, amount));
            if (amount == 0) {
                return _mustRefuse(operator.owner, to, 0, data, IStakeManager.NothingUnbonding.selector);
            }
            if (amount > available) {
                return _mustRefuse(operator.owner, to, 0, data, IStakeManager.UnbondTooLarge.selector);
            }
            _mustCall(operator.owner, to, 0, data);
        } else {
            bytes memory data = abi.encodeCall(IStakeManager.withdrawStake, (operator.node));
            if (known.unbonding == 0) {
                return _mustRefuse(operator.owner, to, 0, data, IStakeManager.NothingUnbonding.selector);
            }
            if (VM.getBlockTimestamp() < known.unbondAt) {
                return _mustRefuse(operator.owner, to, 0, data, IStakeManager.StillUnbonding.selector);
            }
            uint256 before = operator.owner.balance;
            _mustCall(operator.owner, to, 0, data);
            VM.assertEq(operator.owner.balance, before + known.unbonding, "I16: what was unbonding");
            seen["stake withdrawn"] += 1;
        }
    }

    function member(uint256 seed) external chosenBy(seed) {
        Operator storage operator = operators[_pick(operators.length)];
        (address payee,) = stakes.membershipOf(operator.node, address(market));
        bytes memory data = abi.encodeCall(IStakeManager.joinMarket, (operator.node, address(market)));
        if (payee == address(0)) {
            _discard(_mustCall(operator.owner, address(stakes), 0, data));
            return;
        }
        _mustRefuse(operator.owner, address(stakes), 0, data, IStakeManager.AlreadyJoined.selector);
        if (_oneIn(5)) {
            data = abi.encodeCall(IStakeManager.leaveMarket, (operator.node, address(market)));
        } else {
            address next = address(uint160(0xB000 + _pick(7)));
            _list(next);
            data = abi.encodeCall(IStakeManager.setPayee, (operator.node, address(market), next));
        }
        _mustCall(operator.owner, address(stakes), 0, data);
    }

    function _sortOperators() private {
        for (uint256 i = 1; i < operators.length; ++i) {
            for (uint256 j = i; j > 0 && operators[j].node < operators[j - 1].node; --j) {
                Operator memory swapped = operators[j];
                operators[j] = operators[j - 1];
                operators[j - 1] = swapped;
            }
        }
    }
}
