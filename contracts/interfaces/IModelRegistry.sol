// SPDX-License-Identifier: MIT
pragma solidity ^0.8.30;

/// @title What model ids mean. Append-only, and read off-chain only.
interface IModelRegistry {
    struct Model {
        string name;
        string revision;
        bytes32 weightsHash; // SHA-256 of the weights file; 0 when the model is known by name only
        string quantisation;
        uint32 memoryMb; // resident, without context
        uint32 memoryPerTokenBytes; // of context
        uint32 complexityMilli; // expected time relative to a 7B model, in thousandths
        string unit; // what a node's work is counted in, such as "output_token"
    }

    event ModelRegistered(bytes32 indexed modelId, Model model);

    error ModelExists(bytes32 modelId);
    error UnknownModel(bytes32 modelId);
    error NameMissing();

    function register(Model calldata model) external returns (bytes32 modelId);
    /// @notice keccak256(abi.encode(name, revision, weightsHash, quantisation)).
    function idOf(Model calldata model) external pure returns (bytes32);
    function modelOf(bytes32 modelId) external view returns (Model memory);
    function count() external view returns (uint256);
    function modelIdAt(uint256 index) external view returns (bytes32);
}
