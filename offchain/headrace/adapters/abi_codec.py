"""Calls, results, events and errors of the contracts, by the ABIs that `ape run export_abi` writes into `abi/`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from importlib import resources
from typing import Any, NamedTuple

from headrace.adapters.abi_reader import MalformedData, ValuesReader
from headrace.adapters.abi_writer import ValuesWriter
from headrace.core.events import ChainEvent
from headrace.core.keccak import keccak
from headrace.core.types import ZERO_HASH, Address, Hash32

# What the compiler itself reverts with.
_BUILT_IN = (
    {"type": "error", "name": "Error", "inputs": [{"name": "reason", "type": "string"}]},
    {"type": "error", "name": "Panic", "inputs": [{"name": "code", "type": "uint256"}]},
)
CONTRACTS = ("InferenceMarket", "StakeManager", "ScheduleLog", "ModelRegistry", "Faults", "AttestedKeyVerifier")


class _Signature(NamedTuple):
    """An ABI entry, ready for use."""

    name: str
    inputs: tuple[Mapping[str, Any], ...]
    hash: bytes
    writer: ValuesWriter
    outputs: ValuesReader


class ContractAbi:
    """Encodes calls of one contract and decodes what they return."""

    def __init__(self, name: str) -> None:
        self._functions = {each.name: each for each in _entries(load_abi(name), "function")}

    def call(self, function: str, *values: Any) -> bytes:
        """The data of a call. Structs are tuples, bytes are bytes.

        Raises:
            InvalidInput: a value is not of its type.
        """
        entry = self._functions[function]
        return entry.hash[:4] + entry.writer.write(values)

    def result(self, function: str, data: bytes) -> list[Any]:
        """What a call returned, in the conventions of `ChainEvent.args`."""
        return self._functions[function].outputs.read(data)


class EventDecoder:
    """Decodes logs of contracts at known addresses; other logs are nobody's."""

    def __init__(self, addresses: Mapping[str, Address]) -> None:
        """
        Args:
            addresses: by contract name.
        """
        self.addresses = tuple(address.lower() for address in addresses.values())
        self._events: dict[tuple[Address, str], _Event] = {}
        for name, address in addresses.items():
            for entry in load_abi(name):
                if entry["type"] == "event" and not entry["anonymous"]:
                    event = _Event(entry)
                    self._events[address.lower(), event.topic] = event

    @property
    def topics(self) -> set[Hash32]:
        """The first topics of all events."""
        return {topic for _, topic in self._events}

    def filter_of(self, contract: Address, name: str, **indexed: Sequence[str]) -> dict[str, Any]:
        """What `eth_getLogs` finds a contract's events of a name by, any of the given values in each indexed field."""
        event = next(each for (address, _), each in self._events.items() if (address, each.name) == (contract, name))
        topics = [[_topic_of(value) for value in indexed[each]] if each in indexed else None for each in event.indexed]
        return {"address": contract, "topics": [event.topic, *topics]}

    def decode(self, log: Mapping[str, Any]) -> ChainEvent | None:
        """Decode a log as JSON-RPC gives it. Simulated logs belong to no block."""
        address = log["address"].lower()
        event = self._events.get((address, log["topics"][0])) if log["topics"] else None
        if event is None:
            return None
        return ChainEvent(
            block_number=int(log.get("blockNumber") or "0x0", 16),
            block_hash=log.get("blockHash") or ZERO_HASH,
            transaction_hash=log.get("transactionHash") or ZERO_HASH,
            log_index=int(log.get("logIndex") or "0x0", 16),
            contract=address,
            name=event.name,
            args=event.args(log["topics"], log["data"]),
        )

    def decode_all(self, logs: Iterable[Mapping[str, Any]]) -> list[ChainEvent]:
        """Decode those logs that are the contracts'."""
        return [event for log in logs if (event := self.decode(log)) is not None]


class ErrorDecoder:
    """Words what a contract reverted with."""

    def __init__(self, names: Iterable[str] = CONTRACTS) -> None:
        entries = [*_BUILT_IN, *(entry for name in names for entry in load_abi(name))]
        # Of errors that contracts declare alike, the fields have the names that the first gives them.
        self._errors = {entry.hash[:4]: entry for entry in reversed(_entries(entries, "error"))}

    def decode(self, data: bytes) -> str:
        """`Name(field=value, …)`, or the data itself when no contract has such an error."""
        entry = self._errors.get(data[:4])
        if entry is None:
            return "0x" + data.hex() if data else "reverted without a reason"
        try:
            values = ValuesReader(entry.inputs).read(data[4:])
        except MalformedData:
            return "0x" + data.hex()
        fields = (f"{given['name']}={value}" for given, value in zip(entry.inputs, values, strict=True))
        return f"{entry.name}({', '.join(fields)})"


@cache
def load_abi(name: str) -> tuple[Mapping[str, Any], ...]:
    """The exported ABI of a contract."""
    text = (resources.files("headrace.adapters") / "abi" / f"{name}.json").read_text(encoding="utf-8")
    return tuple(json.loads(text)["abi"])


def type_of(given: Mapping[str, Any]) -> str:
    """The canonical type of an input, output or component."""
    kind: str = given["type"]
    if not kind.startswith("tuple"):
        return kind
    return f"({','.join(type_of(component) for component in given['components'])}){kind.removeprefix('tuple')}"


class _Event:
    """How the topics and data of one event are read."""

    def __init__(self, entry: Mapping[str, Any]) -> None:
        self.name: str = entry["name"]
        inputs = entry["inputs"]
        self.topic = "0x" + keccak(f"{self.name}({','.join(type_of(given) for given in inputs)})".encode()).hex()
        self._names = [given["name"] for given in inputs]
        self._indexed = [(given["name"], ValuesReader([given])) for given in inputs if given["indexed"]]
        data = [given for given in inputs if not given["indexed"]]
        self._data_names = [given["name"] for given in data]
        self._data = ValuesReader(data)

    @property
    def indexed(self) -> list[str]:
        """The names of the indexed fields, in the order of their topics."""
        return [name for name, _ in self._indexed]

    def args(self, topics: Sequence[str], data: str) -> dict[str, Any]:
        if len(topics) != len(self._indexed) + 1:
            raise MalformedData(f"{self.name} has {len(self._indexed) + 1} topics, not {len(topics)}")
        values = dict(zip(self._data_names, self._data.read(bytes.fromhex(data[2:])), strict=True))
        for (name, reader), topic in zip(self._indexed, topics[1:], strict=True):
            (values[name],) = reader.read(bytes.fromhex(topic[2:]))
        return {name: values[name] for name in self._names}


def _topic_of(value: str) -> str:
    """An address or a hash as a topic."""
    return "0x" + value.removeprefix("0x").rjust(64, "0")


def _entries(entries: Iterable[Mapping[str, Any]], kind: str) -> list[_Signature]:
    return [
        _Signature(
            entry["name"],
            tuple(entry["inputs"]),
            keccak(f"{entry['name']}({','.join(type_of(given) for given in entry['inputs'])})".encode()),
            ValuesWriter(entry["inputs"]),
            ValuesReader(entry.get("outputs", ())),
        )
        for entry in entries
        if entry["type"] == kind
    ]
