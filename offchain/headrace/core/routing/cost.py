"""What a request costs at a node: the formulas, for one of each. `candidates` and `scorers` have them over many nodes.

    cost = reward + expected_ms · delay_wei_per_ms + miss · (reward + miss_delay_ms · delay_wei_per_ms)

The gas share is the same at every node, so it is no part of the choice; it is added where a cost is written down.

Time is the relayer's median for the node and model by the tokens that were asked, or, as long as there is none, the
node's own word for a 7B-class answer times the model's complexity. A model that is not loaded is loaded first. A node
whose places are all taken takes up to twice as long. A second costs the priority fee over the seconds that are left,
whatever gas costs, and no less than the policy's floor. What a miss loses, the time of a lease and the worth of the
answer, weighs by how often the node missed: the more the larger the reward.

Caps keep sums within 63 bits; they are far above what decides anything.
"""

from __future__ import annotations

from headrace.core.cycle import NodeView, Offer, Policy, WaitingRequest

MOST_REWARD_WEI = 2**59
MOST_MS = 2**20
MOST_DELAY_WEI_PER_MS = 2**39
MOST_FEE_WEI = 2**62
MOST_TOKENS = 2**24
MOST_COMPLEXITY_MILLI = 2**24
LOAD_MS_PER_MB = 2
"""Loading a model: 500 MB a second, a disk's pace."""
_PRIOR_MISSES, _PRIOR_TRIES = 1, 20
"""A node of which nothing is known is taken to miss one of twenty."""


def expected_ms(request: WaitingRequest, node: NodeView, offer: Offer, placed: int = 0) -> int:
    """Milliseconds from assignment to answer, by the median.

    Args:
        request: what is asked.
        node: who would answer.
        offer: the node's, of the request's model.
        placed: how many the node was given before it in this cycle.
    """
    if offer.us_per_token > 0:
        busy_ms = min(request.max_output_tokens, MOST_TOKENS) * min(offer.us_per_token, MOST_MS * 1000) // 1000
    else:
        busy_ms = min(node.avg_latency_ms, MOST_MS) * min(request.complexity_milli, MOST_COMPLEXITY_MILLI) // 1000
    cold_ms = 0 if offer.is_warm else min(MOST_MS, min(request.required_memory_mb, MOST_MS) * LOAD_MS_PER_MB)
    places = max(1, node.max_in_flight)
    taken = min(node.in_flight + placed, places)
    return min(MOST_MS, min(busy_ms, MOST_MS) * (places + taken) // places + cold_ms)


def delay_wei_per_ms(request: WaitingRequest, policy: Policy, now_ms: int) -> int:
    """What a millisecond of waiting costs."""
    left_s = max(1, request.deadline_s - now_ms // 1000)
    delay_wei_per_s = max(policy.least_delay_wei_per_s, min(request.priority_fee_wei, MOST_FEE_WEI) // left_s)
    return min(MOST_DELAY_WEI_PER_MS, delay_wei_per_s // 1000)


def miss_milli(answered: int, missed: int) -> int:
    """How often a node misses, in thousandths."""
    return 1000 * (missed + _PRIOR_MISSES) // (answered + missed + _PRIOR_TRIES)


def cost_wei(request: WaitingRequest, node: NodeView, reward_wei: int, ms: int, policy: Policy, now_ms: int) -> int:
    """The cost of a route without its gas share."""
    reward = min(reward_wei, MOST_REWARD_WEI)
    delay = delay_wei_per_ms(request, policy, now_ms)
    at_stake = min(MOST_REWARD_WEI, reward + min(policy.miss_delay_ms, MOST_MS) * delay)
    return reward + ms * delay + at_stake // 1000 * miss_milli(node.answered, node.missed)
