"""The exception tree of Headrace.

    HeadraceError
    ├── ConfigurationError      the operator must change a setting, a key or a deployment
    ├── InvalidInput            the caller sent something that can never work as it is (HTTP 400)
    │   ├── UnknownModel
    │   └── SignatureMismatch   a signature is not by whom it must be
    ├── NotFound                there is no such thing (HTTP 404)
    ├── NotAllowed              the caller may not have it (HTTP 403)
    ├── Refused                 it cannot be taken on now
    │   ├── DeadlineInfeasible  before dispatch: it cannot be made (HTTP 504)
    │   ├── QueueFull           (HTTP 429)
    │   ├── NotBonded           by a relayer whose bond does not count (HTTP 409)
    │   └── ExpiredContext      before signing: what was decided on no longer holds (HTTP 409)
    ├── Unavailable             something that is needed does not answer (HTTP 503)
    │   ├── ChainUnavailable
    │   ├── BackendUnavailable
    │   ├── SignerUnavailable
    │   │   └── UntrueSigner    a remote signer's answer is not what was asked of it; nothing of it is used
    │   ├── NotLeader           another process leads the relayer, so this one changes nothing
    │   └── Unknown             an effect may or may not have happened; never treated as failed
    └── IllegalTransition       a state machine was asked for a step that it does not have: a fault in the program

`code` is stable and meant for programs; the message tells a person what happened, to what, and what to do.
"""

from __future__ import annotations

import re

_WORD = re.compile(r"[a-z][a-z'’-]*(?=[,:;.]?(?: |$))")


def sentence(text: str) -> str:
    """A message as a sentence: a capital letter, unless it begins with a name or a value, and a full stop."""
    text = text.strip()
    if _WORD.match(text):
        text = text[0].upper() + text[1:]
    return text if text.endswith((".", "!", "?", "`")) else f"{text}."


class HeadraceError(Exception):
    """Root of all errors that Headrace raises on purpose."""

    code = "HEADRACE_ERROR"
    http_status = 500


class ConfigurationError(HeadraceError):
    """A setting, key, account or deployment is missing or wrong."""

    code = "CONFIGURATION"


class InvalidInput(HeadraceError):
    """The input can never be accepted as it is."""

    code = "INVALID_INPUT"
    http_status = 400


class UnknownModel(InvalidInput):
    """No registered model has this name or id."""

    code = "UNKNOWN_MODEL"


class SignatureMismatch(InvalidInput):
    """A signature does not recover to the address that had to sign."""

    code = "SIGNATURE_MISMATCH"


class NotFound(HeadraceError):
    """Nothing is known under this id."""

    code = "NOT_FOUND"
    http_status = 404


class NotAllowed(HeadraceError):
    """The caller has not proven a right to this."""

    code = "NOT_ALLOWED"
    http_status = 403


class Refused(HeadraceError):
    """It cannot be taken on now; the reason says whether later is better."""

    code = "REFUSED"
    http_status = 409


class NoRoom(Refused):
    """What was handed in cannot be kept now; later it may."""

    code = "NO_ROOM"
    http_status = 503


class DeadlineInfeasible(Refused):
    """Before dispatch: the deadline cannot be made."""

    code = "DEADLINE_INFEASIBLE"
    http_status = 504


class QueueFull(Refused):
    """A bounded queue is full."""

    code = "QUEUE_FULL"
    http_status = 429


class NotBonded(Refused):
    """The relayer's bond does not count (any more), so it takes nothing new."""

    code = "RELAYER_NOT_BONDED"

    def __init__(self, relayer: str) -> None:
        super().__init__(
            f"the relayer {relayer} takes no new requests, since its bond does not count (any more): ask another one"
        )


class ExpiredContext(Refused):
    """Before signing: what was decided on no longer holds."""

    code = "EXPIRED_CONTEXT"


class Unavailable(HeadraceError):
    """Something that is needed does not answer; trying again may help."""

    code = "UNAVAILABLE"
    http_status = 503


class ChainUnavailable(Unavailable):
    """The chain's RPC endpoint does not answer or answers with an error."""

    code = "CHAIN_UNAVAILABLE"


class BackendUnavailable(Unavailable):
    """The model server of a node does not answer."""

    code = "BACKEND_UNAVAILABLE"


class StoreUnavailable(Unavailable):
    """The store takes nothing now, as its disk is full or another process keeps it locked; nothing of the call is
    kept."""


class SignerUnavailable(Unavailable):
    """The signer of a key gives no signature now; what was to be signed is not signed, and not sent."""

    code = "SIGNER_UNAVAILABLE"


class UntrueSigner(SignerUnavailable):
    """A remote signer answers with what was not asked of it. Nothing of it is used, as if there were no answer."""

    code = "SIGNER_UNTRUE"


class NotLeader(Unavailable):
    """Another process leads the relayer: this one stands by, or was overtaken, and its store takes nothing from it."""

    code = "NOT_LEADER"


class Unknown(Unavailable):
    """An effect may or may not have happened. Unknown is not failed: ask again, never assume."""

    code = "UNKNOWN"


class IllegalTransition(HeadraceError):
    """A state machine was asked for a step that it does not have."""

    code = "ILLEGAL_TRANSITION"
