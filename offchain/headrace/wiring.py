"""What services and commands open in the same way, by the settings: a role's key and the chain.

Adapters are imported when they are needed, so that a command starts without those of another.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Literal

from headrace.core.errors import ConfigurationError
from headrace.settings import PREFIX, Settings

if TYPE_CHECKING:
    from headrace.adapters.keystore import LocalSigner
    from headrace.adapters.web3_chain import Web3Chain

Role = Literal["relayer", "node", "requester", "owner", "attestation"]


def open_signer(settings: Settings, role: Role) -> LocalSigner:
    """The key of a role.

    Raises:
        ConfigurationError: there is none, or it cannot be used; the message names the setting.
    """
    from headrace.adapters.keystore import load_signer

    section = getattr(settings, role).key
    secret = getattr(settings, f"{role}_private_key")
    key, keystore = f"{PREFIX}{role.upper()}_PRIVATE_KEY", f"{PREFIX}{role.upper()}__KEY__KEYSTORE"
    if section.keystore is None and secret is None:
        raise ConfigurationError(f"the {role} has no key: set {keystore} to a keystore file, or {key}")
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
