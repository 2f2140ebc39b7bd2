"""What a client meets beyond the errors that all parts share."""

from __future__ import annotations

from headrace.core.errors import HeadraceError, Refused, sentence


class ApiRefused(Refused):
    """The relayer's API refused; `code` and `http_status` are its own."""

    def __init__(self, code: str, message: str, hint: str, http_status: int) -> None:
        super().__init__(" ".join(sentence(each) for each in (message, hint) if each))
        self.message = message
        self.hint = hint
        self.code = code
        self.http_status = http_status


class NoRelease(Refused):
    """The relayer gave no release and did not say that a node is assigned; nothing was sent."""

    code = "NO_RELEASE"


class WaitEnded(HeadraceError):
    """Waiting ended before the request did. Nothing is lost: it can be waited for again."""

    code = "WAIT_ENDED"


class Untrue(HeadraceError):
    """What the relayer said does not hold against what was asked, its hash, or the chain."""

    code = "UNTRUE"
