"""What services and commands open in the same way, by the settings: a role's key, here or remote, and the chain.

Adapters are imported when they are needed, so that a command starts without those of another.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Literal
from urllib.parse import urlsplit

from headrace.core.errors import ConfigurationError
from headrace.ports import Signer
from headrace.settings import PREFIX, DaemonKeySettings, KeySettings, Settings

if TYPE_CHECKING:
    from pydantic import SecretStr

    from headrace.adapters.web3_chain import Web3Chain
    from headrace.adapters.web3signer import Web3Signer
    from headrace.ports import Metrics

Role = Literal["relayer", "node", "requester", "owner", "attestation", "watcher"]


def open_signer(settings: Settings, role: Role) -> Signer:
    """The key of a role.

    Raises:
        ConfigurationError: there is none, or it cannot be used; the message names the setting.
    """
    signer = _open(getattr(settings, role).key, getattr(settings, f"{role}_private_key"), role, "KEY")
    if signer is None:
        key, keystore = f"{PREFIX}{role.upper()}_PRIVATE_KEY", f"{PREFIX}{role.upper()}__KEY__KEYSTORE"
        raise ConfigurationError(f"the {role} has no key: set {keystore} to a keystore file, or {key}")
    return signer


def open_submitter(settings: Settings) -> Signer | None:
    """The key that sends a relayer's transactions and pays their gas; None when that is the relayer's own.

    Raises:
        ConfigurationError: it cannot be used; the message names the setting.
    """
    return _open(settings.relayer.submitter, settings.relayer_submitter_private_key, "relayer", "SUBMITTER")


def open_further_submitters(settings: Settings) -> list[Signer]:
    """The keys that send beside the submitter, each under its own nonces.

    Raises:
        ConfigurationError: one cannot be used, or two are the same, or there is no submitter that they are beside.
    """
    first = open_submitter(settings)
    sections = settings.relayer.further_submitters
    if sections and first is None:
        raise ConfigurationError(
            f"{PREFIX}RELAYER__FURTHER_SUBMITTERS are beside a submitter: set {PREFIX}RELAYER__SUBMITTER__KEYSTORE, too"
        )
    further = []
    taken = {first.address, open_signer(settings, "relayer").address} if first else set()
    for number, section in enumerate(sections):
        signer = _open(section, None, "relayer", f"FURTHER_SUBMITTERS__{number}")
        if signer is None:
            raise ConfigurationError(f"{PREFIX}RELAYER__FURTHER_SUBMITTERS names no key at place {number}: correct it")
        if signer.address in taken:
            raise ConfigurationError(
                f"{PREFIX}RELAYER__FURTHER_SUBMITTERS names {signer.address} at place {number}, which is another "
                "submitter or the relayer itself: each must have a key of its own"
            )
        taken.add(signer.address)
        further.append(signer)
    return further


def open_payer(settings: Settings) -> Signer | None:
    """The key that pays the gas when a node settles by itself; None when that is the node's own.

    Raises:
        ConfigurationError: it cannot be used; the message names the setting.
    """
    return _open(settings.node.payer, settings.node_payer_private_key, "node", "PAYER")


def _open(section: KeySettings, secret: SecretStr | None, role: Role, name: str) -> Signer | None:
    from headrace.adapters.keystore import load_signer

    prefix = f"{PREFIX}{role.upper()}"
    key = f"{prefix}_PRIVATE_KEY" if name == "KEY" else f"{prefix}_{name}_PRIVATE_KEY"
    keystore = f"{prefix}__{name}__KEYSTORE"
    if isinstance(section, DaemonKeySettings):
        remote = _remote(section, f"{prefix}__{name}__SIGNER_")
        if remote is not None and (section.keystore is not None or secret is not None):
            other = keystore if section.keystore is not None else key
            raise ConfigurationError(f"there is both {prefix}__{name}__SIGNER_URL and {other}: drop one")
        if remote is not None:
            return remote
    if section.keystore is None and secret is None:
        return None
    try:
        return load_signer(
            keystore=section.keystore,
            password_file=section.password_file,
            private_key=secret.get_secret_value() if secret else None,
            key_variable=key,
            environ=os.environ,
        )
    except ConfigurationError as exc:
        named = key if section.keystore is None else keystore
        text = str(exc)
        raise ConfigurationError(text if named in text else f"{text} ({named})") from exc


def _remote(section: DaemonKeySettings, prefix: str) -> Web3Signer | None:
    from headrace.adapters.web3signer import SignerAddress, Web3Signer

    if section.signer_url is None:
        if section.signer_address is not None:
            raise ConfigurationError(f"{prefix}ADDRESS is of no use without {prefix}URL: set both, or neither")
        return None
    if section.signer_address is None:
        raise ConfigurationError(f"{prefix}URL needs {prefix}ADDRESS, the address whose key the signer holds")
    url = section.signer_url.get_secret_value()
    if urlsplit(url).scheme == "http" and (section.signer_ca_file or section.signer_certificate_file):
        raise ConfigurationError(f"{prefix}URL begins with http://, so its certificates are of no use: use https://")
    where = SignerAddress(url, section.signer_ca_file, section.signer_certificate_file, section.signer_timeout_s)
    return Web3Signer(where, section.signer_address)


@asynccontextmanager
async def reached(*signers: Signer | None, metrics: Metrics | None = None) -> AsyncIterator[None]:
    """See that remote signers are there and have their keys, and let go of them at the end. Others need nothing.

    Raises:
        ConfigurationError: one does not have its key.
        SignerUnavailable: one does not answer.
    """
    from headrace.adapters.web3signer import Web3Signer

    remote = [each for each in signers if isinstance(each, Web3Signer)]
    try:
        for each in remote:
            if metrics is not None:
                each.report_to(metrics)
            await each.start()
        yield
    finally:
        for each in remote:
            await each.close()


@asynccontextmanager
async def open_chain(settings: Settings) -> AsyncIterator[Web3Chain]:
    """The chain, checked against its deployment.

    Raises:
        ConfigurationError: the deployment is missing, or not that of the chain.
        ChainUnavailable: the chain does not answer.
    """
    from headrace.adapters.web3_chain import Web3Chain

    chain = await Web3Chain.connect(
        settings.chain.rpc_url, settings.chain.deployments, timeout_s=settings.chain.timeout_s
    )
    try:
        yield chain
    finally:
        await chain.close()
