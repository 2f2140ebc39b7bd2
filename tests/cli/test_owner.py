"""`headrace owner`: pausing, and handing contracts over."""

from __future__ import annotations

import pytest

from headrace.cli.screens import with_checksums
from tests.cli.ledger import CONTRACTS_OWNER, STRANGER, Ledger
from tests.local_chain import CONTRACTS, compiled

pytestmark = pytest.mark.slow

OWNERSHIP_DELAY_S, MAX_PAUSE_S = 3 * 86_400, 7 * 86_400
OWNED = {"market": "InferenceMarket", "registry": "ModelRegistry", "verifier": "AttestedKeyVerifier"}
NOBODY = "0x" + "0" * 40

each_contract = pytest.mark.parametrize("name", OWNED)


@pytest.fixture(autouse=True)
def owner_signs(ledger: Ledger) -> None:
    ledger.sign_with(owner=CONTRACTS_OWNER)


def owner_of(ledger: Ledger, name: str) -> str:
    return str(ledger.read(OWNED[name], "owner")).lower()


def test_owned__are_all_contracts_that_have_an_owner() -> None:
    owned = {name for name in CONTRACTS if "owner" in {entry.get("name") for entry in compiled(name)["abi"]}}
    assert owned == set(OWNED.values())


def test_show__needs_no_key__says_whose_all_is(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HEADRACE_OWNER_PRIVATE_KEY")
    shown = ledger.json("owner", "show")
    assert shown.pop("paused_until_s") is None
    for name, contract in OWNED.items():
        assert shown[name] == {
            "address": ledger.chain.deployment.address_of(contract),
            "owner": ledger.account(CONTRACTS_OWNER),
            "pending_owner": None,
            "acceptable_at_s": None,
        }
    assert "requests     taken" in ledger.shown("owner", "show")


def test_pause_and_resume__market__takes_no_requests_for_seven_days_at_most(ledger: Ledger) -> None:
    done = ledger.json("owner", "pause")
    assert done["paused_until_s"] == ledger.now_s + MAX_PAUSE_S
    assert ledger.read("InferenceMarket", "requestsPaused")
    assert ledger.json("owner", "show")["paused_until_s"] == done["paused_until_s"]
    assert "requests     paused until 20" in ledger.shown("owner", "show")
    assert ledger.json("owner", "resume")["paused_until_s"] is None
    assert not ledger.read("InferenceMarket", "requestsPaused")
    assert "requests     paused until 20" in ledger.shown("owner", "pause")
    ledger.jump(MAX_PAUSE_S + 1)
    assert ledger.json("owner", "show")["paused_until_s"] is None


@each_contract
def test_transfer_and_accept__after_the_delay__is_handed_over(ledger: Ledger, name: str) -> None:
    heir = ledger.account(STRANGER)
    begun = ledger.json("owner", "transfer", name, heir)
    assert begun["acceptable_at_s"] == ledger.now_s + OWNERSHIP_DELAY_S
    shown = ledger.json("owner", "show")[name]
    assert (shown["owner"], shown["pending_owner"]) == (ledger.account(CONTRACTS_OWNER), heir)
    assert shown["acceptable_at_s"] == begun["acceptable_at_s"]
    assert with_checksums(f"{heir}, who may accept from 20") in ledger.shown("owner", "show")
    ledger.sign_with(owner=STRANGER)
    ledger.jump(OWNERSHIP_DELAY_S - 60)
    assert "may be taken over from 20" in ledger.refusal("owner", "accept", name)
    ledger.jump(60)
    assert ledger.json("owner", "accept", name)["owner"] == heir
    assert owner_of(ledger, name) == heir
    assert ledger.json("owner", "show")[name]["pending_owner"] is None
    ledger.sign_with(owner=CONTRACTS_OWNER)
    assert "may not do this" in ledger.refusal("owner", "transfer", name, heir)


def test_transfer__to_nobody__takes_it_back(ledger: Ledger) -> None:
    ledger.shown("owner", "transfer", "market", ledger.account(STRANGER))
    assert "what was begun before is taken back" in ledger.shown("owner", "transfer", "market", NOBODY)
    assert ledger.json("owner", "show")["market"]["pending_owner"] is None


def test_every_change__by_another__is_refused(ledger: Ledger) -> None:
    ledger.sign_with(owner=STRANGER)
    for arguments in (
        ("pause",),
        ("resume",),
        ("transfer", "market", ledger.account(STRANGER)),
        ("accept", "registry"),
        ("renounce", "verifier", "--for-ever"),
    ):
        assert f"the account {ledger.account(STRANGER)} may not do this" in ledger.refusal("owner", *arguments).lower()


@each_contract
def test_renounce__said_twice__leaves_it_to_nobody(ledger: Ledger, name: str) -> None:
    assert "give --for-ever" in ledger.refusal("owner", "renounce", name)
    assert owner_of(ledger, name) == ledger.account(CONTRACTS_OWNER)
    assert ledger.json("owner", "renounce", name, "--for-ever")["owner"] is None
    assert owner_of(ledger, name) == NOBODY
    assert "owner      nobody, for ever" in ledger.shown("owner", "show")
