"""Quarantine: pauses that double, and an end."""

from __future__ import annotations

from headrace.core.quarantine import Quarantine, QuarantinePolicy

A, B = "0x" + "0a" * 32, "0x" + "0b" * 32


def test_failed__pauses_double__and_the_third_time_is_the_last() -> None:
    quarantine = Quarantine(QuarantinePolicy(most_failures=3, first_pause_ms=100))
    assert not quarantine.is_in(A, 0)
    assert not quarantine.failed(A, 0)
    assert quarantine.is_in(A, 99)
    assert not quarantine.is_in(A, 100)
    assert not quarantine.failed(A, 100)
    assert quarantine.is_in(A, 299)
    assert not quarantine.is_in(A, 300)
    assert not quarantine.is_in(B, 0)
    assert len(quarantine) == 1
    assert quarantine.failed(A, 300)
    assert len(quarantine) == 0


def test_passed__begins_anew() -> None:
    quarantine = Quarantine(QuarantinePolicy(most_failures=2, first_pause_ms=100))
    assert not quarantine.failed(A, 0)
    quarantine.passed([A, B])
    assert not quarantine.is_in(A, 1)
    assert not quarantine.failed(A, 1)
