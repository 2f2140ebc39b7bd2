"""What the scripts share on the way to a chain: the command, its errors, and the options."""

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import click
from ape.api import ProviderAPI
from ape.cli import ConnectedProviderCommand
from ape.cli.options import NETWORK_META_KEY
from ape.exceptions import ApeException, NetworkMismatchError, ProviderNotConnectedError
from ape.logging import CLICK_ECHO_KWARGS
from eth_utils import from_wei
from requests.exceptions import RequestException
from web3 import Web3
from web3.exceptions import Web3Exception

from scripts._errors import Failure, explain
from scripts._parameters import local_chain_ids
from scripts._signers import Signer
from scripts._transactions import Sender

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True)
class ChainHandle:
    """A connected chain, and how long its blocks let one wait."""

    web3: Web3
    chain_id: int
    is_local: bool

    def sender(self, signer: Signer) -> Sender:
        """Return a sender of a signer's transactions."""
        poll_s, timeout_s = (0.05, 60) if self.is_local else (1, 600)
        return Sender(self.web3, signer, poll_s=poll_s, timeout_s=timeout_s)


class ChainCommand(ConnectedProviderCommand):
    """A command with a connected `provider` that turns what a node or Ape raises into one sentence."""

    def invoke(self, ctx: click.Context) -> Any:
        # Ape's own words would otherwise be mixed with the JSON on stdout.
        CLICK_ECHO_KWARGS.update({level: {"err": True} for level in ("debug", "info", "success", "warning")})
        url = _url_of(ctx)
        try:
            # Ape would otherwise start a geth where a local URL does not answer.
            if url is not None:
                Web3(Web3.HTTPProvider(url)).eth.get_block_number()
            return super().invoke(ctx)
        except click.ClickException:
            raise
        except (ProviderNotConnectedError, RequestException, OSError) as error:
            raise Failure(f"No node answers at {_shown(url)}.") from error
        except NetworkMismatchError as error:
            raise Failure(str(error)) from error
        except ApeException as error:
            raise Failure(f"{type(error).__name__}: {error}") from error
        except Web3Exception as error:
            raise Failure(f"The node refused: {explain(error, ())}.") from error


def chain_of(provider: ProviderAPI) -> ChainHandle:
    """Return the chain behind Ape's provider, once it is the one that `--network` names."""
    # Ape's own provider.chain_id may be what its settings say rather than what the node says.
    chain_id = provider.web3.eth.chain_id
    is_local = chain_id in local_chain_ids()
    if provider.network.is_dev and not is_local:
        raise Failure(f"The network is called '{provider.network.name}', but the node is on chain {chain_id}.")
    return ChainHandle(provider.web3, chain_id, is_local)


class Amount(click.ParamType):
    """An amount on the command line, in wei in the code.

    Args:
        bare: the unit of a number without one.
        example: of an amount that fits.
        most_wei: the most that it can be.
    """

    name = "amount"

    def __init__(self, bare: str, example: str, most_wei: int) -> None:
        self._bare, self._example, self._most_wei = bare, example, most_wei

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        # Only now: it brings the whole command line along.
        from headrace.cli.amounts import parse_wei
        from headrace.core.errors import InvalidInput

        text = str(value).strip()
        is_bare = text[-1:].isdecimal()
        try:
            wei = parse_wei(f"{text}{self._bare}" if is_bare else text, "it")
        except InvalidInput:
            self.fail(f"{value!r} is no amount of whole wei: write one such as {self._example}.", param, ctx)
        if wei > self._most_wei:
            meant = f"; without a unit it is in {self._bare}" if is_bare else ""
            self.fail(f"{value} is more than it can be{meant}: write one such as {self._example}.", param, ctx)
        return wei


# Of stake and bond. More ETH than there is was meant in wei.
STAKE = Amount("eth", "1eth or 500000000gwei", 10**9 * 10**18)
# As the contract holds it.
PRICE = Amount("wei", "20000gwei or 20000000000000wei", 2**80 - 1)


class HttpUrl(click.ParamType):
    """Where something is served on the web."""

    name = "url"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        text = str(value)
        if not _is_http(text):
            self.fail(
                f"{text!r} is no address of an API: write http:// or https:// with a host, such as "
                "https://relayer.example.",
                param,
                ctx,
            )
        return text


def deployments_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add --deployments."""
    return click.option(
        "--deployments",
        type=click.Path(file_okay=False, path_type=Path),
        envvar="HEADRACE_CHAIN__DEPLOYMENTS",
        default=ROOT / "deployments",
        help="Folder of the deployment files [default: deployments; env: HEADRACE_CHAIN__DEPLOYMENTS]",
    )(function)


def test_account_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add --test-account."""
    return click.option(
        "--test-account", type=click.IntRange(min=0), help="Sign with this test account (local chains only)."
    )(function)


def json_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add --json."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON.")(function)


def show(facts: dict[str, Any], rows: Sequence[tuple[str, str]], *, as_json: bool) -> None:
    """Print facts as JSON, or rows as a table."""
    if as_json:
        click.echo(json.dumps(facts, indent=2))
        return
    width = max(len(name) for name, _ in rows)
    for name, value in rows:
        click.echo(f"{name:<{width}}  {value}")


def ether(wei: int) -> str:
    """Return wei as people read it."""
    return f"{from_wei(wei, 'ether')} ETH"


def password(variable: str) -> str:
    """Return a password that only the environment may hold."""
    try:
        return os.environ[variable]
    except KeyError:
        raise Failure(f"Set {variable} to the password of the keystore.") from None


def _is_http(text: str) -> bool:
    try:
        parts = urlsplit(text)
        _ = parts.port  # raises for one that is no port
    except ValueError:
        return False
    is_plain = text.isascii() and text.isprintable() and " " not in text
    return (
        is_plain and parts.scheme in ("http", "https") and bool(parts.hostname) and not (parts.query or parts.fragment)
    )


def _url_of(ctx: click.Context) -> str | None:
    """Return the node's URL, where `--network` holds one."""
    provider = ctx.meta.get(NETWORK_META_KEY, {}).get("provider") or ctx.params.get("network")
    url = provider.provider_settings.get("uri") if isinstance(provider, ProviderAPI) else None
    return url if isinstance(url, str) and url.startswith("http") else None


def _shown(url: str | None) -> str:
    # The rest of a URL may hold an access key.
    parts = urlsplit(url or "")
    host = f"{parts.scheme}://{parts.hostname}{f':{parts.port}' if parts.port else ''}"
    return host if parts.hostname else "the network that --network names"
