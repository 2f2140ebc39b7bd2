// SPDX-License-Identifier: MIT
pragma solidity ^0.8.30;

import {IStakeManager} from "./interfaces/IStakeManager.sol";
import {TypedDataLib} from "./libraries/TypedDataLib.sol";
import {ECDSA} from "@openzeppelin/contracts/utils/cryptography/ECDSA.sol";
import {EIP712} from "@openzeppelin/contracts/utils/cryptography/EIP712.sol";
import {SafeCast} from "@openzeppelin/contracts/utils/math/SafeCast.sol";

/// @notice See IStakeManager.
contract StakeManager is IStakeManager, EIP712 {
    using SafeCast for uint256;

    /// The only contract that may take stake or bond, and only on proof; it has no owner.
    address public immutable FAULTS;
    uint256 public immutable MIN_STAKE;
    uint256 public immutable MIN_BOND;
    uint40 public immutable UNBOND_DELAY;
    uint40 public immutable PRICE_NOTICE;

    // One word: settlement reads it once per set.
    struct Membership {
        address payee;
        uint40 joinedAt;
        uint40 leavesAt; // 0 = stays
    }

    struct Price {
        uint80 perPromptKiB;
        uint80 perThousandTokens;
        uint40 nextAt; // from when `next…` holds; 0 = none announced
        bool offered;
        uint40 withdrawnAt; // 0 = never
        uint80 nextPerPromptKiB;
        uint80 nextPerThousandTokens;
    }

    // A node's facts are under the first key it had; `_nodeByKey` maps every key it ever had to that one, for ever.
    mapping(address key => address node) private _nodeByKey;
    mapping(address node => Node) private _nodes;
    mapping(address key => uint40) private _retiredAt;
    mapping(address key => mapping(address market => Membership)) private _memberships;
    mapping(address node => mapping(bytes32 modelId => Price)) private _prices;
    mapping(address relayer => Relayer) private _relayers;

    constructor(uint256 minStake, uint256 minBond, uint40 unbondDelay, uint40 priceNotice, address faults)
        EIP712("Headrace", "1")
    {
        FAULTS = faults;
        MIN_STAKE = minStake;
        MIN_BOND = minBond;
        UNBOND_DELAY = unbondDelay;
        PRICE_NOTICE = priceNotice;
    }

    /* NODES */

    function registerNode(address key, string calldata metadataURI, bytes calldata keySignature) external payable {
        if (msg.value < MIN_STAKE) revert StakeTooSmall(msg.value, MIN_STAKE);
        _takeKey(key, key, keySignature);
        Node storage node = _nodes[key];
        node.owner = msg.sender;
        node.key = key;
        node.registeredAt = uint40(block.timestamp);
        node.stake = msg.value.toUint128();
        emit NodeRegistered(key, msg.sender, msg.value, metadataURI);
    }

    function rotateKey(address key, address newKey, bytes calldata newKeySignature, address[] calldata markets)
        external
    {
        Node storage node = _owned(key);
        address oldKey = node.key;
        _takeKey(newKey, _nodeByKey[oldKey], newKeySignature);
        node.key = newKey;
        _retiredAt[oldKey] = uint40(block.timestamp);
        for (uint256 i = 0; i < markets.length; ++i) {
            Membership storage membership = _ownedMembership(oldKey, markets[i]);
            // Named twice, it would take over the old key's end.
            if (_memberships[newKey][markets[i]].payee != address(0)) revert AlreadyJoined(newKey, markets[i]);
            _memberships[newKey][markets[i]] = membership;
            // What was assigned to the old key is still paid.
            if (membership.leavesAt == 0) membership.leavesAt = uint40(block.timestamp) + UNBOND_DELAY;
        }
        emit KeyRotated(oldKey, newKey);
    }

    function addStake(address key) external payable {
        if (msg.value == 0) revert NothingSent();
        Node storage node = _known(key);
        uint128 stake = node.stake + msg.value.toUint128();
        node.stake = stake;
        emit StakeAdded(key, msg.value, stake);
    }

    function beginUnbond(address key, uint256 amount) external {
        Node storage node = _owned(key);
        uint256 available = node.stake - node.unbonding;
        if (amount == 0) revert NothingUnbonding(key);
        if (amount > available) revert UnbondTooLarge(amount, available);
        uint40 releasedAt = uint40(block.timestamp) + UNBOND_DELAY;
        node.unbonding += amount.toUint128();
        node.unbondAt = releasedAt;
        emit UnbondBegun(key, amount, releasedAt);
    }

    function withdrawStake(address key) external {
        Node storage node = _owned(key);
        uint128 amount = node.unbonding;
        if (amount == 0) revert NothingUnbonding(key);
        if (block.timestamp < node.unbondAt) revert StillUnbonding(node.unbondAt, block.timestamp);
        uint128 stake = node.stake - amount;
        node.stake = stake;
        node.unbonding = 0;
        node.unbondAt = 0;
        emit StakeWithdrawn(key, amount, stake);
        _send(node.owner, amount);
    }

    /* MARKETS */

    function joinMarket(address key, address market) external {
        Node storage node = _owned(key);
        if (market == address(0)) revert ZeroAddress();
        if (node.key != key) revert KeyRetired(key);
        if (_isMember(_memberships[key][market])) revert AlreadyJoined(key, market);
        _memberships[key][market] = Membership({payee: node.owner, joinedAt: uint40(block.timestamp), leavesAt: 0});
        emit MarketJoined(key, market, node.owner);
    }

    function leaveMarket(address key, address market) external {
        Membership storage membership = _ownedMembership(key, market);
        uint40 releasedAt = uint40(block.timestamp) + UNBOND_DELAY;
        membership.leavesAt = releasedAt;
        emit MarketLeft(key, market, releasedAt);
    }

    function setPayee(address key, address market, address payee) external {
        if (payee == address(0)) revert ZeroAddress();
        _ownedMembership(key, market).payee = payee;
        emit PayeeChanged(key, market, payee);
    }

    /* PRICES */

    function setPrices(
        address key,
        bytes32[] calldata modelIds,
        uint80[] calldata perPromptKiB,
        uint80[] calldata perThousandTokens
    ) external {
        _owned(key);
        if (perPromptKiB.length != modelIds.length) revert LengthMismatch(modelIds.length, perPromptKiB.length);
        if (perThousandTokens.length != modelIds.length) {
            revert LengthMismatch(modelIds.length, perThousandTokens.length);
        }
        for (uint256 i = 0; i < modelIds.length; ++i) {
            _setPrice(key, modelIds[i], perPromptKiB[i], perThousandTokens[i]);
        }
    }

    function withdrawModels(address key, bytes32[] calldata modelIds) external {
        _owned(key);
        for (uint256 i = 0; i < modelIds.length; ++i) {
            // The price is kept: withdrawing a model and offering it anew is no way around the notice of a raise.
            Price storage price = _prices[_nodeByKey[key]][modelIds[i]];
            if (price.offered) (price.offered, price.withdrawnAt) = (false, uint40(block.timestamp));
            emit ModelWithdrawn(key, modelIds[i]);
        }
    }

    /* RELAYERS */

    function registerRelayer(string calldata endpoint) external payable {
        Relayer storage relayer = _relayers[msg.sender];
        if (relayer.registeredAt != 0) revert AlreadyRegistered(msg.sender);
        if (msg.value < MIN_BOND) revert BondTooSmall(msg.value, MIN_BOND);
        relayer.bond = msg.value.toUint128();
        relayer.registeredAt = uint40(block.timestamp);
        emit RelayerRegistered(msg.sender, msg.value, endpoint);
    }

    function addBond() external payable {
        if (msg.value == 0) revert NothingSent();
        Relayer storage relayer = _knownRelayer();
        uint128 bond = relayer.bond + msg.value.toUint128();
        relayer.bond = bond;
        emit BondAdded(msg.sender, msg.value, bond);
    }

    function beginUnbondRelayer() external {
        Relayer storage relayer = _knownRelayer();
        uint40 releasedAt = uint40(block.timestamp) + UNBOND_DELAY;
        relayer.unbondAt = releasedAt;
        emit RelayerUnbondBegun(msg.sender, releasedAt);
    }

    function withdrawBond() external {
        Relayer storage relayer = _knownRelayer();
        uint40 releasedAt = relayer.unbondAt;
        if (releasedAt == 0) revert NothingUnbonding(msg.sender);
        if (block.timestamp < releasedAt) revert StillUnbonding(releasedAt, block.timestamp);
        uint128 amount = relayer.bond;
        // All is forgotten but the faults, so that the address may register anew without a clean slate.
        relayer.bond = 0;
        relayer.registeredAt = 0;
        relayer.unbondAt = 0;
        emit BondWithdrawn(msg.sender, amount);
        _send(msg.sender, amount);
    }

    /* FAULTS */

    function slashNode(address key, address market, uint256 amount, bool isMiss) external returns (uint256 taken) {
        _requireFaults();
        // A market can only cost a node what the node has joined it with.
        if (_memberships[key][market].payee == address(0)) revert NotJoined(key, market);
        Node storage node = _known(key);
        if (isMiss) node.misses += 1;
        else node.faults += 1;
        uint128 stake = node.stake;
        taken = amount < stake ? amount : stake;
        stake -= uint128(taken);
        node.stake = stake;
        // What is being taken out is not safe from it.
        if (node.unbonding > stake) node.unbonding = stake;
        emit NodeSlashed(key, taken, stake);
        _send(msg.sender, taken);
    }

    function slashRelayer(address relayer, uint256 amount) external returns (uint256 taken) {
        _requireFaults();
        Relayer storage r = _relayers[relayer];
        r.faults += 1;
        uint128 bond = r.bond;
        taken = amount < bond ? amount : bond;
        bond -= uint128(taken);
        r.bond = bond;
        emit RelayerSlashed(relayer, taken, bond);
        _send(msg.sender, taken);
    }

    /* VIEWS */

    function nodeOf(address key) external view returns (Node memory) {
        return _nodes[_nodeByKey[key]];
    }

    function relayerOf(address relayer) external view returns (Relayer memory) {
        return _relayers[relayer];
    }

    function canonicalNodeOf(address key) external view returns (address) {
        return _nodeByKey[key];
    }

    function retiredAt(address key) external view returns (uint40) {
        return _retiredAt[key];
    }

    function payeeOf(address key, address market) external view returns (address) {
        return _memberships[key][market].payee;
    }

    function isActive(address key) external view returns (bool) {
        Node storage node = _nodes[_nodeByKey[key]];
        return node.owner != address(0) && node.stake - node.unbonding >= MIN_STAKE;
    }

    function isBonded(address relayer) external view returns (bool) {
        Relayer storage r = _relayers[relayer];
        return r.registeredAt != 0 && r.unbondAt == 0 && r.bond >= MIN_BOND;
    }

    function membershipOf(address key, address market) external view returns (address payee, uint40 joinedAt) {
        Membership memory membership = _memberships[key][market];
        return _isMember(membership) ? (membership.payee, membership.joinedAt) : (address(0), uint40(0));
    }

    function priceOf(address key, bytes32 modelId)
        external
        view
        returns (bool offered, uint80 perPromptKiB, uint80 perThousandTokens)
    {
        Price memory price = _prices[_nodeByKey[key]][modelId];
        if (!price.offered) return (false, 0, 0);
        (perPromptKiB, perThousandTokens) = _effective(price);
        offered = true;
    }

    /* INTERNALS */

    function _setPrice(address key, bytes32 modelId, uint80 perPromptKiB, uint80 perThousandTokens) private {
        Price storage stored = _prices[_nodeByKey[key]][modelId];
        Price memory price = stored;
        (uint80 nowKiB, uint80 nowTokens) = _effective(price);
        bool isRaise = _isBound(price) && (perPromptKiB > nowKiB || perThousandTokens > nowTokens);
        uint40 effectiveAt = uint40(block.timestamp) + (isRaise ? PRICE_NOTICE : 0);
        (price.perPromptKiB, price.perThousandTokens) =
            isRaise ? (nowKiB, nowTokens) : (perPromptKiB, perThousandTokens);
        (price.nextPerPromptKiB, price.nextPerThousandTokens) =
            isRaise ? (perPromptKiB, perThousandTokens) : (uint80(0), uint80(0));
        price.nextAt = isRaise ? effectiveAt : 0;
        price.offered = true;
        _prices[_nodeByKey[key]][modelId] = price;
        emit PriceAnnounced(key, modelId, perPromptKiB, perThousandTokens, effectiveAt);
    }

    function _effective(Price memory price) private view returns (uint80, uint80) {
        return price.nextAt != 0 && block.timestamp >= price.nextAt
            ? (price.nextPerPromptKiB, price.nextPerThousandTokens)
            : (price.perPromptKiB, price.perThousandTokens);
    }

    /// Whether requesters may count on the price: it is offered, or was until less than a notice ago.
    function _isBound(Price memory price) private view returns (bool) {
        return price.offered || (price.withdrawnAt != 0 && block.timestamp < uint256(price.withdrawnAt) + PRICE_NOTICE);
    }

    function _isMember(Membership memory membership) private view returns (bool) {
        return membership.payee != address(0) && (membership.leavesAt == 0 || block.timestamp < membership.leavesAt);
    }

    /// Gives a key that was never used before to a node, on the key's own word.
    function _takeKey(address key, address node, bytes calldata keySignature) private {
        if (_nodeByKey[key] != address(0)) revert KeyAlreadyUsed(key);
        bytes32 digest = _hashTypedDataV4(TypedDataLib.hashRegisterNode(key, msg.sender));
        (address signer,,) = ECDSA.tryRecoverCalldata(digest, keySignature);
        if (key == address(0) || signer != key) revert InvalidKeySignature(key);
        _nodeByKey[key] = node;
    }

    function _requireFaults() private view {
        if (msg.sender != FAULTS) revert NotFaults(msg.sender);
    }

    function _known(address key) private view returns (Node storage node) {
        node = _nodes[_nodeByKey[key]];
        if (node.owner == address(0)) revert UnknownNode(key);
    }

    function _owned(address key) private view returns (Node storage node) {
        node = _known(key);
        if (msg.sender != node.owner) revert NotOwner(msg.sender, node.owner);
    }

    function _ownedMembership(address key, address market) private view returns (Membership storage membership) {
        _owned(key);
        membership = _memberships[key][market];
        if (!_isMember(membership)) revert NotJoined(key, market);
    }

    function _knownRelayer() private view returns (Relayer storage relayer) {
        relayer = _relayers[msg.sender];
        if (relayer.registeredAt == 0) revert NotARelayer(msg.sender);
    }

    function _send(address to, uint256 amount) private {
        (bool ok,) = to.call{value: amount}("");
        if (!ok) revert TransferFailed(to, amount);
    }
}
