"""Register a relayer with its bond and endpoint: what is missing, and nothing else."""

from pathlib import Path
from typing import Any

import click
from ape.api import ProviderAPI
from ape.cli import network_option
from eth_utils import to_checksum_address

from scripts._abi import load_abi
from scripts._chain import (
    STAKE,
    ChainCommand,
    HttpUrl,
    chain_of,
    deployments_option,
    ether,
    json_option,
    show,
    test_account_option,
)
from scripts._deployments import load_live
from scripts._errors import Failure
from scripts._signers import signer_of
from scripts._transactions import Call


@click.command(cls=ChainCommand)
@network_option()
@click.option("--relayer", help="Ape account of the relayer [env: HEADRACE_RELAYER_PRIVATE_KEY holds a key instead].")
@test_account_option
@click.option(
    "--bond",
    type=STAKE,
    help="Bond, such as 1.5eth (without a unit: ETH); added to where there is less [default: the least].",
)
@click.option(
    "--endpoint",
    required=True,
    type=HttpUrl(),
    metavar="URL",
    help="Where the relayer's API is served, such as https://relayer.example.",
)
@deployments_option
@json_option
def cli(
    provider: ProviderAPI,
    relayer: str | None,
    test_account: int | None,
    bond: int | None,
    endpoint: str,
    deployments: Path,
    as_json: bool,
) -> None:
    """Register a relayer."""
    chain = chain_of(provider)
    contract = load_live(deployments, chain.chain_id, chain.web3).contracts["StakeManager"]
    signer = signer_of(
        "relayer",
        provider=provider,
        is_local=chain.is_local,
        alias=relayer,
        variable="HEADRACE_RELAYER_PRIVATE_KEY",
        test_account=test_account,
    )
    abi = load_abi("StakeManager")
    stakes = chain.web3.eth.contract(to_checksum_address(contract.address), abi=abi)
    held, registered_at, unbond_at, _ = stakes.functions.relayerOf(signer.address).call()
    if unbond_at != 0:
        raise Failure(f"Relayer {signer.address} is unbonding; it can register again once its bond is withdrawn.")
    known_endpoint = _endpoint(stakes, signer.address, contract.block) if registered_at else endpoint
    if known_endpoint != endpoint:
        raise Failure(
            f"Relayer {signer.address} is registered at {known_endpoint}; another endpoint needs it to unbond first."
        )
    missing: dict[str, Call] = {}
    if registered_at == 0:
        value = stakes.functions.MIN_BOND().call() if bond is None else bond
        data = stakes.encode_abi("registerRelayer", [endpoint])
        missing["registered"] = Call("register the relayer", stakes.address, data, value, abi)
    elif bond is not None and held < bond:
        data = stakes.encode_abi("addBond")
        missing["bond added"] = Call("add to the bond", stakes.address, data, bond - held, abi)
    chain.sender(signer).send_all(list(missing.values()))
    held = stakes.functions.relayerOf(signer.address).call()[0]
    facts = {
        "relayer": signer.address,
        "bond_wei": str(held),
        "bonded": stakes.functions.isBonded(signer.address).call(),
        "endpoint": endpoint,
        "done": list(missing),
    }
    rows = [
        ("relayer", signer.address),
        ("bond", f"{ether(held)}{'' if facts['bonded'] else ' (too little: not bonded)'}"),
        ("endpoint", endpoint),
        ("done", ", ".join(missing) or "nothing was missing"),
    ]
    show(facts, rows, as_json=as_json)


def _endpoint(stakes: Any, relayer: str, from_block: int) -> str:
    logs = stakes.events.RelayerRegistered.get_logs(from_block=from_block, argument_filters={"relayer": relayer})
    return str(logs[-1]["args"]["endpoint"])
