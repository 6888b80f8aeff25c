"""The laboratory: its service is exact, its runs are repeatable, and our defaults reach what they are meant to."""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from typer.testing import CliRunner

from perdure.cli.main import app
from perdure.errors import SettingInvalid
from perdure.operate.simulate.backlog import away, drain, flickering, median, pressed
from perdure.operate.simulate.experiment import experiment
from perdure.operate.simulate.history import fitted, history, read
from perdure.operate.simulate.measure import Calls, Jobs, Task, play, spread
from perdure.operate.simulate.model import Model
from perdure.operate.simulate.plot import check
from perdure.operate.simulate.policy import POLICIES
from perdure.operate.simulate.service import Service
from perdure.operate.simulate.world import Call, World
from perdure.store.base import Query, Steps
from perdure.store.open import open_store

BROWNOUT = Model()
OUTAGE = replace(BROWNOUT, share=0.0)
BLIP = replace(OUTAGE, fault_s=3.0)
#: Ten clients show the same, only less smoothly.
SMALL = replace(BROWNOUT, clients=10, rate=40.0, capacity=50.0)


def calls(model: Model, policy: str, seed: int = 1) -> Calls:
    found = play(Task(model, policy, seed, jobs=False))
    assert isinstance(found, Calls)
    return found


def jobs(model: Model, policy: str, seed: int = 1) -> Jobs:
    found = play(Task(model, policy, seed, jobs=True))
    assert isinstance(found, Jobs)
    return found


# --- the service -----------------------------------------------------------------------------------


def test_requests_are_answered_one_after_the_other() -> None:
    service = Service(replace(BROWNOUT, capacity=10.0, latency_s=0.0))
    assert [service.request(0.0) for _ in range(3)] == [(True, 0.1), (True, 0.2), (True, pytest.approx(0.3))]


def test_work_for_clients_who_left_is_done_all_the_same() -> None:
    service = Service(replace(BROWNOUT, capacity=10.0, latency_s=0.0))
    answers = [service.request(0.0)[0] for _ in range(15)]
    assert answers == [True] * 10 + [False] * 5
    assert service.request(0.2) == (False, 1.2)  # 13 wait still: 1.4 s of work
    ok, at_s = service.request(0.9)
    assert ok
    assert at_s == pytest.approx(1.7)


def test_a_full_queue_refuses_at_once() -> None:
    service = Service(replace(BROWNOUT, capacity=10.0))
    for _ in range(20):
        service.request(0.0)
    assert service.request(0.0) == (False, 0.05)


def test_in_a_brownout_work_takes_longer_and_in_an_outage_connections_are_refused() -> None:
    slow = Service(replace(BROWNOUT, capacity=10.0, latency_s=0.0))
    ok, at_s = slow.request(31.0)
    assert ok
    assert at_s == pytest.approx(31 + 1 / 3)
    away = Service(replace(OUTAGE, latency_s=0.01))
    assert away.request(31.0) == (False, 31.01)
    assert away.request(60.0)[0]


@settings(max_examples=60)
@given(
    gaps=st.lists(st.floats(0, 3), min_size=1, max_size=60),
    share=st.sampled_from([0.0, 0.3, 0.9]),
    capacity=st.sampled_from([1.0, 20.0]),
)
def test_work_is_neither_lost_nor_invented(gaps: list[float], share: float, capacity: float) -> None:
    model = replace(BROWNOUT, begin_s=10.0, fault_s=10.0, share=share, capacity=capacity, latency_s=0.0)
    service, now_s, last_s = Service(model), 0.0, 0.0
    for gap in gaps:
        now_s += gap
        before = service.backlog
        ok, at_s = service.request(now_s)
        assert 0 <= service.backlog <= before + 1
        assert service.backlog <= service.queue_max
        assert now_s <= at_s <= now_s + model.timeout_s
        if ok:
            assert at_s >= last_s  # first come, first served
            assert service._worked(now_s, at_s) == pytest.approx(service.backlog)
            last_s = at_s


# --- runs --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("with_jobs", [False, True])
@pytest.mark.parametrize("policy", POLICIES)
def test_a_seed_decides_everything(policy: str, with_jobs: bool) -> None:
    model = replace(SMALL, end_s=40.0)
    first, same, other = (play(Task(model, policy, seed, with_jobs)) for seed in (1, 1, 2))
    assert first == same
    assert first != other


@pytest.mark.parametrize("policy", POLICIES)
def test_every_call_ends_once_and_no_answer_comes_without_a_request(policy: str) -> None:
    world = World(SMALL, POLICIES[policy], seed=1).run()
    assert world.live == 0
    assert len(world.calls) == pytest.approx(40 * 150, rel=0.1)
    assert sum(took_s is not None for _, took_s in world.calls) <= len(world.answers) <= len(world.sent)
    longest_s = (1 + SMALL.retries) * SMALL.timeout_s + sum(0.1 * 2**n for n in range(SMALL.retries))
    waits_s = 1 + SMALL.retries  # for a turn
    assert max(took_s or 0.0 for _, took_s in world.calls) <= longest_s + waits_s


def test_a_job_has_no_more_tries_than_it_may() -> None:
    world = World(SMALL, POLICIES["none"], seed=1, jobs=True).run()
    assert world.live == 0
    assert world.requests <= SMALL.tries * len(world.calls)
    assert world.killed > 0


@pytest.mark.full
def test_full_jitter_alone_never_recovers_from_a_brownout_and_kills_jobs() -> None:
    assert calls(SMALL, "jitter").recovery_s is None
    with_jobs = jobs(SMALL, "jitter")
    assert with_jobs.killed > 0.5
    assert with_jobs.requests > 10


def test_a_budget_keeps_the_load_near_that_of_the_calls() -> None:
    found = calls(SMALL, "budget")
    assert found.recovery_s is not None
    assert found.load < 1.2


def test_without_a_fault_every_policy_is_as_good_as_none() -> None:
    healthy = replace(SMALL, share=0.999)
    for policy in POLICIES:
        found = calls(healthy, policy)
        assert (found.recovery_s, found.ok) == (0.0, 1.0)
        assert found.load == pytest.approx(1.0, abs=0.01)


def test_failures_now_and_then_are_healed_by_retries_and_limit_nobody() -> None:
    noisy = replace(SMALL, share=0.999, noise=0.03)
    assert calls(noisy, "none").ok == pytest.approx(0.97, abs=0.01)
    assert calls(noisy, "ours").ok > 0.995


# --- what our defaults are meant to reach ----------------------------------------------------------------


@pytest.mark.parametrize("seed", [1, 2])
def test_ours_recovers_from_a_brownout_without_adding_to_it(seed: int) -> None:
    found = calls(BROWNOUT, "ours", seed)
    assert found.recovery_s is not None
    assert found.recovery_s <= 8
    assert found.load <= 0.6
    assert found.peak <= 1.3
    assert found.p99_s <= 2


@pytest.mark.parametrize("seed", [1, 2])
def test_ours_brings_jobs_through_a_brownout_with_hardly_a_call_more(seed: int) -> None:
    found = jobs(BROWNOUT, "ours", seed)
    assert found.done >= 0.97
    assert found.killed == 0
    assert found.requests <= 1.3


def test_ours_is_back_soon_after_an_outage_and_bears_a_blip() -> None:
    outage = calls(OUTAGE, "ours")
    assert outage.recovery_s is not None
    assert outage.recovery_s <= 8
    assert outage.load <= 0.3
    assert calls(BLIP, "ours").ok >= 0.96
    assert jobs(OUTAGE, "ours").killed == 0


# --- a backlog beside a plain loop -------------------------------------------------------------------------

FLICKERING = flickering(100, 8, 0.0)
PRESSED = pressed(1_000, 8, 20.0, 30.0)


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize(("failing", "times"), [(0.05, 1.3), (0.2, 1.3), (0.35, 1.3), (0.5, 1.3), (0.8, 2.0)])
def test_a_service_that_flickers_is_used_as_fast_as_by_a_plain_loop(
    failing: float, times: float, seed: int
) -> None:
    found = drain(replace(FLICKERING, flicker=failing), seed)
    assert found.took_s is not None
    assert found.took_s <= times * found.loop_s
    assert (found.dead, found.put_off_s <= 10.0) == (0, True)
    assert found.charged == 0 or failing > 0.5


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_pressed_service_gets_little_more_than_it_bears_and_is_used_again_soon(seed: int) -> None:
    found = drain(PRESSED, seed)
    assert found.asked is not None
    assert found.answered is not None
    assert found.asked <= 1.2
    assert found.answered >= 0.9
    assert found.back_s is not None
    assert found.back_s <= 5.0
    assert (found.dead, found.charged) == (0, 0)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_service_that_refuses_some_as_too_many_is_used_as_fast_as_by_a_plain_loop(seed: int) -> None:
    for model in (
        flickering(100, 8, 0.25, throttling=0.05),
        flickering(100, 8, 0.0, throttling=0.05, after_s=1.0),
    ):
        found = drain(model, seed)
        assert found.took_s is not None
        assert found.took_s <= 1.35 * found.loop_s
        assert found.rest_s == found.took_s
        assert (found.dead, found.charged, found.put_off_s <= 10.0) == (0, 0, True)


def test_a_429_is_never_asked_again_before_the_time_that_it_names() -> None:
    """Longer than a job waits in its slot, so it is put off for that time."""
    found = drain(flickering(20, 4, 0.0, throttling=0.2, after_s=4.0), 1)
    assert 4.0 <= found.put_off_s <= 5.0
    assert (found.dead, found.charged) == (0, 0)


@pytest.mark.parametrize("fails_s", [0.01, 2.0])
def test_a_backlog_waits_for_the_end_of_an_outage_and_is_released_by_the_ramp(fails_s: float) -> None:
    model = away(400, 8, 40.0, fails_s=fails_s)
    found = drain(model, 1)
    assert (found.dead, found.charged) == (0, 0)
    assert found.first_s is not None
    assert 0 < found.first_s < 12  # the longest time between two probes of so short an outage
    assert found.rest_s is not None
    assert found.took_s == pytest.approx(model.over_s + found.rest_s)
    assert found.requests < 3_200 + 450  # nothing is asked meanwhile but by probes


def test_the_ramp_begins_when_a_probe_has_made_all_its_calls() -> None:
    world = World(away(100, 8, 10.0), POLICIES["ours"], 1, jobs=True)
    assert world.fleet is not None
    began: list[float] = []
    probed = world.fleet.probed

    def watched(ok: bool, now_s: float) -> None:
        probed(ok, now_s)
        assert world.fleet is not None
        if world.fleet.ramp_s is not None:
            began.append(world.fleet.ramp_s)

    world.fleet.probed = watched  # type: ignore[method-assign]
    world.run()
    first_s = min(at_s for at_s in world.answers if at_s > world.model.over_s)
    assert min(began) - first_s >= 7 * world.model.latency_s * (1 - world.model.spread)


def test_a_worker_that_heard_of_a_hold_sends_nothing_until_the_store_lets_a_job_run_well_after_it() -> None:
    world = World(away(10, 1, 10.0), POLICIES["ours"], 1, jobs=True)
    call = Call(world.clients[0], 0.0, True)
    state = call.client.dependency
    assert state is not None
    state.held, state.held_s = "away", 20.0
    call.placed_s = 21.0
    world._start(call, 21.0)
    assert world.sent == []
    call.placed_s = 23.0
    world._start(call, 23.0)
    assert world.sent == [23.0]


def test_a_job_that_was_lent_and_found_no_slot_is_taken_back() -> None:
    world = World(away(10, 1, 10.0), POLICIES["ours"], 1, jobs=True)
    fleet, calls = world.fleet, [Call(world.clients[0], 0.0, True) for _ in range(3)]
    assert fleet is not None
    calls[0].lent = calls[2].lent = True
    world.queued.extend(calls)
    assert fleet.recall() == 2
    assert (list(world.queued), list(fleet.held)) == ([calls[1]], [calls[0], calls[2]])
    assert not any(call.lent for call in calls)


def test_a_service_that_fails_most_is_not_held_for_long_by_chance() -> None:
    found = drain(flickering(100, 8, 0.8), 40)  # eleven failures in a row before anything is known
    assert found.took_s is not None
    assert found.took_s <= 2 * found.loop_s


def test_a_backlog_that_ends_before_the_fault_says_nothing_about_it() -> None:
    found = drain(pressed(5, 1, 20.0, 30.0), 1)
    assert (found.asked, found.answered, found.loop_asked, found.back_s) == (None, None, None, None)
    assert found.took_s is not None


def test_a_backlog_that_never_ends_has_no_time() -> None:
    found = drain(replace(pressed(2_000, 8, 0.1, 1e6), end_s=60.0), 1)
    assert found.took_s is None


@pytest.mark.parametrize("other", ["--plot a.svg", "--rate 5", "--store sqlite:///x.db"])
def test_a_backlog_refuses_options_that_it_does_not_use(other: str) -> None:
    command = ["simulate", "--backlog", "5", "--flicker", "0.2", *other.split()]
    with pytest.raises(SettingInvalid, match="cannot be used together"):
        CliRunner().invoke(app, command, catch_exceptions=False)


def test_a_median_of_runs_some_of_which_never_end() -> None:
    runs = [replace(drain(flickering(5, 1, 0.2), 1), back_s=back_s) for back_s in (None, 3.0, None)]
    assert median(runs)["back_s"] is None
    assert median([*runs, runs[1], runs[1]])["back_s"] == 3.0


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        ("--flicker 0.35", "35% of requests fail"),
        ("--throttle 0.1", "10% get a 429; medians"),
        (
            "--flicker 0.2 --throttle 0.1 --retry-after 1",
            "20% of requests fail and 10% get a 429, which asks to wait 1 s",
        ),
        ("--outage 5", "nothing is answered for 5 s"),
        ("--brownout 30 --capacity 20", "no more than 20 requests/s are answered for 30 s"),
    ],
)
def test_a_backlog_is_played_beside_a_plain_loop(words: str, shown: str) -> None:
    command = ["simulate", "--backlog", "50", "--calls", "4", "--seeds", "3", *words.split()]
    ran = CliRunner().invoke(app, command)
    assert ran.exit_code == 0, ran.output
    assert shown in " ".join(ran.output.split())
    assert "plain loop" in ran.output
    found = json.loads(CliRunner().invoke(app, [*command, "--json"]).stdout)
    assert found["seeds"] == len(found["runs"]) == 3
    assert found["median"]["dead"] == 0


@pytest.mark.parametrize(
    "words", ["", "--flicker 0.2 --brownout 3", "--brownout 3", "--outage 3 --throttle 0.1"]
)
def test_a_backlog_needs_one_fault(words: str) -> None:
    with pytest.raises(SettingInvalid, match="--capacity"):
        CliRunner().invoke(app, ["simulate", "--backlog", "5", *words.split()], catch_exceptions=False)


@pytest.mark.parametrize(
    "words", ["--throttle 0.1", "--retry-after 2", "--backlog 5 --flicker 0.1 --retry-after 2"]
)
def test_a_429_needs_a_backlog_and_a_wait_needs_a_429(words: str) -> None:
    with pytest.raises(SettingInvalid, match=r"needs? --"):
        CliRunner().invoke(app, ["simulate", *words.split()], catch_exceptions=False)


def test_a_service_that_refuses_takes_its_capacity_and_a_burst() -> None:
    service = Service(replace(PRESSED, begin_s=0.0))
    taken = [service.request(n / 100)[0] for n in range(1_000)]
    assert 195 <= sum(taken) <= 206
    assert all(Service(PRESSED).request(n / 100)[0] for n in range(800))


# --- several seeds -----------------------------------------------------------------------------------------


def test_a_seed_in_which_it_never_happened_is_the_worst() -> None:
    found = spread([2.0, None, 4.0])
    assert (found.mean, found.worst, found.never) == (3.0, None, 1)
    assert spread([0.9, 0.7], high_is_good=True).worst == 0.7


def test_an_experiment_tells_how_far_it_is() -> None:
    told: list[tuple[int, int]] = []
    model = replace(SMALL, fault_s=5.0, end_s=60.0)
    found = experiment([model], ["none", "ours"], 2, lambda count, total: told.append((count, total)))
    assert told == [(n, 8) for n in range(1, 9)]
    assert [row.policy for row in found[0].rows] == ["none", "ours"]


# --- from the store ------------------------------------------------------------------------------------------

MINUTE_MS = 60_000


def rows_of(name: str, per_minute: int, retries: int = 0, success: bool = True) -> list[tuple[object, ...]]:
    return [(name, retries, success, 200 + n, 5 * MINUTE_MS + n * 10) for n in range(per_minute)]


def test_a_history_is_summed_up() -> None:
    rows = rows_of("ocr", 30) + rows_of("openai", 570) + rows_of("openai", 30, retries=1)
    found = history(rows)
    assert (found.name, found.operations, found.rate) == ("openai", 600, 10.0)
    assert found.failed == pytest.approx(30 / 630)
    assert found.latency_s == pytest.approx(0.4845)
    model = fitted(Model(), found)
    assert (model.rate, model.capacity, model.clients) == (10.0, 12.5, 2)
    assert model.timeout_s == pytest.approx(2 * found.slow_s)


def test_an_outage_in_the_history_is_not_taken_for_noise() -> None:
    down = [(name, 3, False, ms, 9 * MINUTE_MS) for name, _, _, ms, _ in rows_of("openai", 100)]
    assert history(rows_of("openai", 500) + down).failed == 0


def test_a_history_without_calls_says_so() -> None:
    with pytest.raises(SettingInvalid, match="recorded no calls in this time"):
        history([])
    with pytest.raises(SettingInvalid, match="no calls of vision in this time; there are calls of ocr"):
        history(rows_of("ocr", 3), "vision")


async def remember(url: str, count: int, age_ms: int) -> None:
    store = open_store(url)
    await store.open()
    minute_ms = (await store.now_ms() - age_ms) // MINUTE_MS * MINUTE_MS  # all calls within one minute

    def steps() -> Steps[None]:
        sql = (
            "INSERT INTO retry_metrics (api_name, retry_count, success, latency_ms, timestamp, added_ms) "
            f"VALUES ($1, $2, {'1' if url.startswith('sqlite') else 'true'}, $3, $4, 0)"
        )
        for n in range(count):
            yield Query(sql, ("openai", 0, 100, minute_ms + n))

    await store.driver.write(steps)
    await store.close()


def test_the_store_remembers_calls_and_a_model_is_made_of_them(store_url: str) -> None:
    async def reading() -> None:
        store = open_store(store_url)
        await store.open(create=False)
        try:
            found = await read(store, since_s=3_600)
            assert (found.name, found.operations, found.latency_s) == ("openai", 120, 0.1)
            with pytest.raises(SettingInvalid):
                await read(store, since_s=60)
        finally:
            await store.close()

    asyncio.run(remember(store_url, count=120, age_ms=10 * MINUTE_MS))
    asyncio.run(reading())


# --- the command ---------------------------------------------------------------------------------------------

QUICK = (
    "simulate",
    "--clients",
    "10",
    "--rate",
    "40",
    "--capacity",
    "50",
    "--seeds",
    "1",
    "--policies",
    "none,ours",
)


def ran(*arguments: str) -> str:
    result = CliRunner().invoke(app, [*QUICK, *arguments], env={"COLUMNS": "80"}, catch_exceptions=False)
    assert result.exit_code == 0
    return result.stdout


def test_the_table_fits_eighty_columns_and_names_what_was_simulated() -> None:
    said = ran("--outage", "5")
    assert "Outage of 5 s: 10 clients, 40 calls/s, capacity 50/s" in said
    header = next(line for line in said.splitlines() if line.startswith("policy"))
    assert len(header) <= 80
    for title in ("recovery", "load", "peak", "ok fault", "p99", "calls/job", "killed"):
        assert title in header
    assert [line.split("  ")[0] for line in said.splitlines() if line.startswith(("no retry", "ours"))]


def test_without_a_fault_there_are_three() -> None:
    found = json.loads(ran("--json"))
    assert [one["fault"] for one in found["faults"]] == [
        "brown-out to 30 % for 30 s", "outage of 30 s", "outage of 3 s",
    ]  # fmt: skip
    ours = found["faults"][0]["policies"]["ours"]
    assert set(ours["recovery_s"]) == {"mean", "worst", "never"}
    assert ours["killed"]["mean"] == 0
    assert len(ours["sent"]) == len(ours["answered"]) == 150


def test_a_longer_fault_is_watched_longer() -> None:
    model = json.loads(ran("--json", "--brownout", "60", "--share", "0.5"))["faults"][0]["model"]
    assert (model["share"], model["fault_s"], model["end_s"]) == (0.5, 60, 210)


def test_a_chart_as_svg_and_as_png(tmp_path: Path) -> None:
    svg, png = tmp_path / "chart.svg", tmp_path / "chart.png"
    assert f"chart written to {svg}" in ran("--outage", "3", "--plot", str(svg))
    ran("--outage", "3", "--plot", str(png))
    root = ElementTree.parse(svg).getroot()
    words = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
    assert {"Outage of 3 s", "no retry", "ours"} <= set(words)
    assert len(list(root.iter("{http://www.w3.org/2000/svg}polyline"))) >= 4
    with Image.open(png) as image:
        assert image.size[0] == 2 * round(float(root.attrib["width"]))
        assert len(image.getcolors(10**7) or ()) > 10


def test_without_pillow_a_png_is_refused_before_anything_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(SettingInvalid, match=r"perdure\[plot\]"):
        check(Path("chart.png"))
    check(Path("chart.svg"))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--policies", "hope"), "no policy 'hope'; known are none"),
        (("--policies", ","), "no policy is named"),
        (("--outage", "3", "--brownout", "3"), "choose one"),
        (("--plot", "chart.gif"), "must end in .svg or .png"),
        (("--plot", "nowhere/chart.svg"), "no directory nowhere"),
        (("--again", "40-20"), "LOW-HIGH"),
        (("--store", "sqlite:///x.db", "--since", "soon"), "for example 1h"),
    ],
)
def test_a_slip_is_answered_with_how_to_do_it(arguments: tuple[str, ...], said: str) -> None:
    with pytest.raises(SettingInvalid, match=said.replace("(", r"\(")):
        CliRunner().invoke(app, ["simulate", *arguments], catch_exceptions=False)


def test_a_model_from_the_store_says_what_it_found(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/perdure.db"
    asyncio.run(remember(url, count=240, age_ms=10 * MINUTE_MS))
    arguments = [
        "simulate",
        "--store",
        url,
        "--since",
        "1h",
        "--seeds",
        "1",
        "--policies",
        "none",
        "--outage",
        "5",
    ]
    result = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert "openai: 240 operations, 4.00/s in the busiest minute" in result.stderr
    assert "4 calls/s, capacity 5/s" in result.stdout


def test_a_job_is_never_charged_while_nobody_is_answered() -> None:
    """As in the real thing, however often its calls fail."""
    model = Model(clients=1)
    world = World(model, POLICIES["ours"], 1, jobs=True)
    client = world.clients[0]
    assert client.dependency is not None
    call = Call(client, 0.0, True)
    for now_s in range(40):
        world._given_up(call, float(now_s))
    assert (call.tries, call.given_back) == (0, 40)
