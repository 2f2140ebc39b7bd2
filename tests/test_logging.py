"""Logging: no secret leaves, and a request's lines carry its id."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest
import structlog
from pydantic import SecretStr

from headrace.logging import REDACTED, bind_request, configure, redact

KEY = "0x" + "7" * 64


@pytest.fixture
def logs() -> Iterator[io.StringIO]:
    before = logging.getLogger().handlers[:], logging.getLogger().level
    stream = io.StringIO()
    configure("INFO", "json", stream)
    yield stream
    logging.getLogger().handlers[:], level = before
    logging.getLogger().setLevel(level)
    structlog.reset_defaults()


def test_bind_request__lines_inside__carry_its_id(logs: io.StringIO) -> None:
    with bind_request("0xab"):
        structlog.get_logger("headrace.x").info("assigned", node="0x1")
        logging.getLogger("elsewhere").warning("from the standard library")
    structlog.get_logger().info("after")
    lines = [json.loads(line) for line in logs.getvalue().splitlines()]
    assert [line.get("requestId") for line in lines] == ["0xab", "0xab", None]
    assert [line["event"] for line in lines] == ["assigned", "from the standard library", "after"]


@pytest.mark.parametrize(
    "event",
    [
        {"private_key": KEY},
        {"settings": {"openai_api_key": KEY}},
        {"headers": [{"Authorization": KEY}]},
        {"anything": SecretStr(KEY)},
        {"event": f"cannot use private key {KEY}"},
        {"event": f"password={KEY} was wrong"},
    ],
)
def test_redact__secret_anywhere__is_gone(event: dict[str, object]) -> None:
    redacted = redact(None, "info", dict(event))
    assert KEY not in str(redacted)
    assert REDACTED in str(redacted)


def test_redact__hash__stays() -> None:
    assert redact(None, "info", {"transaction_hash": KEY}) == {"transaction_hash": KEY}


def test_configure__exception_with_secret__is_redacted(logs: io.StringIO) -> None:
    try:
        raise ValueError(f"bad private key {KEY}")
    except ValueError:
        structlog.get_logger().exception("failed")
    text = logs.getvalue()
    assert KEY not in text
    assert "ValueError" in text
