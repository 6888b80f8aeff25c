"""Hundreds of seeded worlds in which nothing may go wrong, and planted bugs that must be found in them.

`make sim SEEDS=20000` plays more. A seed that fails is replayed, with everything that happened in it, by
`python -m tests.sim SEED`.
"""

from __future__ import annotations

import hashlib
import inspect
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence

import pytest

from perdure.service import AsyncPerdure
from tests.sim.clients import READS, VERBS
from tests.sim.coverage import HAPPENS
from tests.sim.mutations import BUGS, Bug
from tests.sim.pairs import POSSIBLE, Pair
from tests.sim.promises import PROMISES
from tests.sim.run import simulate

#: Worlds of `make test`, few at a time so that its processes share them; `make test-all` plays up to `SEEDS`.
SEEDS_QUICK, CHUNK_QUICK = 100, 20
SEEDS = int(os.environ.get("SEEDS", "500"))
CHUNK = 200
CAUGHT_WITHIN = 200
#: The first worlds in which some bugs show: looked at before all others, because a search takes long.
SHOWS_IN = {
    "clocks_end_leases": 143, "keys_beside_the_transaction": 50, "late_claims_wait_for_their_lease": 47,
    "credit_is_never_spent": 43, "lost_reply_taken_for_a_failure": 40, "retention_looks_once": 214,
    "exists_under_an_id_that_is_purged": 29, "one_queue_for_all_organisations": 29,
    "held_stages_run_in_new_workers": 24, "select_then_update_claim": 22,
    "released_documents_keep_their_old_turns": 244, "children_by_another_name": 18, "superseded_chunks_stay": 18,
    "claims_what_it_does_not_have": 16, "late_follow_ups_connect": 15, "limits_let_everybody_in": 13,
    "doubt_taken_for_success": 9, "earlier_acts_pass_for_this_one": 9, "stopped_passes_for_done": 9,
    "stopping_breaks": 9, "leases_taken_from_the_living": 8, "renamed_stages_stay_degraded": 8,
    "claims_after_a_migration": 7, "postponements_counted_twice": 6, "postponements_uncounted": 6,
}  # fmt: skip
TRACE = "import sys; from tests.sim.test_sim import trace; print(trace(int(sys.argv[1])))"


def played(seeds: Sequence[int], note: Callable[[str, object], None]) -> tuple[Counter[str], Counter[Pair]]:
    """How often each thing happened in these worlds, none of which breaks a promise, and in how many features met."""
    seen: Counter[str] = Counter()
    met: Counter[Pair] = Counter()
    for seed in seeds:
        again = f"replay it with: .venv/bin/python -m tests.sim {seed}"
        try:
            story = simulate(seed)
        except Exception as error:
            error.add_note(again)
            raise
        assert story.error is None, f"{story.error}; {again}"
        seen += story.seen
        met.update(story.pairs)
    note("worlds", len(seeds))
    note("pairs", [(*pair, times) for pair, times in met.items()])
    return seen, met


@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("first", range(0, SEEDS_QUICK, CHUNK_QUICK))
def test_no_seed_breaks_a_promise(first: int, record_property: Callable[[str, object], None]) -> None:
    seen, met = played(range(first, first + CHUNK_QUICK), record_property)
    assert met
    assert seen


@pytest.mark.full
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("first", range(SEEDS_QUICK, SEEDS, CHUNK))
def test_no_seed_of_many_breaks_a_promise(first: int, record_property: Callable[[str, object], None]) -> None:
    """All that happens in worlds happens in these, and every two features meet."""
    seeds = range(first, min(first + CHUNK, SEEDS))
    seen, met = played(seeds, record_property)
    if len(seeds) < CHUNK:
        return
    blind = [what for what in HAPPENS if not seen[what]]
    assert not blind, f"in {CHUNK} worlds this never happened: {', '.join(blind)}"
    apart = [" and ".join(pair) for pair in POSSIBLE if not met[pair]]
    assert not apart, f"in {CHUNK} worlds these features never met: {', '.join(apart)}"


def trace(seed: int) -> str:
    """All that happened, in a few digits."""
    return hashlib.sha256("\n".join(simulate(seed, tell=True).log).encode()).hexdigest()


@pytest.mark.parametrize("seed", [7, pytest.param(8, marks=pytest.mark.full)])
def test_a_seed_is_the_same_story_every_time_and_everywhere(seed: int) -> None:
    ours = trace(seed)
    assert trace(seed) == ours
    assert simulate(seed).seen == simulate(seed, tell=True).seen
    environment = {**os.environ, "PYTHONHASHSEED": "1", "PYTHONPATH": os.pathsep.join(["src", "."])}
    other = subprocess.run(
        [sys.executable, "-c", TRACE, str(seed)], env=environment, capture_output=True, text=True, check=True
    )
    assert other.stdout.strip() == ours


@pytest.mark.full
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("bug", BUGS.values(), ids=lambda bug: bug.name)
def test_a_planted_bug_is_found(bug: Bug) -> None:
    with bug.planted():
        seeds = (SHOWS_IN.get(bug.name, 0), *range(CAUGHT_WITHIN))
        broken = (simulate(seed).promise for seed in seeds)
        assert any(promise in bug.promises for promise in broken), f"not found in {CAUGHT_WITHIN} seeds"


def test_every_promise_has_a_bug_that_breaks_it() -> None:
    assert {promise for bug in BUGS.values() for promise in bug.promises} == PROMISES.keys()


#: Verbs that have no place in a simulated world, and why.
ELSEWHERE = {
    "start": "every app does",
    "close": "every worker does",
    "work": "every worker does",
    "stop": "every worker does",
    "run": "workers are run by `fleet`",
    "run_until_idle": "workers are run by `fleet`",
    "under_way": "part of run_until_idle",
    "remote_beat": "played by a service, see `post`",
    "remote_finish": "played by a service, see `post`",
    "remote_fail": "played by a service, see `post`",
    "content": "what was handed in, tests/api/test_images.py",
    "happened": "the feed, which is followed by `telling`",
    "keys": "of an organisation, tests/doors/test_verbs.py",
    "choose": "the first step of requeue_dead, export and purge",
    "needed": "the first step of release",
    "output_saved": "output as it is stored, tests/api/test_downloads.py",
    "timeline_page": "a part of timeline, tests/operate/test_long_timeline.py",
    "known_limit_key": "the first step of limit",
    "sweeping": "what sweep does",
    "retaining": "retain, again and again",
    "key": "nothing that happens to documents depends on keys",
    "add_key": "nothing that happens to documents depends on keys",
    "revoke_key": "nothing that happens to documents depends on keys",
    "add_webhook": "webhooks read the feed, which is followed here, and send over real sockets",
    "webhooks": "as add_webhook",
    "remove_webhook": "as add_webhook",
    "deliveries": "as add_webhook",
    "retry_deliveries": "as add_webhook",
}


def test_every_verb_of_the_app_is_played() -> None:
    verbs = {name for name, _ in inspect.getmembers(AsyncPerdure, inspect.iscoroutinefunction)}
    public = {name for name in verbs if not name.startswith("_")}
    assert ELSEWHERE.keys() <= public
    assert public - ELSEWHERE.keys() == VERBS.keys() - {"look", "see", "errand", "map", "put_off"} | READS
