"""Amounts as people write them: wei, gwei or ether, exactly."""

from __future__ import annotations

import re
from decimal import Decimal, localcontext

from headrace.core.errors import InvalidInput

_AMOUNT = re.compile(r"([0-9]{1,30}(?:\.[0-9]{1,18})?)\s*(wei|gwei|eth|ether)?", re.IGNORECASE)
_WEI = re.compile(r"(?<![\w.,])(\d+) wei\b")
_GWEI = 10**9
_UNITS = {"wei": 0, "gwei": 9, "eth": 18, "ether": 18}


def parse_wei(text: str, option: str) -> int:
    """`1500`, `20gwei`, `0.001 ether`.

    Raises:
        InvalidInput: it is no amount, or has more digits than a wei; the message names the option.
    """
    match = _AMOUNT.fullmatch(text.strip())
    if match is None:
        raise InvalidInput(f"{option} is {text!r}: write an amount such as 1500, 20gwei or 0.001ether")
    with localcontext() as exact:
        exact.prec = 60
        wei = Decimal(match[1]).scaleb(_UNITS[(match[2] or "wei").lower()])
        if wei != wei.to_integral_value():
            raise InvalidInput(f"{option} is {text!r}, which is not a whole number of wei")
        return int(wei)


def show_wei(wei: int) -> str:
    """Ether without trailing zeros, and the wei in full: nobody should have to count zeros, or to trust a rounding."""
    return f"{show_ether(wei)} ({wei:,} wei)"


def with_ether(text: str) -> str:
    """A sentence whose amounts in wei are told in ether too, from a gwei on: less is what nobody counts zeros of."""
    return _WEI.sub(lambda match: _told(int(match[1])), text)


def _told(wei: int) -> str:
    return show_wei(wei) if wei >= _GWEI else f"{wei:,} wei"


def show_ether(wei: int) -> str:
    """Ether, exactly, without trailing zeros."""
    with localcontext() as exact:
        exact.prec = 60
        ether = f"{Decimal(wei).scaleb(-18):f}"
    trimmed = ether.rstrip("0").rstrip(".") if "." in ether else ether
    return f"{trimmed or '0'} ether"
