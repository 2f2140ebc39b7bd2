"""What routes take: the context, and ids as they may be written."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Path, Request
from pydantic import AfterValidator, StringConstraints

from headrace.api.chain_facts import ChainFacts
from headrace.api.context import ApiContext


def _context(request: Request) -> ApiContext:
    context: ApiContext = request.app.state.context
    return context


def _facts(request: Request) -> ChainFacts:
    facts: ChainFacts = request.app.state.facts
    return facts


Context = Annotated[ApiContext, Depends(_context)]
Facts = Annotated[ChainFacts, Depends(_facts)]

_Hash = StringConstraints(pattern=r"^0x[0-9a-fA-F]{64}$")
_Address = StringConstraints(pattern=r"^0x[0-9a-fA-F]{40}$")

HashText = Annotated[str, _Hash, AfterValidator(str.lower)]
AddressText = Annotated[str, _Address, AfterValidator(str.lower)]
HashPath = Annotated[HashText, Path(description="32 bytes as 0x and 64 hexadecimal digits.")]
AddressPath = Annotated[AddressText, Path(description="20 bytes as 0x and 40 hexadecimal digits.")]
RoundPath = Annotated[int, Path(ge=1, lt=1 << 63, description="The round's number.")]
