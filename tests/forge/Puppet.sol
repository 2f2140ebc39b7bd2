// SPDX-License-Identifier: MIT
pragma solidity ^0.8.30;

import {VM} from "./Vm.sol";

/// Named, so that its code is compiled once and not again into each test.
function newPuppet() returns (Puppet) {
    return Puppet(payable(VM.deployCode("Puppet.sol:Puppet")));
}

/// A contract that does what it is told when it is called, in whatever role: payee, requester, wallet or verifier.
contract Puppet {
    enum Ending {
        ANSWER, // returns `answer`
        REVERT, // reverts with `answer`
        BOMB, // returns a megabyte
        REVERT_BOMB, // reverts with a megabyte
        BURN, // uses all the gas that it has
        INVALID
    }

    struct Step {
        address target;
        uint256 value;
        bytes data;
    }

    uint256 private constant BOMB_SIZE = 1 << 20;

    Ending public ending;
    bytes public answer;
    bool public isReadOnly; // in a static call nothing can be noted down
    uint256 public calls;
    uint256 public gasGiven;
    bytes32 public lastHash; // of what it was called with
    Step[] private _steps;
    bool[] private _worked;
    bytes[] private _answers;

    /* ORDERS; by selectors that no contract here calls */

    function orderEnding(Ending ending_, bytes calldata answer_) external {
        (ending, answer) = (ending_, answer_);
    }

    function orderReadOnly(bool isReadOnly_) external {
        isReadOnly = isReadOnly_;
    }

    /// Once, at the next call.
    function orderStep(address target, uint256 value, bytes calldata data) external {
        _steps.push(Step(target, value, data));
    }

    function orderNoSteps() external {
        delete _steps;
    }

    function act(address target, uint256 value, bytes calldata data) external returns (bytes memory returned) {
        bool ok;
        (ok, returned) = target.call{value: value}(data);
        if (ok) return returned;
        assembly ("memory-safe") {
            revert(add(returned, 0x20), mload(returned))
        }
    }

    /* WHAT CAME OF IT */

    function stepsTaken() external view returns (uint256) {
        return _worked.length;
    }

    function stepAt(uint256 index) external view returns (bool worked, bytes memory returned) {
        return (_worked[index], _answers[index]);
    }

    /* CALLED */

    receive() external payable {
        _obey();
    }

    fallback() external payable {
        _obey();
    }

    function _obey() private {
        if (!isReadOnly) {
            gasGiven = gasleft();
            calls += 1;
            lastHash = keccak256(msg.data);
            _takeSteps();
        }
        Ending how = ending;
        bytes memory what = answer;
        if (how == Ending.BURN) while (true) {}
        assembly ("memory-safe") {
            switch how
            case 0 { return(add(what, 0x20), mload(what)) }
            case 1 { revert(add(what, 0x20), mload(what)) }
            case 2 { return(0, BOMB_SIZE) }
            case 3 { revert(0, BOMB_SIZE) }
            default { invalid() }
        }
    }

    function _takeSteps() private {
        uint256 count = _steps.length;
        if (count == 0) return;
        Step[] memory steps = _steps;
        delete _steps;
        for (uint256 i = 0; i < count; ++i) {
            (bool ok, bytes memory returned) = steps[i].target.call{value: steps[i].value}(steps[i].data);
            _worked.push(ok);
            _answers.push(returned);
        }
    }
}
