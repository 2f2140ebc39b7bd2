"""How a script fails: one sentence, exit code 1, and no traceback."""

from collections.abc import Sequence
from typing import Any

import click
from eth_abi import decode
from eth_abi.exceptions import DecodingError
from eth_utils import function_signature_to_4byte_selector, to_bytes
from eth_utils.abi import collapse_if_tuple
from web3.exceptions import ContractCustomError, Web3Exception


class Failure(click.ClickException):
    """What the user can act on, said in one sentence."""


def explain(error: Web3Exception, abi: Sequence[dict[str, Any]]) -> str:
    """Return a revert in the contract's own words, such as `StakeTooSmall(stake=1, least=2)`."""
    data = getattr(error, "data", None)
    if not isinstance(error, ContractCustomError) or not isinstance(data, str):
        return _first_line(error)
    raw = to_bytes(hexstr=data)
    for entry in abi:
        if entry["type"] != "error":
            continue
        types = [collapse_if_tuple(each) for each in entry["inputs"]]
        if function_signature_to_4byte_selector(f"{entry['name']}({','.join(types)})") != raw[:4]:
            continue
        try:
            values = decode(types, raw[4:])
        except DecodingError:
            break
        named = [f"{each['name']}={value}" for each, value in zip(entry["inputs"], values, strict=True)]
        return f"{entry['name']}({', '.join(named)})"
    return _first_line(error)


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
