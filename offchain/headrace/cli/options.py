"""What several commands take, and how it is read."""

from __future__ import annotations

import re
from typing import Annotated

import typer
from eth_utils.address import is_checksum_address

from headrace.cli.amounts import parse_wei
from headrace.core.errors import InvalidInput
from headrace.core.types import ZERO_ADDRESS, Address, Hash32

Json = Annotated[bool, typer.Option("--json", help="One JSON document instead of text.")]
RequestId = Annotated[str, typer.Argument(metavar="ID")]


def request_id(text: str) -> Hash32:
    """A request's id, in lower case.

    Raises:
        InvalidInput: it is none.
    """
    if not re.fullmatch(r"0x[0-9a-fA-F]{64}", text):
        raise InvalidInput(f"{text!r} is not a request id: it must be 0x and 64 hexadecimal digits")
    return text.lower()


def address(text: str) -> Address:
    """An address, in lower case.

    Raises:
        InvalidInput: it is none.
    """
    if not re.fullmatch(r"0x[0-9a-fA-F]{40}", text):
        raise InvalidInput(f"{text!r} is not an address: it must be 0x and 40 hexadecimal digits")
    is_mixed = text[2:] not in (text[2:].lower(), text[2:].upper())
    if is_mixed and not is_checksum_address(text):
        raise InvalidInput(
            f"{text} has a character that is wrong: its capital letters are a checksum (EIP-55), which does not fit"
        )
    return text.lower()


def receiver_address(text: str) -> Address:
    """The address of somebody who is to have wei.

    Raises:
        InvalidInput: it is none, or the zero address, from which nobody could take them.
    """
    if address(text) == ZERO_ADDRESS:
        raise InvalidInput("the zero address is nobody: what is sent there is lost; give another")
    return address(text)


def wei(text: str | None, option: str) -> int | None:
    """An amount, if there is one."""
    return None if text is None else parse_wei(text, option)
