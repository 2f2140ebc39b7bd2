"""How every part of Headrace logs: structlog, one JSON object or one console line each, never a secret.

A line that belongs to a request carries its `requestId`, from the call or from `bind_request`.
"""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Mapping, MutableMapping
from contextlib import AbstractContextManager
from typing import Any, Literal, TextIO

import structlog
from pydantic import SecretBytes, SecretStr

REDACTED = "[redacted]"

# Names whose values are never logged, whatever they hold.
_SECRET_NAMES = re.compile(r"private|secret|passw|mnemonic|authorization|api_?key|bearer", re.IGNORECASE)
# 32 bytes of hex after a word that says they are a key; hashes and ids look the same and must stay readable.
_SECRET_TEXT = re.compile(r"((?:private[ _-]?key|secret|passw\w*|mnemonic)\W{1,3})\S+", re.IGNORECASE)


def configure(level: str = "INFO", style: Literal["json", "console"] = "json", stream: TextIO | None = None) -> None:
    """Send structlog's and the standard library's lines to `stream` (stderr unless given) in one form."""
    renderer: Any = structlog.processors.JSONRenderer() if style == "json" else _console(stream or sys.stderr)
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.stdlib.ExtraAdder(),
    ]
    formatter = structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=shared,
        processors=[
            structlog.stdlib.ProcessorFormatter.remove_processors_meta,
            # The console draws exceptions itself; JSON needs them as text, and both after redaction.
            *([structlog.processors.format_exc_info] if style == "json" else []),
            redact,
            renderer,
        ],
    )
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(formatter)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    # What uvicorn says about each HTTP request is in our own metrics.
    logging.getLogger("uvicorn.access").setLevel(logging.WARNING)
    # It announces each connection that it opens and closes.
    logging.getLogger("web3").setLevel(logging.WARNING)
    structlog.configure(
        processors=[*shared[:-1], structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=False,
    )


def _console(stream: TextIO) -> Any:
    """Colours are for terminals: in a file they are noise."""
    return structlog.dev.ConsoleRenderer(colors=stream.isatty())


def bind_request(request_id: str) -> AbstractContextManager[Any]:
    """Put `requestId` on every line that is logged inside the block."""
    return structlog.contextvars.bound_contextvars(requestId=request_id)


def redact(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """A structlog processor that takes secrets out of names, values and text."""
    for name in list(event):
        event[name] = _redacted(name, event[name])
    return event


def _redacted(name: str, value: Any) -> Any:
    if isinstance(value, SecretStr | SecretBytes) or (_SECRET_NAMES.search(name) and value is not None):
        return REDACTED
    if isinstance(value, str):
        return _SECRET_TEXT.sub(rf"\1{REDACTED}", value)
    if isinstance(value, Mapping):
        return {key: _redacted(str(key), item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_redacted(name, item) for item in value]
    return value
