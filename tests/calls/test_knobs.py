"""The numbers of one dependency: given in code or by the environment, the same for workers and store."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator

import pytest

from perdure import settings
from perdure.calls import Dependency, Knobs, Policy
from perdure.calls.dependency import DEPENDENCIES
from perdure.calls.fleet import Fleet
from perdure.calls.limiter import Limiter
from perdure.calls.presets import check
from perdure.core import knobs
from perdure.core.knobs import BOUNDS, knob_of, knobs_of
from perdure.core.ramp import probe_after_ms
from perdure.errors import PolicyInvalid, RateLimited, SettingInvalid
from perdure.store.base import BREAKER
from tests.calls.making import HttpError, Script, World, at_work
from tests.store.making import World as StoreWorld


@pytest.fixture(autouse=True)
def forget() -> Iterator[None]:
    known, given = dict(DEPENDENCIES), dict(knobs._given)
    yield
    for kept, before in ((DEPENDENCIES, known), (knobs._given, given)):
        kept.clear()
        kept.update(before)  # type: ignore[arg-type]


def test_code_changes_the_numbers_of_one_dependency() -> None:
    made = Dependency("vision-2", knobs=Knobs(tokens=30, earned=0.2, floor_per_s=2, failures=25, probe_s=9))
    policy = Policy("vision-2", dependency=made)
    assert (policy.dependency.budget.reserve, policy.dependency.budget.ratio) == (30, 0.2)
    assert policy.dependency.limiter.floor_per_s == 2
    assert (made.breaker.consecutive, made.breaker.open_s, made.breaker.open_max_s) == (25, 9, 60)
    assert knobs_of("vision-2").tokens == 30
    assert knobs_of("other") == Knobs()


def test_the_environment_goes_before_the_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PERDURE_DEPENDENCY_VISION_2_TOKENS", "50")
    monkeypatch.setenv("PERDURE_DEPENDENCY_VISION_2_PATIENCE_S", " 7.5 ")
    made = Dependency("vision-2", knobs=Knobs(tokens=30, failures=25))
    assert (made.budget.tokens, made.knobs.patience_s, made.breaker.consecutive) == (50, 7.5, 25)
    assert Policy("vision").dependency.budget.reserve == 10


@pytest.mark.parametrize(
    ("word", "value"),
    [("tokens", 0), ("tokens", True), ("earned", -1.0), ("floor_per_s", 0.0), ("patience_s", 61), ("failures", 0.5),
     ("failing_share", 1.1), ("failing_least", 0), ("failing_window_s", 0.5), ("slot_s", -1), ("slot_s", 601),
     ("patience_outside_s", 0), ("probe_s", 0), ("probe_max_s", float("nan")), ("probe_s", 61.0)],
)  # fmt: skip
def test_numbers_that_cannot_be_are_refused(word: str, value: float) -> None:
    with pytest.raises(PolicyInvalid, match=word) as raised:
        Knobs(**{word: value})
    assert isinstance(raised.value, ValueError)


@pytest.mark.parametrize("value", ["many", "0", "inf", "-3", "1e9"])
def test_a_variable_that_cannot_be_used_is_named_before_a_worker_claims(
    value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PERDURE_DEPENDENCY_OPENAI_TOKENS", value)
    with pytest.raises(SettingInvalid, match="PERDURE_DEPENDENCY_OPENAI_"):
        knobs_of("openai")
    with pytest.raises(SettingInvalid, match="PERDURE_DEPENDENCY_OPENAI_TOKENS"):
        check()


def test_settings_know_every_knob_and_warn_about_others(monkeypatch: pytest.MonkeyPatch) -> None:
    assert {word.upper() for word in BOUNDS} == set(settings.KNOBS)
    for word in settings.KNOBS:
        name = f"PERDURE_DEPENDENCY_MY_SERVICE_{word}"
        monkeypatch.setenv(name, "5")
        assert knob_of(name) == word.lower()
    monkeypatch.setenv("PERDURE_DEPENDENCY_OPENAI_TOKEN", "5")
    warned = {name for name, _ in settings.misspelt()}
    assert {name for name in warned if "DEPENDENCY" in name} == {"PERDURE_DEPENDENCY_OPENAI_TOKEN"}
    assert knob_of("PERDURE_DEPENDENCY_OPENAI_TOKEN") is None
    assert knob_of("PERDURE_DEPENDENCY_TOKENS") is None


def test_probes_come_when_they_are_wanted() -> None:
    rare = Knobs(probe_s=30, probe_max_s=600)
    assert [probe_after_ms(n, rare) for n in (0, 1, 100)] == [30_000, 36_000, 600_000]
    assert [probe_after_ms(n) for n in (0, 100)] == [4_000, 60_000]


def test_the_fleet_shares_as_many_tokens_as_there_are(
    store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PERDURE_DEPENDENCY_OCR_TOKENS", "40")
    monkeypatch.setenv("PERDURE_DEPENDENCY_OCR_PROBE_S", "20")

    async def run() -> None:
        async with StoreWorld(store_url) as world:
            store, first, second = world.store, Dependency("ocr"), Dependency("ocr")
            fleets = [Fleet(store, n, {"ocr": one}) for n, one in enumerate((first, second), 1)]
            for _ in range(16):
                first.budget.spend()
                first.missed(1.0)
            second.missed(1.0)
            for fleet in fleets:
                await fleet.exchange()
            (shown,) = await store.dependencies()
            assert shown.tokens == pytest.approx(second.budget.tokens)
            assert shown.tokens_max == 40
            assert 16 <= second.budget.tokens <= 32
            await store.hold("ocr", "away", BREAKER)
            (shown,) = await store.dependencies()
            assert (shown.probe_at_ms or 0) - (shown.since_ms or 0) == 20_000

    asyncio.run(run())


def test_numbers_that_do_not_fit_each_other_are_refused_before_a_worker_claims(
    store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PERDURE_DEPENDENCY_OCR_PROBE_S", "120")  # and 60 is the longest
    with pytest.raises(SettingInvalid, match=r"PERDURE_DEPENDENCY_OCR_.*probe_max_s"):
        check()

    async def look() -> None:
        async with StoreWorld(store_url) as world:
            await world.store.hold("ocr", "away", BREAKER)
            (shown,) = await world.store.dependencies()  # one who only looks is shown what there is
            assert (shown.name, shown.tokens_max) == ("ocr", 10)

    asyncio.run(look())
    monkeypatch.setenv("PERDURE_DEPENDENCY_OCR_PROBE_MAX_S", "600")
    check()


def test_small_letters_are_read_as_they_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("perdure_dependency_ocr_tokens", "33")
    assert knob_of("perdure_dependency_ocr_tokens") == "tokens"
    assert knobs_of("ocr").tokens == 33
    monkeypatch.setenv("PERDURE_DEPENDENCY_OCR_TOKENS", "44")
    assert knobs_of("ocr").tokens == 44
    monkeypatch.setenv("perdure_dependency_ocr_earned", "many")
    with pytest.raises(SettingInvalid, match="EARNED"):
        check()


def test_a_policy_whose_service_is_known_tunes_that_one() -> None:
    first = Policy("tuned-late")
    second = Policy("tuned-late", dependency=Dependency("tuned-late", knobs=Knobs(tokens=30, failures=25)))
    assert second.dependency is first.dependency
    assert (first.dependency.budget.reserve, first.dependency.breaker.consecutive) == (30, 25)


def test_what_is_forgotten_begins_as_new(monkeypatch: pytest.MonkeyPatch) -> None:
    state = Policy("forgotten").dependency
    state.limiter.led = state.breaker.led = True
    state.limiter.floor_per_s = 0.01
    monkeypatch.setenv("PERDURE_DEPENDENCY_FORGOTTEN_TOKENS", "40")
    state.forget()
    assert not (state.limiter.led)
    assert not (state.breaker.led)
    assert (state.limiter.floor_per_s, state.budget.tokens) == (0.5, 40)


def test_the_breaker_of_one_service_looks_sooner(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two failures of four within 100 s are many for one service, and nothing for the others."""
    for word, value in (("SHARE", "0.4"), ("LEAST", "4"), ("WINDOW_S", "100")):
        monkeypatch.setenv(f"PERDURE_DEPENDENCY_OCR_FAILING_{word}", value)
    shy, usual = Dependency("ocr"), Dependency("openai")
    for state in (shy, usual):
        for number, now_s in enumerate((1.0, 40.0, 80.0, 90.0)):
            (state.breaker.failed if number % 2 == 0 else state.breaker.succeeded)(now_s)
        state.breaker.failed(91.0)
    assert [state.breaker_word(91.0) for state in (shy, usual)] == ["half_open", "closed"]
    assert (usual.breaker.share, usual.breaker.least, usual.breaker.window_s) == (0.5, 20, 10)

    monkeypatch.setenv("PERDURE_DEPENDENCY_OPENAI_FAILING_LEAST", "3")
    usual.tune()
    assert usual.breaker.least == 3


@pytest.mark.parametrize(("patience", "sent"), [(None, 1), ("6", 2)])
def test_a_call_outside_of_jobs_waits_as_long_as_is_wanted(
    monkeypatch: pytest.MonkeyPatch, patience: str | None, sent: int
) -> None:
    if patience is not None:
        monkeypatch.setenv("PERDURE_DEPENDENCY_SLOW_PATIENCE_OUTSIDE_S", patience)
    world, service = World(), Script("fine")
    policy = world.policy("slow", dependency=Dependency("slow", limiter=Limiter(floor_per_s=0.2)))
    policy.dependency.limiter.lead(world.now_s, 0.2)  # a turn each five seconds
    assert policy.call(service) == "fine"
    with contextlib.suppress(RateLimited):
        policy.call(service)
    assert service.calls == sent


@pytest.mark.parametrize(("slot", "sent"), [(None, 2), ("30", 3), ("0", 2)])
def test_a_call_keeps_its_slot_as_long_as_is_wanted(
    monkeypatch: pytest.MonkeyPatch, slot: str | None, sent: int
) -> None:
    """A stage has made one call; the second one is refused for 20 s."""
    if slot is not None:
        monkeypatch.setenv("PERDURE_DEPENDENCY_KEEPS_SLOT_S", slot)
    world, service = World(), Script("fine", HttpError(429, {"retry-after": "20"}), "fine")
    policy = world.policy("keeps", dependency=Dependency("keeps"))
    with at_work(needs=("keeps",)):
        assert policy.call(service) == "fine"
        with contextlib.suppress(RateLimited):
            policy.call(service)
    assert service.calls == sent
