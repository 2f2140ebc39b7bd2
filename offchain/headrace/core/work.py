"""How much work a request is expected to be: the unit that fairness and lanes count in.

One unit is an output token of a 7B-class model. Reading a prompt is about eight times cheaper a token than writing an
answer, and a token of English has about four bytes. What is counted is what the request may take, not what it took: it
is known when it is assigned, and nobody gains by asking for more than is needed.
"""

from __future__ import annotations

PROMPT_BYTES_PER_TOKEN = 4
PROMPT_TOKENS_PER_UNIT = 8
_MILLI = 1_000


def expected_work(prompt_bytes: int, max_output_tokens: int, complexity_milli: int) -> int:
    """Units of work of a request, at least 1.

    Args:
        prompt_bytes: of its prompt.
        max_output_tokens: that it may be answered with.
        complexity_milli: of its model, 1,000 = 7B class.
    """
    tokens = max_output_tokens + prompt_bytes // (PROMPT_BYTES_PER_TOKEN * PROMPT_TOKENS_PER_UNIT)
    return max(1, tokens * complexity_milli // _MILLI)
