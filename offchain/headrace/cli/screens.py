"""What commands show. Text that a model or a server wrote is shown as text: no markup, no control characters."""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from eth_utils.address import to_checksum_address
from rich.console import Console
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from headrace.cli.amounts import show_ether, show_wei, with_ether
from headrace.client.audits import AuditReport
from headrace.core.audit import Severity
from headrace.core.callbacks import why_callback_failed
from headrace.core.refusals import moment
from headrace.core.types import Hash32

_STYLES = {Severity.VIOLATION: "bold red", Severity.DIFFERENCE: "red", Severity.VOID: "yellow"}
_ADDRESS = re.compile(r"\b0x[0-9a-f]{40}\b")
# The longest detail that still fits beside a stage's times into 80 columns.
SHORT = 30
_WAITING = {
    "submitted": "sent by the relayer",
    "sent": "included in a block",
    "included": "confirmed",
    "eligible": "looked at by the scheduler",
    "queued": "assigned to a node",
    "assigned": "accepted by the node",
    "computing": "answered",
    "signed": "settled",
}


def printable(text: str) -> str:
    """Text without control and format characters, which a terminal would act on."""
    return "".join(
        char for char in text if char in "\n\t" or unicodedata.category(char) not in ("Cc", "Cf", "Co", "Cs")
    )


def with_checksums(text: str) -> str:
    """Text whose addresses are written as EIP-55 has it, so that a person can compare them with any other tool's."""
    return _ADDRESS.sub(lambda match: to_checksum_address(match[0]), text)


def show_json(console: Console, value: Any) -> None:
    """One JSON document on stdout: a line for programs, indented for a person at a terminal."""
    console.out(json.dumps(value, ensure_ascii=False, indent=2 if console.is_terminal else None), highlight=False)


def show_error(message: str) -> None:
    """One red sentence on stderr."""
    console = Console(stderr=True, soft_wrap=True)
    console.print(Text(with_checksums(printable(message)).replace("\n", " "), style="red"))


def show_rows(console: Console, rows: Iterable[tuple[str, str]]) -> None:
    """A name and a value a line; a hash fits into 80 columns."""
    for name, value in rows:
        console.print(Text.assemble((f"{name:<12} ", "bold"), with_checksums(printable(value))), soft_wrap=True)


class StageLines:
    """One line for each stage that a request reaches, with its time."""

    def __init__(self, console: Console, sent_at_ms: int) -> None:
        self._console = console
        self._sent_at_ms = sent_at_ms
        self._shown: set[tuple[str, int | None]] = set()
        self._is_sent = False
        self.waiting_for = _WAITING["sent"]

    def sent(self, transaction_hash: str) -> None:
        """The requester's own transaction is on its way."""
        self._is_sent = True
        self._line("sent", self._sent_at_ms, [f"transaction {transaction_hash}"])

    def update(self, view: Mapping[str, Any], *, is_silent: bool = False) -> None:
        """Show the stages of a view that were not shown before. A request that is assigned again shows that again.

        Args:
            view: the request.
            is_silent: show none, and only find what it waits for.
        """
        for stage in view["stages"]:
            name, at_ms = stage["stage"], stage["at_ms"]
            if not stage["reached"] or name == "final" or (name == "sent" and self._is_sent):
                continue
            key = (name, at_ms if name in ("assigned", "computing") else None)
            if key not in self._shown and not is_silent:
                self._shown.add(key)
                self._line(name, at_ms, _details(stage, view))
            self.waiting_for = _WAITING.get(name, "")

    def _line(self, stage: str, at_ms: int | None, details: Sequence[str]) -> None:
        """Details that hold a hash or an address go on lines of their own, so that all fits into 80 columns."""
        clock = _time(at_ms) if at_ms is not None else " " * 13
        # Blocks have whole seconds, so one may seem older than its transaction.
        since = f"+{max(0, at_ms - self._sent_at_ms) / 1000:6.2f} s" if at_ms is not None else ""
        mark = ("✘ ", "yellow") if stage == "closed" else ("✔ ", "green")
        short = " ".join(each for each in details if len(each) <= SHORT)
        line = Text.assemble(mark, (f"{stage:<10}", "bold"), f"{clock}  {since:<9}  ", (printable(short), "dim"))
        line.rstrip()
        self._console.print(line, soft_wrap=True)
        for each in details:
            if len(each) > SHORT:
                self._console.print(Text(f"  {with_checksums(printable(each))}", style="dim"), soft_wrap=True)


def show_answer(console: Console, text: str, *, verified: bool) -> None:
    """The model's words."""
    title = "answer, confirmed by the market" if verified else "answer, of the settled hash"
    console.print(Panel(Text(printable(text)), title=title, title_align="left", border_style="green"))


def show_settlement(console: Console, view: Mapping[str, Any], gas: Mapping[str, int]) -> None:
    """Transactions and who was paid what, to the wei.

    Args:
        console: where.
        view: the request.
        gas: gas used by transaction hash, for those that are known.
    """
    settlement = view["settlement"]
    is_paid = settlement["outcome"] == "fulfilled"
    rows = [("request", view["request_id"])]
    ending = "settled in" if is_paid else "refunded in"
    for name, hash_ in (("posted in", view["transaction_hash"]), (ending, settlement["transaction_hash"])):
        rows.append((name, hash_))
        if hash_ in gas:
            rows.append(("", f"{gas[hash_]:,} gas"))
    if settlement["batch_size"]:
        rows.append(("batch of", str(settlement["batch_size"])))
    if is_paid:
        rows += [("answered by" if i == 0 else "", node) for i, node in enumerate(_answerers(view))]
        rows += _paid_rows(view)
    rows.append(("refund", show_wei(int(settlement["refund_wei"]))))
    rows.append(("escrow", show_wei(int(view["escrow_wei"]))))
    show_rows(console, [*rows, *_callback_rows(view)])


def _paid_rows(view: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    nodes_wei, nodes = int(view["settlement"]["node_wei"]), view["params"]["k"]
    yield "nodes got" if nodes else "node got", show_wei(nodes_wei)
    if nodes:
        yield "", f"{nodes} nodes, {show_ether(nodes_wei // nodes)} each"
    yield "relayer got", show_wei(int(view["settlement"]["relayer_wei"]))


def _callback_rows(view: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    callback = view["settlement"]["callback"]
    if callback is None:
        return
    if callback["made"]:
        yield "callback", f"made, block {callback['block_number']}"
        return
    yield "callback", "failed; the answer is paid and final all the same"
    yield "", why_callback_failed(callback["reason"])
    yield "", f"again with: headrace request retry-callback {view['request_id']}"


def show_request(console: Console, view: Mapping[str, Any]) -> None:
    """A request with its stages, attempts and money."""
    rows = [
        ("request", view["request_id"]),
        ("state", view["state"]),
        ("model", view["model_name"] or view["model_id"]),
        ("lane", view["lane"]),
        *_quorum_rows(view),
        ("requester", view["requester"]),
        ("deadline", moment(view["effective_deadline_s"])),
    ]
    if view["posting"]:
        rows.append(("relayer fee", show_wei(int(view["posting"]["relayer_fee_wei"]))))
    if view["settlement"] is None and view["state"] != "unposted":
        rows += [("refund from", moment(view["refund_from_s"])), ("escrow", show_wei(int(view["escrow_wei"])))]
    show_rows(console, [*rows, *_cancel_rows(view)])
    posting = view["posting"]
    lines = StageLines(console, posting["submitted_at_ms"] if posting else view["included_at_s"] * 1000)
    if not posting:
        lines.sent(view["transaction_hash"])
    lines.update(view)
    if posting and posting["reason"]:
        console.print(Text(printable(with_ether(posting["reason"])), style="yellow"))
    _show_attempts(console, view)
    if view["settlement"]:
        show_settlement(console, view, {})


def _show_attempts(console: Console, view: Mapping[str, Any]) -> None:
    """What nodes made of it, and why no node has it."""
    for attempt in view["assignments"]:
        detail = f" ({attempt['detail']})" if attempt["detail"] else ""
        text = f"  attempt {attempt['attempt']}: {attempt['state']}{detail}, round {attempt['round']}"
        console.print(Text(printable(text), style="dim"), soft_wrap=True)
        console.print(Text(with_checksums(printable(f"    node {attempt['node']}")), style="dim"), soft_wrap=True)
    if view["params"]["k"]:
        for vote in view["results"]:
            text = f"  vote, round {vote['round']}: node {vote['node']}"
            console.print(Text(with_checksums(printable(text)), style="dim"), soft_wrap=True)
            console.print(Text(printable(f"    hash {vote['result_hash']}"), style="dim"), soft_wrap=True)
    if view["why_unassigned"]:
        why = Text(printable(f"{view['decision']['reason']}: {view['why_unassigned']}"), style="yellow")
        console.print(why)


def _quorum_rows(view: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    if view["params"]["k"]:
        yield "quorum", f"{view['params']['k']} nodes must agree, of at most {view['params']['n']}"


def _answerers(view: Mapping[str, Any]) -> list[str]:
    """Who signed the result: one node, or those of a quorum that agree."""
    result = view["result"]
    if not result:
        return []
    return [each["node"] for each in view["results"] if each["round"] == result["round"]]


def _cancel_rows(view: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    if view["cancel_announced_at_s"] is not None:
        yield "cancel", f"announced, in effect since {moment(view['cancel_announced_at_s'])}"
    if view["released_until_s"] is not None and view["settlement"] is None:
        yield "released", f"for a cancel until {moment(view['released_until_s'])}"


def show_requests(console: Console, requests: Sequence[Mapping[str, Any]], prompts: Mapping[Hash32, str]) -> None:
    """A list of requests, with their prompts as far as they are known, by hash."""
    if not requests:
        console.print("No requests.")
        return
    for each in requests:
        console.print(Text(printable(each["request_id"]), style="bold"), soft_wrap=True)
        included = f"{'in no block yet':<23}" if each["included_at_s"] is None else moment(each["included_at_s"])
        escrow = show_ether(int(each["escrow_wei"]))
        console.print(Text(f"  {each['state']:<10} {each['lane']:<9} {included}  {escrow}"), soft_wrap=True)
        # A relayer of an earlier version tells neither name nor hash.
        prompt = " ".join(printable(prompts.get(each.get("prompt_hash", ""), "")).split())
        asked = Text(f"  {printable(each.get('model_name') or each['model_id'])}  {prompt}".rstrip(), style="dim")
        console.print(asked, no_wrap=True, overflow="ellipsis", crop=True)


def show_audit(console: Console, report: AuditReport) -> None:
    """What an audit found."""
    rounds = with_checksums(f"rounds {report.first}..{report.last} of relayer {report.relayer}")
    if not report.findings:
        console.print(Text(f"✔ {rounds}: what was recorded is what the snapshots give.", style="green"), soft_wrap=True)
        return
    table = Table(title=rounds, title_justify="left", padding=(0, 1))
    for column in ("round", "severity", "field", "expected", "got"):
        table.add_column(column, overflow="fold")
    for finding in report.findings:
        table.add_row(
            str(finding.round),
            Text(finding.severity, style=_STYLES[finding.severity]),
            *(Text(with_checksums(printable(text))) for text in (finding.field, finding.expected, finding.got)),
        )
    console.print(table)


def _details(stage: Mapping[str, Any], view: Mapping[str, Any]) -> list[str]:
    name = stage["stage"]
    if name in ("included", "settled", "closed"):
        if stage["block_number"] is None:
            return [str(stage["note"])]
        is_telling = name == "closed" or "callback" in str(stage["note"])
        ending = [str(stage["note"]) + ","] if is_telling else []
        hash_ = stage.get("transaction_hash")
        transaction = [f"transaction {hash_}"] if hash_ and name != "included" else []
        return [*ending, f"block {stage['block_number']}", *transaction]
    if name == "sent":
        return [f"transaction {stage['transaction_hash']}"]
    attempts = view["assignments"]
    if name in ("assigned", "computing") and attempts:
        # Of a single request only the last attempt counts; of a quorum all of its last round.
        round_, single = attempts[-1]["round"], not view["params"]["k"]
        nodes = [each["node"] for each in attempts if each["round"] == round_]
        return [f"round {round_}", *(f"node {node}" for node in (nodes[-1:] if single else nodes))]
    if name == "signed" and view["result"]:
        return [f"{view['result']['result_bytes']} bytes", f"hash {view['result']['result_hash']}"]
    return [str(stage["note"])]


def _time(at_ms: int) -> str:
    """The time of day in UTC, as all times are that are shown."""
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%H:%M:%S.%f")[:-3] + "Z"
