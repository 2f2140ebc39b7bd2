"""What the API refuses, in the words of the command line: the API names fields and paths, a person typed options."""

from __future__ import annotations

import re
from collections.abc import Mapping

from headrace.client import ApiRefused
from headrace.core.errors import sentence

OPTIONS: Mapping[str, str] = {
    "model": "--model",
    "max_output_tokens": "--max-tokens",
    "ttl_s": "--ttl",
    "temperature": "--temperature",
    "top_p": "top_p in the file of --chat",
    "seed": "--seed",
    "stop": "stop in the file of --chat",
    "messages": "messages in the file of --chat",
    "prompt": "the prompt",
    "max_reward_wei": "--max-reward",
    "gas_budget_wei": "--gas-budget",
    "priority_fee_wei": "--priority-fee",
    "relayer_fee_wei": "--max-relayer-fee",
    "callback_gas": "--callback-gas",
    "verifier": "--verifier",
    "k": "--quorum",
    "n": "--quorum",
    "state": "--state",
    "requester": "--requester",
    "limit": "--limit",
}
# By the code of the refusal. A code that is not here keeps the API's own hint.
HINTS: Mapping[str, str] = {
    "INVALID_INPUT": "",
    "UNKNOWN_MODEL": "Correct --model.",
    "DEADLINE_OUT_OF_RANGE": "Choose another --ttl.",
    "PROMPT_TOO_LONG": "Shorten the prompt, or leave out --public.",
    "PAYLOAD_TOO_LARGE": "Shorten the prompt.",
    "NO_NODE_FOR_MODEL": "Choose another --model, or try again later.",
    "NOT_SETTLED": "`headrace request show ID` shows how far it is; try again once it is settled.",
    "NOT_POSTED": "`headrace request show ID` shows how far it is; try again once a block has it.",
    "REQUEST_EXISTS": "`headrace request show ID` shows it.",
    "RELAYER_FEE_TOO_LOW": "Gas became dearer: try again, for a new draft at the fee of now.",
    "SIGNATURE_LAPSED": "Try again.",
    "CREDIT_SHORT": "`headrace credit deposit AMOUNT --account ADDRESS` adds to it; any account may.",
    "GASLESS_NOT_OFFERED": "Leave out --gasless, or ask another relayer (HEADRACE_REQUESTER__API_URL).",
    "NO_SUCH_PATH": "Check that HEADRACE_REQUESTER__API_URL is a relayer's, and of the same version.",
}
_FIELD = re.compile(r"^In (?P<field>\w+)[^:]*: (?P<problem>.*)$", re.DOTALL)
# Names with an underscore are fields wherever they stand; the others are words, too.
_NAMES = re.compile(rf"\b({'|'.join(name for name in OPTIONS if '_' in name)})\b")


def in_options(refusal: ApiRefused) -> str:
    """A refusal, with the options that it is about and a hint that a command line can follow."""
    message = refusal.message.replace("(not public)", "(without --public)")
    match = _FIELD.match(message)
    if match is not None and match["field"] in OPTIONS:
        problem = match["problem"]
        message = f"{OPTIONS[match['field']]} is not taken: {problem[:1].lower()}{problem[1:]}"
        message = message.replace(": input should be", ": it should be")
    message = _NAMES.sub(lambda name: OPTIONS[name[1]], message)
    hint = HINTS.get(refusal.code, refusal.hint)
    return " ".join(sentence(each) for each in (message, hint) if each)
