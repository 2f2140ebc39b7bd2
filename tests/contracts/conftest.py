from __future__ import annotations

import copy
import os

import pytest
from eth_account import Account

from tests.contracts import builders
from tests.contracts.builders import ETHER
from tests.contracts.trial import Trial
from tests.contracts.world import GAS_LIMIT, GasTerms, World

# The chain is on this machine. Without it requests looks through the whole environment for proxies at each call.
os.environ.setdefault("NO_PROXY", "127.0.0.1,localhost")

UNBOND_DELAY = 200_000
PRICE_NOTICE = 3_600
MIN_STAKE = ETHER
MIN_BOND = 2 * ETHER
NODE_KEY = "0x" + "a1" * 32
FAULT_SCHEDULE = (ETHER // 100, ETHER // 4, ETHER // 2)  # a miss, an equivocation, a relayer's fault
OTHER_NODE_KEY = "0x" + "b2" * 32


@pytest.fixture(scope="session", autouse=True)
def _no_gas_estimates(chain):
    chain.provider.network.__dict__["gas_limit"] = GAS_LIMIT


@pytest.fixture(scope="session")
def owner(accounts):
    return accounts[0]


@pytest.fixture(scope="session")
def relayer(accounts):
    return accounts[1]


@pytest.fixture(scope="session")
def other_relayer(accounts):
    return accounts[2]


@pytest.fixture(scope="session")
def node_owner(accounts):
    return accounts[3]


@pytest.fixture(scope="session")
def requester(accounts):
    return accounts[4]


@pytest.fixture(scope="session")
def stranger(accounts):
    return accounts[5]


@pytest.fixture(scope="session")
def deployer(accounts):
    """Deploys the stake manager and the faults contract, which name each other, and nothing else."""
    return accounts[9]


@pytest.fixture(scope="session")
def stakes(project, deployer):
    faults = builders.address_of_next(deployer, 1)
    return deployer.deploy(project.StakeManager, MIN_STAKE, MIN_BOND, UNBOND_DELAY, PRICE_NOTICE, faults)


@pytest.fixture(scope="session")
def faults(project, deployer, stakes, log, market):
    return deployer.deploy(project.Faults, stakes, log, market, FAULT_SCHEDULE)


@pytest.fixture(scope="session")
def log(project, owner, stakes):
    return owner.deploy(project.ScheduleLog, stakes)


@pytest.fixture(scope="session")
def _session_registry(project, owner):
    return owner.deploy(project.ModelRegistry, owner)


@pytest.fixture
def registry(_session_registry):
    return _session_registry


@pytest.fixture(scope="session")
def deploy_market(project, owner, stakes, log):
    def deploy(gas_terms: GasTerms = GasTerms(), probation: tuple[int, int, int] = (0, 0, 0)):  # noqa: B008
        return owner.deploy(project.InferenceMarket, owner, stakes, log, gas_terms.as_tuple(), probation)

    return deploy


@pytest.fixture(scope="session")
def register_node(stakes, node_owner):
    """Registers a node and lets it join markets; returns its address."""

    def register(key: str, *markets, owner=node_owner, stake: int = MIN_STAKE) -> str:
        node = Account.from_key(key).address
        signature = builders.sign_registration(key, stakes.address, owner.address)
        stakes.registerNode(node, "ipfs://node", signature, sender=owner, value=stake)
        for market in markets:
            stakes.joinMarket(node, market, sender=owner)
        return node

    return register


@pytest.fixture(scope="session")
def market(deploy_market):
    return deploy_market()


@pytest.fixture(scope="session")
def _session_world(chain, stakes, log, market, register_node, owner, relayer, node_owner, requester, stranger):
    stakes.registerRelayer("https://relayer.example", sender=relayer, value=MIN_BOND)
    node = register_node(NODE_KEY, market)
    return World(
        provider=chain.provider,
        chain=chain,
        stakes=stakes,
        log=log,
        market=market,
        gas_terms=GasTerms(),
        owner=owner,
        relayer=relayer,
        relayer_key=relayer.private_key,
        node_owner=node_owner,
        node_key=NODE_KEY,
        node=node,
        requester=requester,
        stranger=stranger,
        holders={a.address for a in (owner, relayer, node_owner, requester, stranger)},
    )


@pytest.fixture(scope="session", autouse=True)
def _built_before_any_test(_session_world, _session_registry, faults):
    """Ape takes a snapshot before each test; what is built later than that is built again and again."""


@pytest.fixture
def world(_session_world):
    """The shared market; after each test its money must add up."""
    world = copy.copy(_session_world)
    world.posted, world.holders = [], set(_session_world.holders)
    yield world
    world.assert_conserved()


@pytest.fixture
def bonded_other_relayer(stakes, other_relayer):
    stakes.registerRelayer("https://other.example", sender=other_relayer, value=MIN_BOND)
    return other_relayer


@pytest.fixture
def other_node(world, register_node):
    """The address of a second joined node; its key is OTHER_NODE_KEY."""
    return register_node(OTHER_NODE_KEY, world.market)


@pytest.fixture
def trial(world, faults):
    """What faults in the shared market are proven with."""
    return Trial(world, faults)
