"""What services and commands open in the same way, by the settings: a role's key and the chain.

Adapters are imported when they are needed, so that a command starts without those of another.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Literal

from headrace.core.errors import ConfigurationError
from headrace.settings import PREFIX, KeySettings, Settings

if TYPE_CHECKING:
    from pydantic import SecretStr

    from headrace.adapters.keystore import LocalSigner
    from headrace.adapters.web3_chain import Web3Chain

Role = Literal["relayer", "node", "requester", "owner", "attestation", "watcher"]


def open_signer(settings: Settings, role: Role) -> LocalSigner:
    """The key of a role.

    Raises:
        ConfigurationError: there is none, or it cannot be used; the message names the setting.
    """
    signer = _open(getattr(settings, role).key, getattr(settings, f"{role}_private_key"), role, "KEY")
    if signer is None:
        key, keystore = f"{PREFIX}{role.upper()}_PRIVATE_KEY", f"{PREFIX}{role.upper()}__KEY__KEYSTORE"
        raise ConfigurationError(f"the {role} has no key: set {keystore} to a keystore file, or {key}")
    return signer


def open_submitter(settings: Settings) -> LocalSigner | None:
    """The key that sends a relayer's transactions and pays their gas; None when that is the relayer's own.

    Raises:
        ConfigurationError: it cannot be used; the message names the setting.
    """
    return _open(settings.relayer.submitter, settings.relayer_submitter_private_key, "relayer", "SUBMITTER")


def open_payer(settings: Settings) -> LocalSigner | None:
    """The key that pays the gas when a node settles by itself; None when that is the node's own.

    Raises:
        ConfigurationError: it cannot be used; the message names the setting.
    """
    return _open(settings.node.payer, settings.node_payer_private_key, "node", "PAYER")


def _open(section: KeySettings, secret: SecretStr | None, role: Role, name: str) -> LocalSigner | None:
    from headrace.adapters.keystore import load_signer

    prefix = f"{PREFIX}{role.upper()}"
    key = f"{prefix}_PRIVATE_KEY" if name == "KEY" else f"{prefix}_{name}_PRIVATE_KEY"
    keystore = f"{prefix}__{name}__KEYSTORE"
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
