// SPDX-License-Identifier: MIT
pragma solidity ^0.8.30;

/// @title Nodes and relayers, and the wei that stands behind their word.
/// @notice A node is known by the signing key it registered with, is run by an owner, and is paid by the markets that it
/// joined. A key is never reused. Unbonding outlasts every open request and dispute.
interface IStakeManager {
    struct Node {
        address owner;
        uint40 registeredAt;
        uint40 unbondAt; // when `unbonding` may be withdrawn
        uint128 stake;
        uint128 unbonding; // part of `stake`
        uint64 misses;
        uint64 faults;
    }

    struct Relayer {
        uint128 bond;
        uint40 registeredAt;
        uint40 unbondAt; // 0 while bonded
        uint32 faults;
    }

    event NodeRegistered(address indexed key, address indexed owner, uint256 stake, string metadataURI);
    event StakeAdded(address indexed key, uint256 amount, uint256 stake);
    event UnbondBegun(address indexed key, uint256 amount, uint40 withdrawableAt);
    event StakeWithdrawn(address indexed key, uint256 amount, uint256 stake);
    event MarketJoined(address indexed key, address indexed market, address payee);
    event MarketLeft(address indexed key, address indexed market, uint40 leavesAt);
    event PayeeChanged(address indexed key, address indexed market, address payee);
    /// @notice Wei per started KiB of prompt and per started thousand output tokens, for one model, from `effectiveAt`.
    event PriceAnnounced(
        address indexed key, bytes32 indexed modelId, uint80 perPromptKiB, uint80 perThousandTokens, uint40 effectiveAt
    );
    event ModelWithdrawn(address indexed key, bytes32 indexed modelId);
    event RelayerRegistered(address indexed relayer, uint256 bond, string endpoint);
    event BondAdded(address indexed relayer, uint256 amount, uint256 bond);
    event RelayerUnbondBegun(address indexed relayer, uint40 withdrawableAt);
    event BondWithdrawn(address indexed relayer, uint256 amount);

    error KeyAlreadyUsed(address key);
    error UnknownNode(address key);
    error NotOwner(address caller, address owner);
    error InvalidKeySignature(address key);
    error StakeTooSmall(uint256 stake, uint256 least);
    error BondTooSmall(uint256 bond, uint256 least);
    error UnbondTooLarge(uint256 amount, uint256 available);
    error NothingUnbonding(address account);
    error StillUnbonding(uint40 withdrawableAt, uint256 blockTimestamp);
    error AlreadyJoined(address key, address market);
    error NotJoined(address key, address market);
    error ZeroAddress();
    error LengthMismatch(uint256 expected, uint256 got);
    error AlreadyRegistered(address relayer);
    error NotARelayer(address relayer);
    error TransferFailed(address to, uint256 amount);
    error NothingSent();

    /// @notice Registers a node and its stake. The caller becomes its owner.
    /// @param keySignature The key's EIP-712 signature over RegisterNode(key, owner): nobody registers another's key.
    function registerNode(address key, string calldata metadataURI, bytes calldata keySignature) external payable;
    function addStake(address key) external payable;
    /// @notice Takes `amount` out of what stands behind the node at once; it may be withdrawn after `UNBOND_DELAY`.
    function beginUnbond(address key, uint256 amount) external;
    function withdrawStake(address key) external;

    /// @notice Lets `market` pay the node (its owner, unless changed) and, in later versions, slash it.
    function joinMarket(address key, address market) external;
    /// @notice Leaves after `UNBOND_DELAY`: what was assigned until then is still paid.
    function leaveMarket(address key, address market) external;
    function setPayee(address key, address market, address payee) external;

    /// @notice Offers models at prices. What is lowered or new holds at once, what is raised after `PRICE_NOTICE`. A model
    /// is new when it was not offered within the last `PRICE_NOTICE`.
    function setPrices(
        address key,
        bytes32[] calldata modelIds,
        uint80[] calldata perPromptKiB,
        uint80[] calldata perThousandTokens
    ) external;
    function withdrawModels(address key, bytes32[] calldata modelIds) external;

    /// @notice Registers the caller as a relayer and its bond. `endpoint` is where its API is served.
    function registerRelayer(string calldata endpoint) external payable;
    function addBond() external payable;
    function beginUnbondRelayer() external;
    function withdrawBond() external;

    /// @notice Seconds between the beginning of an unbonding and the withdrawal.
    function UNBOND_DELAY() external view returns (uint40);
    function nodeOf(address key) external view returns (Node memory);
    function relayerOf(address relayer) external view returns (Relayer memory);
    /// @notice Whether the stake that is not unbonding reaches `MIN_STAKE`.
    function isActive(address key) external view returns (bool);
    function isBonded(address relayer) external view returns (bool);
    /// @notice Who is paid for a node's work in a market (0 = not joined), and since when it has been in.
    function membershipOf(address key, address market) external view returns (address payee, uint40 joinedAt);
    function priceOf(address key, bytes32 modelId)
        external
        view
        returns (bool offered, uint80 perPromptKiB, uint80 perThousandTokens);
}
