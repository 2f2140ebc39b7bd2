"""`headrace stake`: what is sent, what the contracts then say, and what is shown."""

from __future__ import annotations

import asyncio
import json
import stat
from pathlib import Path

import pytest
from eth_account import Account
from eth_utils.address import to_checksum_address

import headrace.bootstrap.node
from headrace.adapters.keystore import open_keystore
from headrace.cli.amounts import show_wei
from headrace.cli.screens import with_checksums
from headrace.core import typed_data
from headrace.core.errors import ConfigurationError
from headrace.settings import load_settings
from tests.cli.ledger import NODE, NODE_OWNER, STRANGER, Ledger
from tests.local_chain import CHAIN_ID, ETHER, sign_digest

pytestmark = pytest.mark.slow

UNBOND_DELAY_S, PRICE_NOTICE_S = 259_200, 3_600
NOBODY = "0x" + "99" * 20
ELSEWHERE = "0x" + "11" * 20
PASSWORD = "correct horse"


def node_of(ledger: Ledger, key: str = NODE) -> dict:
    names = ("owner", "registeredAt", "unbondAt", "stake", "unbonding", "key", "misses", "faults")
    return dict(zip(names, ledger.read("StakeManager", "nodeOf", checksum(key)), strict=True))


def membership(ledger: Ledger, key: str = NODE, market: str | None = None) -> tuple[str, int]:
    payee, joined_at_s = ledger.read("StakeManager", "membershipOf", checksum(key), checksum(market or ledger.market))
    return payee.lower(), joined_at_s


def checksum(address: str) -> str:
    return to_checksum_address(address)


# STAKE


def test_show__needs_no_key_and_says_all(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HEADRACE_OWNER_PRIVATE_KEY")
    shown = ledger.json("stake", "show", NODE)
    (key,), (price,) = shown.pop("keys"), shown.pop("prices")
    assert shown == {
        "key": NODE,
        "owner": ledger.account(NODE_OWNER),
        "stake_wei": str(ETHER),
        "unbonding_wei": "0",
        "withdrawable_at_s": None,
        "active": True,
        "misses": 0,
        "faults": 0,
    }
    assert (key["key"], key["retired_at_s"]) == (NODE, None)
    (place,) = key["memberships"]
    assert (place["market"], place["payee"], place["leaves_at_s"]) == (ledger.market, ledger.account(NODE_OWNER), None)
    assert (price["model"], price["per_prompt_kib_wei"], price["raise"]) == ("tiny", str(10**12), None)
    text = ledger.shown("stake", "show", NODE.upper().replace("0X", "0x"))
    assert "1 ether (1,000,000,000,000,000,000 wei)" in text
    assert "tiny at 1,000,000,000,000 wei/KiB, 2,000,000,000,000 wei/1,000 tokens" in text


def test_show__key_of_no_node__is_refused(ledger: Ledger) -> None:
    assert "is of no registered node on chain 31337" in ledger.refusal("stake", "show", NOBODY)
    assert "is not an address" in ledger.refusal("stake", "show", "0x12")


def test_add__by_anyone__adds_up(ledger: Ledger) -> None:
    ledger.sign_with(owner=STRANGER)
    assert ledger.json("stake", "add", NODE, "0.5ether")["stake_wei"] == str(ETHER * 3 // 2)
    assert node_of(ledger)["stake"] == ETHER * 3 // 2
    assert "stake        1.6 ether" in ledger.shown("stake", "add", NODE, "0.1ether")


def test_add__nothing__says_why(ledger: Ledger) -> None:
    assert ledger.refusal("stake", "add", NODE, "0") == "No wei were sent: give an amount above 0."
    assert "is of no registered node" in ledger.refusal("stake", "add", NOBODY, "1ether")


def test_unbond__part__counts_no_more_at_once(ledger: Ledger) -> None:
    ledger.call(NODE_OWNER, "StakeManager", "addStake", checksum(NODE), value=ETHER)
    done = ledger.json("stake", "unbond", NODE, "0.25ether")
    node = node_of(ledger)
    assert (node["unbonding"], node["unbondAt"]) == (ETHER // 4, ledger.now_s + UNBOND_DELAY_S)
    assert (done["unbonding_wei"], done["stays_wei"]) == (str(ETHER // 4), str(ETHER * 7 // 4))
    assert (done["withdrawable_at_s"], done["active"]) == (node["unbondAt"], True)


def test_unbond__no_amount__is_all_of_it_and_the_node_is_inactive(ledger: Ledger) -> None:
    text = ledger.shown("stake", "unbond", NODE)
    assert "no relayer assigns to the node any more" in text
    assert node_of(ledger)["unbonding"] == ETHER
    shown = ledger.json("stake", "show", NODE)
    assert (shown["active"], shown["unbonding_wei"]) == (False, str(ETHER))
    assert "no: 1 ether" in ledger.shown("stake", "show", NODE)


def test_unbond__while_some_waits__is_refused_unless_all_shall_wait_anew(ledger: Ledger) -> None:
    ledger.shown("stake", "unbond", NODE, "5")
    first = node_of(ledger)["unbondAt"]
    ledger.jump(1000)
    assert "give --anew" in ledger.refusal("stake", "unbond", NODE, "6")
    assert ledger.json("stake", "unbond", NODE, "6", "--anew")["unbonding_wei"] == "11"
    assert node_of(ledger)["unbondAt"] >= first + 1000


def test_unbond__more_than_there_is__says_how_much_there_is(ledger: Ledger) -> None:
    words = ledger.refusal("stake", "unbond", NODE, "2ether")
    assert words.startswith(f"{show_wei(2 * ETHER)} are to be unbonded, and {show_wei(ETHER)} of the stake are not yet")


def test_withdraw__after_the_delay__pays_the_owner(ledger: Ledger) -> None:
    assert "is unbonding: begin that first" in ledger.refusal("stake", "withdraw", NODE)
    ledger.shown("stake", "unbond", NODE, "0.5ether")
    ledger.jump(UNBOND_DELAY_S - 60)
    assert "it may be withdrawn from 20" in ledger.refusal("stake", "withdraw", NODE).lower()
    ledger.jump(60)
    before = ledger.balance_wei(NODE_OWNER)
    done = ledger.json("stake", "withdraw", NODE)
    assert (done["withdrawn_wei"], done["stake_wei"]) == (str(ETHER // 2), str(ETHER // 2))
    assert ETHER // 2 - 10**16 < ledger.balance_wei(NODE_OWNER) - before < ETHER // 2


@pytest.mark.parametrize(
    "arguments",
    [
        ("unbond", NODE, "1"),
        ("withdraw", NODE),
        ("join", NODE),
        ("leave", NODE),
        ("payee", NODE, NOBODY),
        ("withdraw-models", NODE),
        ("prices", NODE, "--model", "tiny", "--price-per-prompt-kib", "1", "--price-per-thousand-tokens", "1"),
    ],
    ids=lambda arguments: arguments[0],
)
def test_owners_commands__signed_by_another__say_whose_the_node_is(ledger: Ledger, arguments: tuple[str, ...]) -> None:
    ledger.sign_with(owner=STRANGER)
    words = ledger.refusal("stake", *arguments)
    assert f"the node is of {ledger.account(NODE_OWNER)}, and {ledger.account(STRANGER)} signs" in words.lower()


def test_owners_commands__no_key__say_what_to_set(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HEADRACE_OWNER_PRIVATE_KEY")
    assert "set HEADRACE_OWNER__KEY__KEYSTORE" in ledger.refusal("stake", "leave", NODE)


# MARKETS


def test_leave_and_join__markets__take_their_time(ledger: Ledger) -> None:
    assert "is in the market" in ledger.refusal("stake", "join", NODE)
    leaves_at_s = ledger.json("stake", "leave", NODE)["leaves_at_s"]
    assert leaves_at_s == ledger.now_s + UNBOND_DELAY_S
    (key,) = ledger.json("stake", "show", NODE)["keys"]
    assert key["memberships"][0]["leaves_at_s"] == leaves_at_s
    assert ", leaves 20" in ledger.shown("stake", "show", NODE)
    ledger.jump(UNBOND_DELAY_S)
    assert ledger.json("stake", "show", NODE)["keys"][0]["memberships"] == []
    assert with_checksums(f"none: `headrace stake join {NODE}`") in ledger.shown("stake", "show", NODE)
    assert "is not in the market" in ledger.refusal("stake", "leave", NODE)
    joined = ledger.json("stake", "join", NODE)
    assert (joined["market"], joined["payee"]) == (ledger.market, ledger.account(NODE_OWNER))
    # What is past is of the place before.
    assert ledger.json("stake", "show", NODE)["keys"][0]["memberships"][0]["leaves_at_s"] is None


def test_join__another_market__is_shown_beside_the_first(ledger: Ledger) -> None:
    assert ledger.json("stake", "join", NODE, "--market", ELSEWHERE)["market"] == ELSEWHERE
    markets = [place["market"] for place in ledger.json("stake", "show", NODE)["keys"][0]["memberships"]]
    assert sorted(markets) == sorted([ledger.market, ELSEWHERE])
    ledger.shown("stake", "leave", NODE, "--market", ELSEWHERE)
    places = {place["market"]: place for place in ledger.json("stake", "show", NODE)["keys"][0]["memberships"]}
    assert places[ledger.market]["leaves_at_s"] is None
    assert places[ELSEWHERE]["leaves_at_s"] == ledger.now_s + UNBOND_DELAY_S


def test_payee__another_account__is_paid_from_now_on(ledger: Ledger) -> None:
    assert ledger.json("stake", "payee", NODE, NOBODY)["payee"] == NOBODY
    assert membership(ledger)[0] == NOBODY
    assert f"paid to      {NOBODY}" in ledger.shown("stake", "show", NODE)
    assert "the zero address is nobody" in ledger.refusal("stake", "payee", NODE, "0x" + "0" * 40).lower()


# PRICES


def prices(*models: str, kib: str = "1", tokens: str = "1") -> list[str]:
    named = [word for model in models for word in ("--model", model)]
    return ["stake", "prices", NODE, *named, "--price-per-prompt-kib", kib, "--price-per-thousand-tokens", tokens]


def price_of(ledger: Ledger, model: str = "tiny") -> list:
    model_id = bytes.fromhex(ledger.chain.deployment.models[model][2:])
    return ledger.read("StakeManager", "priceOf", checksum(NODE), model_id)


def test_prices__lower__hold_at_once(ledger: Ledger) -> None:
    (price,) = ledger.json(*prices("tiny", kib="2gwei", tokens="7"))["prices"]
    assert (price["per_prompt_kib_wei"], price["per_thousand_tokens_wei"], price["raise"]) == (
        str(2 * 10**9),
        "7",
        None,
    )
    assert price_of(ledger) == [True, 2 * 10**9, 7]


def test_prices__raise__shows_when_it_takes_effect(ledger: Ledger) -> None:
    (price,) = ledger.json(*prices("tiny", kib=str(10**13), tokens=str(2 * 10**12)))["prices"]
    effective_at_s = ledger.now_s + PRICE_NOTICE_S
    assert price["raise"] == {
        "per_prompt_kib_wei": str(10**13),
        "per_thousand_tokens_wei": str(2 * 10**12),
        "effective_at_s": effective_at_s,
    }
    assert price["per_prompt_kib_wei"] == str(10**12)
    assert "until then, since a raise needs notice" in ledger.shown(*prices("tiny", kib=str(10**13), tokens="0.1gwei"))
    assert ledger.json("stake", "show", NODE)["prices"][0]["raise"]["per_prompt_kib_wei"] == str(10**13)
    assert "from 20" in ledger.shown("stake", "show", NODE)
    ledger.jump(PRICE_NOTICE_S + 1)
    assert price_of(ledger) == [True, 10**13, 10**8]
    (shown,) = ledger.json("stake", "show", NODE)["prices"]
    assert (shown["per_prompt_kib_wei"], shown["raise"]) == (str(10**13), None)


def test_prices__what_cannot_be__is_refused_before_anything_is_sent(ledger: Ledger) -> None:
    assert "there is no model gpt-9 in the registry; there are: tiny" in ledger.refusal(*prices("gpt-9")).lower()
    assert "a model is named twice" in ledger.refusal(*prices("tiny", "tiny")).lower()
    assert "may be at most" in ledger.refusal(*prices("tiny", kib=str(2**80)))
    assert "is 'dear'" in ledger.refusal(*prices("tiny", tokens="dear"))
    two = [*prices("tiny"), "--price-per-prompt-kib", "2"]
    assert "once for all models, or once for each" in ledger.refusal(*two)


def test_withdraw_models__all__offers_nothing(ledger: Ledger) -> None:
    assert ledger.json("stake", "withdraw-models", NODE)["withdrawn"] == ["tiny"]
    assert price_of(ledger)[0] is False
    assert ledger.json("stake", "show", NODE)["prices"] == []
    assert "offers no model" in ledger.refusal("stake", "withdraw-models", NODE)
    ledger.shown(*prices("tiny", kib="5", tokens="5"))
    assert price_of(ledger) == [True, 5, 5]


def test_withdraw_models__that_is_not_offered__is_refused(ledger: Ledger) -> None:
    assert "does not offer gpt-9: it offers tiny" in ledger.refusal(
        "stake", "withdraw-models", NODE, "--model", "gpt-9"
    )
    assert ledger.json("stake", "withdraw-models", NODE, "--model", "tiny")["withdrawn"] == ["tiny"]


# KEYS


@pytest.fixture
def password(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("HEADRACE_KEYSTORE_PASSWORD", PASSWORD)
    return PASSWORD


def rotate(ledger: Ledger, name: str = "new.json", key: str = NODE) -> dict:
    return ledger.json("stake", "rotate-key", key, "--keystore", str(ledger.folder / name))


def test_rotate_key__new_keystore__is_made_and_signs_from_now_on(ledger: Ledger, password: str) -> None:
    before = membership(ledger)
    done = rotate(ledger)
    keystore = ledger.folder / "new.json"
    new = open_keystore(keystore, password).address
    assert stat.S_IMODE(keystore.stat().st_mode) == 0o600
    assert (done["key"], done["old_key"], done["keystore"]) == (new, NODE, str(keystore))
    assert done["markets"] == [ledger.market]
    assert done["old_key_paid_until_s"] == ledger.now_s + UNBOND_DELAY_S
    assert node_of(ledger)["key"].lower() == new
    assert membership(ledger, new) == membership(ledger) == before
    ledger.jump(UNBOND_DELAY_S)
    assert membership(ledger) == ("0x" + "0" * 40, 0)
    assert membership(ledger, new) == before


def test_rotate_key__said_to_a_person__tells_what_to_do_with_the_node(ledger: Ledger, password: str) -> None:
    text = ledger.shown("stake", "rotate-key", NODE, "--keystore", "new.json")
    assert "HEADRACE_NODE__KEY__KEYSTORE=new.json" in text
    assert "old key paid until 20" in text
    assert password not in text


def test_rotate_key__again_with_the_same_keystore__sends_nothing(ledger: Ledger, password: str) -> None:
    first = rotate(ledger)
    before = ledger.anvil.rpc("eth_blockNumber")
    again = rotate(ledger, key=first["key"])
    assert ledger.anvil.rpc("eth_blockNumber") == before
    assert again == {**first, "transaction_hash": None}


def test_rotate_key__twice__shows_all_keys_and_until_when_each_is_paid(ledger: Ledger, password: str) -> None:
    first = rotate(ledger)
    ledger.jump(1000)
    second = rotate(ledger, "newer.json", key=NODE)  # the first key still names the node
    assert (second["old_key"], second["markets"]) == (first["key"], [ledger.market])
    shown = ledger.json("stake", "show", first["key"])
    assert [each["key"] for each in shown["keys"]] == [NODE, first["key"], second["key"]]
    ends = [each["memberships"][0]["leaves_at_s"] for each in shown["keys"]]
    assert ends == [first["old_key_paid_until_s"], second["old_key_paid_until_s"], None]
    text = ledger.shown("stake", "show", NODE)
    assert with_checksums(f"{NODE} (asked about), rotated away") in text
    assert text.count("is paid by") == 2


def test_rotate_key__several_markets_and_one_that_is_left__all_move_as_they_are(ledger: Ledger, password: str) -> None:
    ledger.shown("stake", "join", NODE, "--market", ELSEWHERE)
    leaves_at_s = ledger.json("stake", "leave", NODE, "--market", ELSEWHERE)["leaves_at_s"]
    ledger.jump(1000)
    done = rotate(ledger)
    assert sorted(done["markets"]) == sorted([ledger.market, ELSEWHERE])
    old, new = ledger.json("stake", "show", done["key"])["keys"]
    ends = [{place["market"]: place["leaves_at_s"] for place in each["memberships"]} for each in (old, new)]
    assert ends == [
        {ledger.market: done["old_key_paid_until_s"], ELSEWHERE: leaves_at_s},
        {ledger.market: None, ELSEWHERE: leaves_at_s},
    ]


def test_rotate_key__price_announced_under_the_old_key__is_still_shown(ledger: Ledger, password: str) -> None:
    ledger.shown(*prices("tiny", kib=str(10**13), tokens=str(10**13)))
    done = rotate(ledger)
    (price,) = ledger.json("stake", "show", done["key"])["prices"]
    assert price["raise"]["per_prompt_kib_wei"] == str(10**13)


def test_rotate_key__by_another__makes_no_keystore(ledger: Ledger, password: str) -> None:
    ledger.sign_with(owner=STRANGER)
    assert "set HEADRACE_OWNER__KEY__KEYSTORE to its owner's key" in ledger.refusal(
        "stake", "rotate-key", NODE, "--keystore", "new.json"
    )
    assert not Path("new.json").exists()


def test_rotate_key__key_that_a_node_had__is_refused(ledger: Ledger, password: str) -> None:
    rotate(ledger)
    rotate(ledger, "newer.json")
    words = ledger.refusal("stake", "rotate-key", NODE, "--keystore", str(ledger.folder / "new.json"))
    assert "is, or was, a node's: make a new one" in words


def test_rotate_key__wrong_password__is_refused(ledger: Ledger, password: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rotate(ledger)
    monkeypatch.setenv("HEADRACE_KEYSTORE_PASSWORD", "wrong")
    words = ledger.refusal("stake", "rotate-key", NODE, "--keystore", str(ledger.folder / "new.json"))
    assert "the password does not open the keystore" in words.lower()


def test_retired_key__left_behind_in_a_market__is_told(ledger: Ledger, password: str) -> None:
    """Somebody rotated past this command and named no market: the old key stays until it is made to leave."""
    key = bytes(31) + b"\x08"
    new = str(Account.from_key(key).address).lower()
    domain = typed_data.Domain(CHAIN_ID, ledger.chain.deployment.address_of("StakeManager"))
    consent = sign_digest(
        key, typed_data.digest(domain, typed_data.hash_register_node(new, ledger.account(NODE_OWNER)))
    )
    ledger.call(NODE_OWNER, "StakeManager", "rotateKey", checksum(NODE), checksum(new), consent, [])
    assert with_checksums(f"`headrace stake leave {NODE} --market {ledger.market}`") in ledger.shown(
        "stake", "show", new
    )
    ledger.shown("stake", "leave", NODE)
    assert "is paid by" in ledger.shown("stake", "show", new)
    assert "joins nothing any more" in ledger.refusal("stake", "join", NODE)


def test_json__is_one_line_for_programs(ledger: Ledger) -> None:
    assert ledger.shown("stake", "show", NODE, "--json").count("\n") == 1
    json.loads(ledger.out)


# THE NODE ITSELF


def test_node_daemon__after_a_rotation__starts_with_either_key_while_both_are_paid(
    ledger: Ledger, password: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    new = rotate(ledger)["key"]
    monkeypatch.setenv("HEADRACE_NODE__MODELS", '["tiny"]')
    for key in (NODE, new):
        options = asyncio.run(headrace.bootstrap.node._node_options(load_settings(), key))
        assert options.market == ledger.market
        assert [model.price.per_prompt_kib_wei for model in options.models] == [10**12]
    ledger.jump(UNBOND_DELAY_S)
    with pytest.raises(ConfigurationError, match=f"is paid no more: .* to the keystore of {new}"):
        asyncio.run(headrace.bootstrap.node._node_options(load_settings(), NODE))
    asyncio.run(headrace.bootstrap.node._node_options(load_settings(), new))
