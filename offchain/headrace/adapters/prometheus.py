"""Metrics for Prometheus. What there is stands in one table: a name that is not in it is a fault in the program."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_SECONDS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_COUNTS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 10_000)
_GAS = (5e4, 1e5, 2e5, 5e5, 1e6, 2e6, 5e6, 1e7, 1.7e7)


@dataclass(frozen=True, slots=True)
class _Kind:
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()


COUNTERS: Final = {
    "headrace_decisions_total": _Kind("Decisions of cycles, by kind.", ("kind",)),
    "headrace_assignments_total": _Kind("Assignments that got an answer or lapsed, by outcome.", ("outcome",)),
    "headrace_results_total": _Kind("Results verified and stored."),
    "headrace_transactions_total": _Kind("Transactions with a receipt.", ("kind", "outcome")),
    "headrace_transactions_refused_total": _Kind("Transactions that the chain's node refused.", ("kind",)),
    "headrace_transactions_held_total": _Kind("Transactions that should bid more and may not.", ("kind",)),
    "headrace_signer_calls_total": _Kind("Calls of a remote signer.", ("outcome",)),
    "headrace_replacements_total": _Kind("Transactions that replaced another of theirs.", ("kind", "move")),
    "headrace_payloads_pruned_total": _Kind("Prompts and answers that were thrown out."),
    "headrace_dead_letters_total": _Kind("Results that are not settled any more."),
    "headrace_simulations_failed_total": _Kind("Batches whose simulation failed as a whole."),
    "headrace_items_left_out_total": _Kind("Items that a simulation would not have paid.", ("status",)),
    "headrace_expired_total": _Kind("Requests that this relayer asked the market to expire."),
    "headrace_faults_found_total": _Kind("Faults that the watcher found.", ("fault",)),
    "headrace_faults_proven_total": _Kind("Found faults that are proven on the chain.", ("fault",)),
    "headrace_postings_total": _Kind("Requests to post for their requesters, by outcome.", ("outcome",)),
    "headrace_reorgs_total": _Kind("Reorgs that were rewound."),
    "headrace_blocks_indexed_total": _Kind("Blocks indexed."),
    "headrace_blocks_reread_total": _Kind("Blocks of which the endpoint told events only later."),
    "headrace_events_indexed_total": _Kind("Events indexed."),
    "headrace_http_requests_total": _Kind("Requests to the control API.", ("route", "status")),
    "headrace_http_rate_limited_total": _Kind("Requests to the control API beyond their caller's rate.", ("cost",)),
}
HISTOGRAMS: Final = {
    "headrace_cycle_requests": _Kind("Requests that a cycle decided on.", buckets=_COUNTS),
    "headrace_compute_seconds": _Kind("Time that nodes took for an answer.", buckets=_SECONDS),
    "headrace_signer_seconds": _Kind("Time that a remote signer took for a signature.", buckets=_SECONDS),
    "headrace_transaction_gas": _Kind("Gas used by transactions.", ("kind",), _GAS),
}
GAUGES: Final = {
    "headrace_head_block": _Kind("Newest indexed block."),
    "headrace_discrepancies": _Kind("Requests of which chain and database tell differently.", ("kind",)),
    "headrace_unused_prompt_bytes": _Kind("Bytes of prompts that no request names yet."),
    "headrace_linked_nodes": _Kind("Nodes that are linked."),
    "headrace_leads": _Kind("1 while this process leads its relayer, 0 while it stands by."),
    "headrace_store_held": _Kind("1 while the store takes no writes."),
    "headrace_results_held": _Kind("Results that wait until their gas budget pays for their settlement."),
    "headrace_lane_open_transactions": _Kind("Of each of several submitters, what is on its way.", ("sender",)),
    "headrace_relayer_bonded": _Kind("1 while the relayer's bond counts."),
    "headrace_spent_wei": _Kind("Wei that transactions of the last hour can cost at most.", ("sender",)),
    "headrace_spending_paused": _Kind("1 while the spending limit holds transactions back.", ("sender",)),
    "headrace_relayer_balance_wei": _Kind("Wei that the relayer can pay gas with."),
}


class PrometheusMetrics:
    """The `Metrics` port over a registry of its own."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._counters = {
            name: Counter(name, kind.help, kind.labels, registry=self._registry) for name, kind in COUNTERS.items()
        }
        self._histograms = {
            name: Histogram(name, kind.help, kind.labels, buckets=kind.buckets, registry=self._registry)
            for name, kind in HISTOGRAMS.items()
        }
        self._gauges = {
            name: Gauge(name, kind.help, kind.labels, registry=self._registry) for name, kind in GAUGES.items()
        }

    def count(self, name: str, amount: int = 1, **labels: str) -> None:
        counter = self._counters[name]
        (counter.labels(**labels) if labels else counter).inc(amount)

    def observe(self, name: str, value: float, **labels: str) -> None:
        histogram = self._histograms[name]
        (histogram.labels(**labels) if labels else histogram).observe(value)

    def gauge(self, name: str, value: float, **labels: str) -> None:
        gauge = self._gauges[name]
        (gauge.labels(**labels) if labels else gauge).set(value)

    def text(self) -> str:
        """All of it in Prometheus' text format."""
        return generate_latest(self._registry).decode()
