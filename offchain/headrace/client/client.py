"""A requester's side of a request: draft, send, wait, verify, cancel."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from types import TracebackType
from typing import Any, Self

import aiohttp

from headrace.client.answers import Answer, ResultVerifier, answer_of, ref_of
from headrace.client.audits import ApiRounds
from headrace.client.drafts import Draft, Network, Wanted, checked_draft, packed_of
from headrace.client.errors import ApiRefused, NoRelease, Untrue, WaitEnded
from headrace.client.gasless import SIGNATURE_S, GaslessRequest, chosen_fee_wei
from headrace.client.http import API_URL, RETRIED, ApiCalls, Backoff, require_http
from headrace.client.posted import posted_request, settled_answer
from headrace.client.sender import TransactionSender
from headrace.client.watching import ApiWords
from headrace.core import typed_data
from headrace.core.calls import cancel_data, cancel_with_release_data, retry_callback_data
from headrace.core.envelope import content_of, hash_payload
from headrace.core.errors import (
    ConfigurationError,
    HeadraceError,
    NotAllowed,
    Refused,
    Unavailable,
    UnknownModel,
    sentence,
)
from headrace.core.gas import retry_gas
from headrace.core.prompts import prompt_text
from headrace.core.requests import request_id as id_of
from headrace.core.requests import unpack
from headrace.core.types import Address, Hash32, Request
from headrace.ports import Call, Chain, Clock, Signer

ACCESS_S = 900
TERMINAL = frozenset({"fulfilled", "expired", "cancelled", "unposted"})

OnView = Callable[[Mapping[str, Any]], None]
OnSilence = Callable[[HeadraceError], None]


class HeadraceClient:
    """A client of one relayer.

    Args:
        api_url: of the relayer's API.
        signer: the requester's key; without one, only what is public can be read.
        clock: the time.
        chain_id: when given, a relayer of another chain is refused.
        market: likewise for another market.
        rng: for jitter.
        sleep: how to wait.
        backoff: how to wait between attempts.
        poll_s: how often a request's timeline is read.
        url_name: what the URL was given as, for whoever must correct it.

    Raises:
        InvalidInput: the URL is none that an API can be at.
    """

    def __init__(
        self,
        api_url: str,
        signer: Signer | None,
        clock: Clock,
        *,
        chain_id: int | None = None,
        market: str | None = None,
        rng: random.Random | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        backoff: Backoff | None = None,
        poll_s: float = 0.3,
        url_name: str = API_URL,
    ) -> None:
        require_http(api_url, url_name)
        self._url = api_url
        self._url_name = url_name
        self._signer = signer
        self._clock = clock
        self._chain_id = chain_id
        self._market = market
        self._rng = rng or random.Random()
        self._sleep = sleep
        self._backoff = backoff or Backoff()
        self._poll_s = poll_s
        self._session: aiohttp.ClientSession | None = None
        self._network: Network | None = None

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()

    @property
    def account(self) -> Address:
        """Whose requests these are.

        Raises:
            ConfigurationError: the client has no key.
        """
        return self._key.address

    # Before sending

    async def network(self) -> Network:
        """Where this relayer posts.

        Raises:
            Untrue: it is of another chain or market than this client was made for.
        """
        if self._network is None:
            body = await self._calls.json("GET", "/v1/network")
            try:
                network = Network(
                    chain_id=int(body["chain_id"]),
                    market=str(body["contracts"]["inference_market"]),
                    relayer=str(body["relayer"]),
                    max_ttl_s=int(body["terms"]["max_ttl_s"]),
                    confirmations=int(body["confirmations"]),
                )
            except (KeyError, TypeError, ValueError) as exc:
                raise Untrue(f"what answers at {self._url} is not a Headrace relayer") from exc
            if self._chain_id not in (None, network.chain_id):
                raise Untrue(
                    f"the relayer at {self._url} serves chain {network.chain_id}, and the RPC endpoint is of chain "
                    f"{self._chain_id}: correct HEADRACE_CHAIN__RPC_URL or {self._url_name}"
                )
            if self._market not in (None, network.market):
                raise Untrue(f"the relayer at {self._url} serves the market {network.market}, not {self._market}")
            self._network = network
        return self._network

    async def models(self) -> list[Mapping[str, Any]]:
        """The registered models."""
        models: list[Mapping[str, Any]] = await self._calls.json("GET", "/v1/models")
        return models

    async def offered_model(self) -> str:
        """The name of a model that a linked node offers.

        Raises:
            Refused: none does.
        """
        for node in (await self._calls.json("GET", "/v1/nodes"))["nodes"]:
            for offer in node["offers"] or ():
                if offer["model_id"] in node["heartbeat"]["models"]:
                    return str(offer["model_name"])
        raise Refused(f"no node that is linked to {self._url} offers a model now: start one, or try again later")

    def rounds(self) -> ApiRounds:
        """The relayer's rounds, for an audit."""
        return ApiRounds(self._calls)

    def words(self, relayer: Address) -> ApiWords:
        """What is said in the rounds of the relayer whose API it is, for a watch."""
        return ApiWords(self._calls, relayer)

    async def draft(self, wanted: Wanted, *, requester: Address | None = None) -> Draft:
        """Have a request drafted and its prompt stored, and check that the draft is what was asked.

        Args:
            wanted: what is asked for.
            requester: whose request it is, such as a contract account's; the client's own account unless given.

        Raises:
            ApiRefused: the relayer refuses it; the message says what to do.
            Untrue: the draft is something else.
            Refused: at today's prices no node would take it.
        """
        network = await self.network()
        requester = requester or self.account
        body = await self._calls.json("POST", "/v1/requests/draft", body=wanted.body(requester))
        model_id = await self._model_id(wanted.model)
        return checked_draft(wanted, body, network, requester, model_id, self._clock.now_ms() // 1000)

    async def send(self, draft: Draft, sender: TransactionSender) -> Hash32:
        """Send a draft's transaction. A draft that is sent twice is refused by the market, never paid twice."""
        return await sender.send(draft.call, remedy="send it some, or lower --max-reward or --gas-budget")

    async def gasless(
        self,
        draft: Draft,
        *,
        relayer_fee_wei: int | None = None,
        most_fee_wei: int | None = None,
        valid_for_s: int = SIGNATURE_S,
    ) -> GaslessRequest:
        """What to sign to have the relayer post a draft. Nothing is sent.

        Args:
            draft: a checked draft.
            relayer_fee_wei: for the relayer; what it asks for unless given.
            most_fee_wei: refuse to sign more than this.
            valid_for_s: how long the signature counts.

        Raises:
            Refused: this relayer posts requests for nobody.
            Untrue: it asks for more than may be signed.
        """
        network = await self.network()
        fee_wei = chosen_fee_wei(draft, relayer_fee_wei, most_fee_wei)
        until_s = min(self._clock.now_ms() // 1000 + valid_for_s, draft.request.deadline_s)
        return GaslessRequest(draft, fee_wei, until_s, typed_data.Domain(network.chain_id, network.market))

    async def submit(self, request: GaslessRequest, signature: bytes | None = None) -> Hash32:
        """Hand in a request for the relayer to post; `wait` follows it. To repeat it is safe: it is posted once.

        Args:
            request: as `gasless` made it.
            signature: what the requester's wallet or contract (ERC-1271) signed; by the client's own key unless given.

        Returns:
            The request's id.

        Raises:
            ApiRefused: it is not taken; the message says what to do.
            NotAllowed: it is another account's request, and no signature is given.
        """
        requester = request.draft.request.requester
        if signature is None:
            if requester != self.account:
                raise NotAllowed(f"the request is of {requester}, and the client's key is of {self.account}")
            signature = await self._key.sign_typed(request.domain, request.struct_hash())
        answer = await self._calls.json("POST", "/v1/requests", body=request.body(signature))
        if not isinstance(answer, dict) or answer.get("request_id") != request.draft.request_id:
            raise Untrue("the relayer took another request than was handed in")
        return request.draft.request_id

    # After sending

    async def view(self, request_id: Hash32) -> Mapping[str, Any]:
        """A request with its timeline, as the relayer has it."""
        view: Mapping[str, Any] = await self._calls.json("GET", f"/v1/requests/{request_id}")
        return view

    async def requests(
        self, *, limit: int = 20, state: str | None = None, requester: Address | None = None
    ) -> list[Mapping[str, Any]]:
        """Requests at the relayer, newest first; of this account unless another requester is given."""
        query = {"requester": requester or self.account, "limit": str(limit)}
        if state is not None:
            query["state"] = state
        found: list[Mapping[str, Any]] = (await self._calls.json("GET", "/v1/requests", query=query))["requests"]
        return found

    async def prompt(self, prompt_hash: Hash32) -> str:
        """The text of a prompt of this account's requests.

        Raises:
            ApiRefused: the relayer does not have it, or not from this account.
            Untrue: it serves other bytes.
        """
        payload = await self._calls.bytes(f"/v1/payloads/{prompt_hash}", headers=await self._sign_in())
        if hash_payload(payload) != prompt_hash:
            raise Untrue("the bytes that the relayer served are not those of the prompt")
        return prompt_text(content_of(payload))

    async def wait(
        self,
        request_id: Hash32,
        timeout_s: float,
        on_view: OnView = lambda _: None,
        on_silence: OnSilence = lambda _: None,
    ) -> Mapping[str, Any]:
        """Follow a request until it is fulfilled, expired or cancelled; a submitted one also until it is unposted.

        Args:
            request_id: of the request.
            timeout_s: how long at most.
            on_view: is called with each view that was read.
            on_silence: is called each time that none could be, with why: the relayer has not seen the request's block
                yet, or does not answer.

        Raises:
            WaitEnded: the time passed; the request goes on without anybody waiting.
        """
        end_ms = self._clock.now_ms() + round(timeout_s * 1000)
        failures = 0
        while self._clock.now_ms() < end_ms:
            # Around the mean, so that many who wait do not ask all at once.
            pause_s = self._poll_s * self._rng.uniform(0.5, 1.5)
            view = await self._view_or_why(request_id)
            if isinstance(view, HeadraceError):
                on_silence(view)
                failures = 0 if _is_unseen(view) else min(failures + 1, self._backoff.attempts)
                pause_s += self._backoff.delay_s(failures, self._rng) if failures else 0
            else:
                on_view(view)
                if view["state"] in TERMINAL:
                    return view
                failures = 0
            await self._sleep(pause_s)
        raise WaitEnded(
            f"the request {request_id} was not settled within {timeout_s:g} seconds; "
            f"it goes on: `headrace request show {request_id}`"
        )

    async def answer(self, request_id: Hash32, verifier: ResultVerifier | None = None) -> Answer:
        """The answer to a settled request, checked against its settled hash and, when given, against the chain.

        Raises:
            ApiRefused: it is not settled yet.
            Untrue: the bytes, or the market, say something else.
        """
        proof = await self._calls.json("GET", f"/v1/requests/{request_id}/result-proof")
        try:
            ref = ref_of(proof)
        except (KeyError, TypeError, ValueError) as exc:
            raise Untrue(f"the relayer's proof cannot be read: {exc}") from exc
        payload = await self._calls.bytes(f"/v1/payloads/{ref.result_hash}", headers=await self._sign_in())
        answer = answer_of(request_id, ref, payload, verified=verifier is not None)
        # The bytes have the hash; the market need not see them again, and a call has less room than an answer.
        if verifier is not None and not await verifier.verify_result(request_id, ref, b""):
            raise Untrue("the market does not confirm this answer: it settled another, or none")
        return answer

    async def cancel(self, request_id: Hash32, sender: TransactionSender) -> tuple[Hash32, bool]:
        """Cancel a request: at once on the relayer's release; by an announcement when it says that a node is assigned.

        Returns:
            The transaction's hash, and whether the refund comes at once.

        Raises:
            NotAllowed: it is another account's request.
            ApiRefused: it is closed already, or in no block yet.
            NoRelease: the relayer says neither; nothing was sent.
        """
        try:
            network = await self.network()
            request = await self._request(request_id, network)
            if request.requester != self.account:
                raise NotAllowed(f"the request is of {request.requester}, and only its requester can cancel it")
            release = await self._release(request_id, request)
        except (ApiRefused, Unavailable) as exc:
            if isinstance(exc, ApiRefused) and exc.code in ("NOT_FOUND", "NOT_POSTED", Refused.code):
                raise
            raise NoRelease(
                f"{sentence(str(exc))} Nothing was sent, since without the relayer's release the escrow comes back "
                "only after the grace period: try again, or cancel without asking with --without-release"
            ) from exc
        data = cancel_data(request) if release is None else release
        return await sender.send(Call(network.market, data)), release is not None

    async def retry_callback(
        self, request_id: Hash32, chain: Chain, sender: TransactionSender, first_block: int = 0
    ) -> Hash32:
        """Call a requester's contract again that failed when its answer was settled. Anyone may, and no relayer is
        asked: all of it is on the chain.

        Args:
            request_id: of the request.
            chain: where it is.
            sender: pays for it.
            first_block: of the deployment.

        Returns:
            The transaction's hash.

        Raises:
            NotFound: there is no such request, or it is not settled.
            Refused: its callback did not fail, or would fail again; nothing was sent.
        """
        request = await posted_request(chain, request_id, first_block)
        settled = await settled_answer(chain, request_id, first_block)
        call = Call(chain.market, retry_callback_data(request, settled.ref, settled.result))
        return await sender.send(call, call_out_gas=retry_gas(request.callback_gas))

    # Inside

    @property
    def _key(self) -> Signer:
        if self._signer is None:
            raise ConfigurationError(
                "there is no requester's key: set HEADRACE_REQUESTER_PRIVATE_KEY or HEADRACE_REQUESTER__KEY__KEYSTORE"
            )
        return self._signer

    @property
    def _calls(self) -> ApiCalls:
        return self._calls_of(self._backoff)

    def _calls_of(self, backoff: Backoff) -> ApiCalls:
        if self._session is None:
            raise RuntimeError("a HeadraceClient is used in `async with`")
        return ApiCalls(
            self._url, self._session, backoff=backoff, rng=self._rng, sleep=self._sleep, url_name=self._url_name
        )

    async def _view_or_why(self, request_id: Hash32) -> Mapping[str, Any] | ApiRefused | Unavailable:
        """A request's view, or why it cannot be had now. It is asked for once: who waits is told of every failure."""
        calls = self._calls_of(replace(self._backoff, attempts=1))
        try:
            view: Mapping[str, Any] = await calls.json("GET", f"/v1/requests/{request_id}")
        except (ApiRefused, Unavailable) as exc:
            if isinstance(exc, ApiRefused) and not _is_unseen(exc) and exc.http_status not in RETRIED:
                raise
            return exc
        return view

    async def _model_id(self, name_or_id: str) -> Hash32:
        wanted = name_or_id.lower()
        for model in reversed(await self.models()):
            if wanted in (str(model["name"]).lower(), model["model_id"]):
                return str(model["model_id"])
        raise UnknownModel(f"no registered model is called {name_or_id!r}")

    async def _request(self, request_id: Hash32, network: Network) -> Request:
        view = await self.view(request_id)
        request = unpack(packed_of(view["request"]))
        if id_of(request, network.chain_id, network.market) != request_id:
            raise Untrue(f"the relayer shows another request under {request_id}")
        return request

    async def _release(self, request_id: Hash32, request: Request) -> bytes | None:
        """Call data of a cancel with a release, or None when the relayer says that a node was assigned."""
        path = f"/v1/requests/{request_id}/release"
        try:
            release = await self._calls.json("POST", path, headers=await self._sign_in())
        except ApiRefused as exc:
            if exc.code == "ALREADY_ASSIGNED":
                return None
            raise
        try:
            until_s, signature = int(release["valid_until_s"]), bytes.fromhex(str(release["signature"])[2:])
        except (KeyError, TypeError, ValueError) as exc:
            raise Untrue(f"the relayer's release cannot be read: {exc}") from exc
        return cancel_with_release_data(request, until_s, signature)

    async def _sign_in(self) -> dict[str, str]:
        network = await self.network()
        signer, account = self._key, self.account
        until_s = self._clock.now_ms() // 1000 + ACCESS_S
        domain = typed_data.Domain(network.chain_id, network.market)
        struct_hash = typed_data.hash_access(account, network.relayer, until_s)
        signature = await signer.sign_typed(domain, struct_hash)
        return {"Authorization": f"Headrace {account}:{until_s}:0x{signature.hex()}"}


def _is_unseen(exc: HeadraceError) -> bool:
    """The relayer has not seen the request's block yet."""
    return isinstance(exc, ApiRefused) and exc.code == "NOT_FOUND"
