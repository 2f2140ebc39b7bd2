"""What a person sees while a request is waited for: where it stands, and why it waits. Standard output stays clean."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.status import Status
from rich.text import Text

from headrace.cli import screens
from headrace.client import ApiRefused
from headrace.core.errors import HeadraceError, sentence
from headrace.core.refusals import moment
from headrace.core.types import Hash32
from headrace.ports import Clock

# Without a terminal to redraw: a first line when a step takes this long, then one again after each of the longer times.
QUIET_MS = 10_000
AGAIN_MS = 30_000
# Reasons may change with each cycle.
GAP_MS = 5_000


@dataclass
class Progress:
    """What is known of a request while it is on its way, for who waits and for who interrupts the waiting.

    `step`: `drafted`: nothing was sent; `sending`: it may be posted; `sent`: it is; `submitted`: its relayer posts it.
    """

    clock: Clock
    request_id: Hash32 = ""
    step: str = "drafted"
    deadline_s: int = 0
    state: str = ""
    why: str = ""
    console: Console | None = None
    status: Status | None = None
    _what: str = ""
    _since_ms: int = 0
    _said: str = ""
    _said_at_ms: int | None = None

    def sent(self, what: str) -> None:
        """It is in no block yet."""
        self._wait(self.step, what, "")

    def view(self, view: Mapping[str, Any], what: str) -> None:
        """The relayer shows it.

        Args:
            view: of the request.
            what: the next stage, as a clause; empty when it waits for none.
        """
        why = f"{view['decision']['reason']}: {view['why_unassigned']}" if view["why_unassigned"] else ""
        if why and view["decision"]["kind"] == "too_late":
            what = f"refunded, from {moment(view['refund_from_s'])} on"
        self._wait(str(view["state"]), what, why)

    def silence(self, exc: HeadraceError) -> None:
        """The relayer shows nothing."""
        if isinstance(exc, ApiRefused) and exc.code == "NOT_FOUND":
            self._wait(self.step, "seen by its relayer", "")
        else:
            self._wait(self.state or self.step, "known how it fares", sentence(str(exc)))

    def _wait(self, state: str, what: str, why: str) -> None:
        now_ms = self.clock.now_ms()
        if (state, what) != (self.state, self._what):
            self.state, self._what, self._since_ms = state, what, now_ms
            self._said_at_ms = None
        self.why = why
        if what:
            self._show(now_ms)

    def _show(self, now_ms: int) -> None:
        waited_ms = now_ms - self._since_ms
        reason = f". {self.why}" if self.why else ""
        text = screens.printable(f"{self.state}, waiting until it is {self._what} ({waited_ms // 1000} s){reason}")
        if self.status is not None:
            self.status.update(Text(text))
        elif self.console is not None and self._is_due(now_ms, waited_ms):
            self._said, self._said_at_ms = self.why, now_ms
            self.console.print(Text(f"… {text}"), soft_wrap=True)

    def _is_due(self, now_ms: int, waited_ms: int) -> bool:
        if self._said_at_ms is None:
            return bool(self.why) or waited_ms >= QUIET_MS
        since_ms = now_ms - self._said_at_ms
        return since_ms >= AGAIN_MS or (self.why != self._said and since_ms >= GAP_MS)


@contextmanager
def shown(progress: Progress, console: Console, *, as_json: bool) -> Iterator[None]:
    """Show progress: a line that is redrawn where there is a terminal, lines of their own on stderr elsewhere.

    A terminal that shows the stages too is redrawn by the console that writes these, or they would be in each other's
    way.
    """
    errors = Console(stderr=True)
    redrawn = console if console.is_terminal and not as_json else errors
    if not redrawn.is_terminal or (redrawn is errors and not as_json):
        progress.console = errors
        yield
        return
    with redrawn.status("waiting …") as status:
        progress.status = status
        try:
            yield
        finally:
            progress.status = None


def show_interrupted(progress: Progress) -> None:
    """What was left behind by who does not wait any more, on stderr."""
    console = Console(stderr=True)
    for line in _left(progress):
        console.print(Text(screens.printable(line)), soft_wrap=True)


def _left(progress: Progress) -> Iterator[str]:
    id_ = progress.request_id
    if progress.step == "drafted":
        yield "Interrupted. Nothing was sent."
        return
    if progress.step == "sending":
        yield f"Interrupted while it was sent: the request {id_} may be posted, and then goes on without you."
    else:
        done = "posted" if progress.step == "sent" else "handed in, its relayer posts it,"
        deadline = moment(progress.deadline_s)
        yield f"Interrupted. The request {id_} is {done} and goes on without you; its deadline is {deadline}."
    if progress.why:
        yield f"It is {progress.state}. {progress.why}"
    yield f"look at it   headrace request show {id_}"
    yield f"cancel it    headrace request cancel {id_}"
