"""The `Holdings` port: stake, bonds and ownership, as their owners look at them and change them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from headrace.adapters.abi_codec import ContractAbi
from headrace.adapters.web3_reading import ChainReader
from headrace.core.cycle import Offer
from headrace.core.errors import InvalidInput, NotFound
from headrace.core.events import ChainEvent
from headrace.core.key_history import keys_of, leaves_at_s
from headrace.core.types import ZERO_ADDRESS, Address, Price
from headrace.ports import Bond, Call, Membership, NodeKey, NodeStake, Ownership, PostedPrice, StakeTerms

_TERMS = {
    "min_stake_wei": "MIN_STAKE",
    "min_bond_wei": "MIN_BOND",
    "unbond_delay_s": "UNBOND_DELAY",
    "price_notice_s": "PRICE_NOTICE",
}


class HoldingsReader(ChainReader):
    """What stands behind nodes and relayers, and whose the contracts are."""

    async def stake_terms(self) -> StakeTerms:
        values = await asyncio.gather(*(self._read(self._stakes, self.stake_manager, name) for name in _TERMS.values()))
        return StakeTerms(**{field: value for field, (value,) in zip(_TERMS, values, strict=True)})

    async def node_stake(self, key: Address) -> NodeStake:
        (node,), (is_active,) = await asyncio.gather(
            self._read(self._stakes, self.stake_manager, "nodeOf", key),
            self._read(self._stakes, self.stake_manager, "isActive", key),
        )
        if node["owner"] == ZERO_ADDRESS:
            raise NotFound(f"{key} is of no registered node on chain {self.chain_id}: check it, or register the node")
        return NodeStake(
            keys=await self._keys(key),
            owner=node["owner"],
            stake_wei=node["stake"],
            unbonding_wei=node["unbonding"],
            withdrawable_at_s=node["unbondAt"],
            is_active=is_active,
            misses=node["misses"],
            faults=node["faults"],
        )

    async def posted_prices(self, key: Address) -> list[PostedPrice]:
        rotations, now_s = await self._found("StakeManager", "KeyRotated"), (await self.head()).timestamp_s
        keys = keys_of(await self._first_key(key), rotations)
        announced = {
            event.args["modelId"]: event for event in await self._found("StakeManager", "PriceAnnounced", key=keys)
        }
        offers = await self.offers(key, list(announced))
        return [_posted(offer, announced[offer.model_id], now_s) for offer in offers]

    async def bond(self, relayer: Address) -> Bond:
        (held,), (is_bonded,) = await asyncio.gather(
            self._read(self._stakes, self.stake_manager, "relayerOf", relayer),
            self._read(self._stakes, self.stake_manager, "isBonded", relayer),
        )
        return Bond(
            relayer=relayer,
            bond_wei=held["bond"],
            registered_at_s=held["registeredAt"],
            withdrawable_at_s=held["unbondAt"],
            is_bonded=is_bonded,
            faults=held["faults"],
        )

    async def ownership(self, contract: str) -> Ownership:
        abi, address = ContractAbi(contract), self._deployment.address_of(contract)
        (owner,), (pending,), timed = await asyncio.gather(
            self._read(abi, address, "owner"),
            self._read(abi, address, "pendingOwner"),
            self._found(contract, "OwnershipTransferTimed"),
        )
        # No view tells when; the last transfer that was begun does.
        acceptable_at_s = timed[-1].args["acceptableAt"] if timed and pending != ZERO_ADDRESS else 0
        return Ownership(contract, address, owner, pending, acceptable_at_s)

    async def paused_until_s(self) -> int:
        (is_paused,) = await self._read(self._market, self.market, "requestsPaused")
        if not is_paused:
            return 0
        pauses = await self._found("InferenceMarket", "RequestsPausedSet")
        return int(pauses[-1].args["until"])

    def call(self, contract: str, function: str, *values: object, value_wei: int = 0) -> Call:
        try:
            data = ContractAbi(contract).call(function, *values)
        except InvalidInput as exc:
            raise InvalidInput(f"{function} cannot take what is given: {exc}") from exc
        return Call(self._deployment.address_of(contract), data, value_wei)

    async def _first_key(self, key: Address) -> Address:
        (first,) = await self._read(self._stakes, self.stake_manager, "canonicalNodeOf", key)
        return str(first)

    async def _keys(self, key: Address) -> tuple[NodeKey, ...]:
        """Every key of the node that a key is of, with the places that still count."""
        rotations = await self._found("StakeManager", "KeyRotated")
        keys = keys_of(await self._first_key(key), rotations)
        joined = await self._found("StakeManager", "MarketJoined", key=keys)
        leavings = await self._found("StakeManager", "MarketLeft", key=keys)
        markets = list(dict.fromkeys(event.args["market"] for event in joined))
        delay_s = (await self.stake_terms()).unbond_delay_s
        found = []
        for index, each in enumerate(keys):
            (retired_at_s,) = await self._read(self._stakes, self.stake_manager, "retiredAt", each)
            memberships = []
            for market in markets:
                ends_at_s = [leaves_at_s(keys[: index + 1], market, leavings, rotations)]
                if retired_at_s and await self._was_in(keys[index + 1], market):
                    ends_at_s.append(retired_at_s + delay_s)  # the heir took its place over
                memberships += await self._membership(each, market, ends_at_s)
            found.append(NodeKey(each, retired_at_s, tuple(memberships)))
        return tuple(found)

    async def _membership(self, key: Address, market: Address, ends_at_s: Sequence[int]) -> list[Membership]:
        """A place that still counts, or none. It ends at the first of these times that is still to come."""
        (payee, joined_at_s), head = await asyncio.gather(
            self._read(self._stakes, self.stake_manager, "membershipOf", key, market), self.head()
        )
        if payee == ZERO_ADDRESS:
            return []
        return [Membership(market, payee, joined_at_s, next((at for at in ends_at_s if at > head.timestamp_s), 0))]

    async def _was_in(self, key: Address, market: Address) -> bool:
        (payee,) = await self._read(self._stakes, self.stake_manager, "payeeOf", key, market)
        return bool(payee != ZERO_ADDRESS)

    async def _found(self, contract: str, name: str, **indexed: Sequence[str]) -> list[ChainEvent]:
        """A contract's events of a name since it was deployed, oldest first."""
        deployed = self._deployment.contracts[contract]
        wanted = self._events.filter_of(deployed.address, name, **indexed)
        head = (await self.head()).number
        return self._events.decode_all(await self._logs(deployed.block, head, wanted))


def _posted(offer: Offer, announced: ChainEvent, now_s: int) -> PostedPrice:
    args = announced.args
    raised = Price(args["perPromptKiB"], args["perThousandTokens"]) if args["effectiveAt"] > now_s else None
    return PostedPrice(offer, raised, args["effectiveAt"] if raised else 0)
