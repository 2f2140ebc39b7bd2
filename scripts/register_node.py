"""Register a node's signing key with its stake, join the market and set prices: what is missing, and nothing else."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from ape.api import ProviderAPI
from ape.cli import network_option
from eth_account import Account
from eth_account.messages import SignableMessage, encode_typed_data
from eth_utils import is_address, to_checksum_address

from scripts._abi import load_abi
from scripts._chain import (
    PRICE,
    STAKE,
    ChainCommand,
    ChainHandle,
    chain_of,
    deployments_option,
    ether,
    json_option,
    password,
    show,
    test_account_option,
)
from scripts._deployments import Deployment, load_live
from scripts._errors import Failure
from scripts._signers import signer_of
from scripts._transactions import Call, Sender


@dataclass(frozen=True)
class Offer:
    """A model at a price."""

    model: str
    model_id: str
    per_prompt_kib_wei: int
    per_thousand_tokens_wei: int

    @property
    def prices(self) -> tuple[int, int]:
        """The two prices in the contract's order."""
        return self.per_prompt_kib_wei, self.per_thousand_tokens_wei


@click.command(cls=ChainCommand)
@network_option()
@click.option(
    "--keystore",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="The node's encrypted signing key; HEADRACE_KEYSTORE_PASSWORD holds its password.",
)
@click.option("--key", help="The signing key's address, where the keystore is elsewhere.")
@click.option("--key-signature", help="The key's signature over RegisterNode(key, owner), with --key.")
@click.option("--owner", help="Ape account that owns the node [env: HEADRACE_OWNER_PRIVATE_KEY holds a key instead].")
@test_account_option
@click.option(
    "--stake",
    type=STAKE,
    help="Stake, such as 1.5eth (without a unit: ETH); added to where there is less [default: the least].",
)
@click.option("--model", "models", multiple=True, metavar="NAME", help="A model to offer; may be repeated.")
@click.option(
    "--price-per-prompt-kib",
    "kib_prices",
    type=PRICE,
    multiple=True,
    help="Per started KiB of prompt, such as 20000gwei (without a unit: wei): once for all models, or once for each.",
)
@click.option(
    "--price-per-thousand-tokens",
    "token_prices",
    type=PRICE,
    multiple=True,
    help="Per started thousand output tokens, such as 200000gwei (without a unit: wei): once for all models, or once "
    "for each.",
)
@click.option("--metadata-uri", default="", help="Where the node describes itself; read at registration only.")
@deployments_option
@json_option
def cli(
    provider: ProviderAPI,
    keystore: Path | None,
    key: str | None,
    key_signature: str | None,
    owner: str | None,
    test_account: int | None,
    stake: int | None,
    models: tuple[str, ...],
    kib_prices: tuple[int, ...],
    token_prices: tuple[int, ...],
    metadata_uri: str,
    deployments: Path,
    as_json: bool,
) -> None:
    """Register a node, join the market and set prices."""
    chain = chain_of(provider)
    deployment = load_live(deployments, chain.chain_id, chain.web3)
    signing_key = _SigningKey(keystore, key, key_signature)
    offers = _offers(deployment, models, kib_prices, token_prices)
    signer = signer_of(
        "owner",
        provider=provider,
        is_local=chain.is_local,
        alias=owner,
        variable="HEADRACE_OWNER_PRIVATE_KEY",
        test_account=test_account,
    )
    run = _Run(chain, chain.sender(signer), deployment, signing_key)
    run.register(stake, metadata_uri)
    run.join_and_offer(offers)
    run.show(offers, as_json=as_json)


class _SigningKey:
    """The key that a node signs results with; it need be open only to register."""

    def __init__(self, keystore: Path | None, address: str | None, signature: str | None) -> None:
        if (keystore is None) == (address is None):
            raise click.UsageError("Give either --keystore or --key.")
        self._keystore = keystore
        self._signature = signature
        self.address = _checked_address(_address_in(keystore) if keystore else str(address))

    def sign(self, message: SignableMessage) -> bytes:
        if self._keystore is None and self._signature is None:
            raise Failure(f"Key {self.address} is not registered yet: give its --key-signature.")
        signature = self._open(self._keystore).sign_message(message).signature if self._keystore else self._given()
        if _signer_of(message, signature) != self.address:
            raise Failure(f"The signature over RegisterNode is not one of key {self.address} for this owner.")
        return bytes(signature)

    def _given(self) -> bytes:
        try:
            return bytes.fromhex(str(self._signature).removeprefix("0x"))
        except ValueError:
            raise Failure("--key-signature is not hexadecimal.") from None

    def _open(self, keystore: Path) -> Any:
        secret = password("HEADRACE_KEYSTORE_PASSWORD")
        try:
            return Account.from_key(Account.decrypt(json.loads(keystore.read_text("utf-8")), secret))
        except ValueError:
            raise Failure(f"HEADRACE_KEYSTORE_PASSWORD does not open {keystore.name}.") from None


class _Run:
    """What one key still needs, step by step."""

    def __init__(self, chain: ChainHandle, sender: Sender, deployment: Deployment, key: _SigningKey) -> None:
        self._chain = chain
        self._sender = sender
        self._key = key
        self._market = deployment.contracts["InferenceMarket"].address
        self._from_block = deployment.contracts["StakeManager"].block
        self._abi = load_abi("StakeManager")
        address = to_checksum_address(deployment.contracts["StakeManager"].address)
        self._stakes = chain.web3.eth.contract(address, abi=self._abi)
        self._done: list[str] = []

    def register(self, stake: int | None, metadata_uri: str) -> None:
        """Register the key, or top up its stake."""
        node = self._node()
        if node["registeredAt"] == 0:
            value = self._stakes.functions.MIN_STAKE().call() if stake is None else stake
            signature = self._key.sign(self._registration())
            arguments = [self._key.address, metadata_uri, signature]
            self._send("registered", self._call("register the node", "registerNode", arguments, value))
            return
        if node["owner"] != self._sender.address:
            raise Failure(f"Key {self._key.address} is registered by {node['owner']}, not by {self._sender.address}.")
        if node["key"] != self._key.address:
            raise Failure(f"Key {self._key.address} was rotated away: the node signs with {node['key']} now.")
        short = (stake or 0) - (node["stake"] - node["unbonding"])
        if short > 0:
            self._send("stake added", self._call("add stake", "addStake", [self._key.address], short))

    def join_and_offer(self, offers: list[Offer]) -> None:
        """Join the market and set the prices that are not as wished."""
        calls = []
        payee, _ = self._stakes.functions.membershipOf(self._key.address, self._market).call()
        if int(payee, 16) == 0:
            calls.append(self._call("join the market", "joinMarket", [self._key.address, self._market]))
        new = [offer for offer in offers if not self._is_offered(offer)]
        if new:
            columns = [list(column) for column in zip(*(offer.prices for offer in new), strict=True)]
            arguments = [self._key.address, [offer.model_id for offer in new], *columns]
            calls.append(self._call("set prices", "setPrices", arguments))
        self._sender.send_all(calls)
        self._done += ["joined"] * (int(payee, 16) == 0) + [f"priced {offer.model}" for offer in new]

    def show(self, offers: list[Offer], *, as_json: bool) -> None:
        """Print what the node is now."""
        node = self._node()
        payee, _ = self._stakes.functions.membershipOf(self._key.address, self._market).call()
        facts = {
            "node": self._key.address,
            "owner": node["owner"],
            "stake_wei": str(node["stake"]),
            "active": self._stakes.functions.isActive(self._key.address).call(),
            "market": self._market,
            "payee": payee,
            "prices": [self._price_now(offer) for offer in offers],
            "done": self._done,
        }
        rows = [
            ("node", self._key.address),
            ("owner", node["owner"]),
            ("stake", f"{ether(node['stake'])}{'' if facts['active'] else ' (too little: not active)'}"),
            ("market", self._market),
            ("payee", payee),
            *((price["model"], _described(price)) for price in facts["prices"]),
            ("done", ", ".join(self._done) or "nothing was missing"),
        ]
        show(facts, rows, as_json=as_json)

    def _price_now(self, offer: Offer) -> dict[str, Any]:
        _, *prices = self._stakes.functions.priceOf(self._key.address, offer.model_id).call()
        return {
            "model": offer.model,
            "model_id": offer.model_id,
            "per_prompt_kib_wei": str(prices[0]),
            "per_thousand_tokens_wei": str(prices[1]),
            "raise_announced": tuple(prices) != offer.prices,
        }

    def _node(self) -> dict[str, Any]:
        names = ("owner", "registeredAt", "unbondAt", "stake", "unbonding", "key", "misses", "faults")
        return dict(zip(names, self._stakes.functions.nodeOf(self._key.address).call(), strict=True))

    def _is_offered(self, offer: Offer) -> bool:
        offered, *prices = self._stakes.functions.priceOf(self._key.address, offer.model_id).call()
        if not offered:
            return False
        # A raise that was announced already must not be announced again: its notice would start anew.
        return tuple(prices) == offer.prices or self._last_announced(offer) == offer.prices

    def _last_announced(self, offer: Offer) -> tuple[int, int] | None:
        wanted = {"key": self._keys(), "modelId": offer.model_id}
        logs = self._stakes.events.PriceAnnounced.get_logs(from_block=self._from_block, argument_filters=wanted)
        return (logs[-1]["args"]["perPromptKiB"], logs[-1]["args"]["perThousandTokens"]) if logs else None

    def _keys(self) -> list[str]:
        """The keys that the node has had: a price is the node's, whichever of them it was announced under."""
        rotations = self._stakes.events.KeyRotated.get_logs(from_block=self._from_block)
        heirs = {log["args"]["oldKey"]: log["args"]["newKey"] for log in rotations}
        keys = [self._stakes.functions.canonicalNodeOf(self._key.address).call()]
        while keys[-1] in heirs:
            keys.append(heirs[keys[-1]])
        return keys

    def _registration(self) -> SignableMessage:
        domain = {
            "name": "Headrace",
            "version": "1",
            "chainId": self._chain.chain_id,
            "verifyingContract": self._stakes.address,
        }
        types = {"RegisterNode": [{"name": "key", "type": "address"}, {"name": "owner", "type": "address"}]}
        return encode_typed_data(domain, types, {"key": self._key.address, "owner": self._sender.address})

    def _call(self, what: str, function: str, arguments: list[Any], value: int = 0) -> Call:
        return Call(what, self._stakes.address, self._stakes.encode_abi(function, arguments), value, self._abi)

    def _send(self, done: str, call: Call) -> None:
        self._sender.send_all([call])
        self._done.append(done)


def _offers(
    deployment: Deployment, models: tuple[str, ...], kib_prices: tuple[int, ...], token_prices: tuple[int, ...]
) -> list[Offer]:
    columns = []
    for option, prices in (("--price-per-prompt-kib", kib_prices), ("--price-per-thousand-tokens", token_prices)):
        if len(prices) != len(models) and not (models and len(prices) == 1):
            raise click.UsageError(f"Give {option} once for all models, or once for each --model.")
        columns.append(prices if len(prices) == len(models) else prices * len(models))
    return [
        Offer(name, deployment.model_id(name), kib, tokens) for name, kib, tokens in zip(models, *columns, strict=True)
    ]


def _described(price: dict[str, Any]) -> str:
    text = f"{price['per_prompt_kib_wei']} wei/KiB, {price['per_thousand_tokens_wei']} wei/1000 tokens"
    return f"{text} until the raise takes effect" if price["raise_announced"] else text


def _address_in(keystore: Path) -> str:
    try:
        return str(json.loads(keystore.read_text("utf-8"))["address"])
    except (ValueError, KeyError, TypeError):
        raise Failure(f"{keystore.name} is not a keystore with an address in it.") from None


def _checked_address(address: str) -> str:
    if not is_address(address):
        raise Failure(f"{address} is not an address.")
    return to_checksum_address(address)


def _signer_of(message: SignableMessage, signature: bytes) -> str | None:
    try:
        return str(Account.recover_message(message, signature=signature))
    except Exception:  # noqa: BLE001 - a bad signature is raised as many types
        return None
