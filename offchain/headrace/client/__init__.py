"""The Python client: submit, wait, verify."""

from headrace.client.answers import Answer
from headrace.client.client import HeadraceClient
from headrace.client.drafts import Draft, Wanted
from headrace.client.errors import ApiRefused, NoRelease, Untrue, WaitEnded
from headrace.client.gasless import GaslessRequest, fair_fee_wei
from headrace.client.sender import ChainSender, TransactionSender

__all__ = [
    "Answer",
    "ApiRefused",
    "ChainSender",
    "Draft",
    "GaslessRequest",
    "HeadraceClient",
    "NoRelease",
    "TransactionSender",
    "Untrue",
    "WaitEnded",
    "Wanted",
    "fair_fee_wei",
]
