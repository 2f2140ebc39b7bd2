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
        address key; // that signs now
        uint48 misses;
        uint48 faults;
    }

    struct Relayer {
        uint128 bond;
        uint40 registeredAt;
        uint40 unbondAt; // 0 while bonded
        uint32 faults;
    }

    event NodeRegistered(address indexed key, address indexed owner, uint256 stake, string metadataURI);
    event KeyRotated(address indexed oldKey, address indexed newKey);
    event NodeSlashed(address indexed key, uint256 taken, uint256 stake);
    event RelayerSlashed(address indexed relayer, uint256 taken, uint256 bond);
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
    error KeyRetired(address key);
    error NotFaults(address caller);
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
    /// @notice Lets a new key sign for a node from now on, with its stake, prices and record. The old key stays the node's
    /// for ever: for `UNBOND_DELAY` what it signed is still paid, and its faults still cost the stake.
    /// @param newKeySignature The new key's EIP-712 signature over RegisterNode(newKey, owner).
    /// @param markets Those of the old key's that the new key is to be a member of, since when the old one was.
    function rotateKey(address key, address newKey, bytes calldata newKeySignature, address[] calldata markets) external;
    function addStake(address key) external payable;
    /// @notice Takes `amount` out of what stands behind the node at once; it may be withdrawn after `UNBOND_DELAY`.
    function beginUnbond(address key, uint256 amount) external;
    function withdrawStake(address key) external;

    /// @notice Lets `market` pay the node (its owner, unless changed), and lets faults in it cost the node stake.
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

    /// @notice Takes up to `amount` of a node's stake, unbonding or not, and sends it to the caller, which is `FAULTS`. For
    /// faults in markets that the node joined only.
    function slashNode(address key, address market, uint256 amount, bool isMiss) external returns (uint256 taken);
    /// @notice Takes up to `amount` of a relayer's bond, and sends it to the caller, which is `FAULTS`.
    function slashRelayer(address relayer, uint256 amount) external returns (uint256 taken);

    /// @notice Seconds between the beginning of an unbonding and the withdrawal.
    function UNBOND_DELAY() external view returns (uint40);
    function nodeOf(address key) external view returns (Node memory);
    function relayerOf(address relayer) external view returns (Relayer memory);
    /// @notice The first key of the node that `key` is or was a key of; 0 = of none.
    function canonicalNodeOf(address key) external view returns (address);
    /// @notice When another key took over from `key`; 0 = it did not.
    function retiredAt(address key) external view returns (uint40);
    /// @notice Who was last paid for a node's work in a market, also after it left; 0 = it never joined.
    function payeeOf(address key, address market) external view returns (address);
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
