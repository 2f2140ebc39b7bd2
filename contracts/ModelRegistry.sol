// SPDX-License-Identifier: MIT
pragma solidity ^0.8.30;

import {IModelRegistry} from "./interfaces/IModelRegistry.sol";
import {TimelockedOwnable} from "./market/TimelockedOwnable.sol";
import {Ownable} from "@openzeppelin/contracts/access/Ownable.sol";

/// @notice See IModelRegistry.
contract ModelRegistry is IModelRegistry, TimelockedOwnable {
    mapping(bytes32 modelId => Model) private _models;
    bytes32[] private _modelIds;

    constructor(address owner) Ownable(owner) {}

    // Only the owner registers: an id says nothing of memory and complexity, so whoever came first could lie about them.
    function register(Model calldata model) external onlyOwner returns (bytes32 modelId) {
        if (bytes(model.name).length == 0) revert NameMissing();
        modelId = idOf(model);
        if (bytes(_models[modelId].name).length != 0) revert ModelExists(modelId);
        _models[modelId] = model;
        _modelIds.push(modelId);
        emit ModelRegistered(modelId, model);
    }

    function idOf(Model calldata model) public pure returns (bytes32) {
        return keccak256(abi.encode(model.name, model.revision, model.weightsHash, model.quantisation));
    }

    function modelOf(bytes32 modelId) external view returns (Model memory model) {
        model = _models[modelId];
        if (bytes(model.name).length == 0) revert UnknownModel(modelId);
    }

    function count() external view returns (uint256) {
        return _modelIds.length;
    }

    function modelIdAt(uint256 index) external view returns (bytes32) {
        return _modelIds[index];
    }
}
