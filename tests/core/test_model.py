"""States, legal moves, filter words, policies as text, keys."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.core.model import (
    ALIASES,
    MOVES,
    POLICY_DEFAULT,
    TERMINAL,
    Job,
    Policy,
    State,
    job_key,
    state_filter,
)
from perdure.core.state_words import ENDED, said
from perdure.core.state_words import WORDS as SYSTEMS

STORED = frozenset(State) - {State.HELD}

# --- states and moves ------------------------------------------------------------------------


def test_the_states_are_the_documented_ones_and_parked() -> None:
    documented = {"queued", "running", "waiting", "held", "done", "dead", "cancelled"}
    assert set(State) == documented | {"parked"}


def test_terminal_states() -> None:
    assert {State.DONE, State.DEAD, State.CANCELLED} == TERMINAL


def test_every_state_has_its_moves_and_none_leads_to_held_which_is_derived() -> None:
    assert set(MOVES) == set(State)
    assert State.HELD not in frozenset().union(*MOVES.values())


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (State.QUEUED, State.RUNNING),
        (State.QUEUED, State.PARKED),
        (State.RUNNING, State.WAITING),
        (State.RUNNING, State.QUEUED),
        (State.RUNNING, State.PARKED),
        (State.RUNNING, State.DONE),
        (State.RUNNING, State.DEAD),
        (State.WAITING, State.QUEUED),
        (State.WAITING, State.PARKED),
        (State.PARKED, State.QUEUED),
        (State.DEAD, State.QUEUED),
        (State.DONE, State.QUEUED),
        (State.CANCELLED, State.QUEUED),
    ],
)
def test_legal_moves(before: State, after: State) -> None:
    assert after in MOVES[before]


@pytest.mark.parametrize("before", sorted(STORED - TERMINAL))
def test_whatever_is_not_over_can_be_cancelled(before: State) -> None:
    assert State.CANCELLED in MOVES[before]


@pytest.mark.parametrize("before", sorted(STORED - {State.QUEUED}))
def test_only_a_queued_job_starts_to_run(before: State) -> None:
    assert State.RUNNING not in MOVES[before]


@pytest.mark.parametrize("before", sorted(STORED - {State.RUNNING}))
def test_only_a_running_job_is_done(before: State) -> None:
    assert State.DONE not in MOVES[before]


@pytest.mark.parametrize("before", sorted(TERMINAL))
def test_what_is_over_goes_on_only_by_a_requeue_and_never_to_another_end(before: State) -> None:
    assert MOVES[before] & TERMINAL == frozenset()


@pytest.mark.parametrize("before", sorted(STORED))
def test_every_state_reaches_an_end(before: State) -> None:
    seen, todo = {before}, [before]
    while todo:
        for after in MOVES[todo.pop()] - seen:
            seen.add(after)
            todo.append(after)
    assert seen >= TERMINAL


@pytest.mark.parametrize("before", [State.QUEUED, State.WAITING, State.PARKED])
def test_a_stuck_document_without_attempts_left_can_be_buried(before: State) -> None:
    assert State.DEAD in MOVES[before]


@pytest.mark.parametrize("before", sorted(TERMINAL))
@pytest.mark.parametrize("after", [State.WAITING, State.PARKED])
def test_a_requeue_may_have_to_wait_for_its_time_or_its_limit(before: State, after: State) -> None:
    assert after in MOVES[before]


# --- filter words ----------------------------------------------------------------------------

WORDS = [
    *(
        "pending",
        "processing",
        "fetching",
        "completed",
        "complete",
        "processed",
        "failed",
        "failed_max_retries",
    ),
    *("extracting", "extracted", "saving_markdown", "markdown_saved"),
    *("chunking", "chunked", "embedding", "embedded"),
]


def test_every_documented_alias_is_known_and_no_other() -> None:
    assert set(ALIASES) == set(WORDS)


def test_no_alias_hides_a_state() -> None:
    assert not set(ALIASES) & set(State)


@pytest.mark.parametrize(
    ("word", "states"),
    [
        ("pending", {State.QUEUED, State.PARKED, State.WAITING, State.HELD}),
        ("processing", {State.RUNNING}),
        ("fetching", {State.RUNNING}),
        ("completed", {State.DONE}),
        ("complete", {State.DONE}),
        ("processed", {State.DONE}),
        ("failed", {State.DEAD, State.CANCELLED}),
        ("failed_max_retries", {State.DEAD}),
    ],
)
def test_words_of_other_systems_mean_our_states(word: str, states: set[State]) -> None:
    assert state_filter(word)[0] == states


@given(st.lists(st.sampled_from(State)))
def test_every_document_is_pending_processing_completed_or_failed_and_only_one_of_them(
    found: list[State],
) -> None:
    parts = [
        [state for state in found if state in state_filter(word)[0]]
        for word in ("pending", "processing", "completed", "failed")
    ]
    assert sorted(state for part in parts for state in part) == sorted(found)


@pytest.mark.parametrize("system", sorted(SYSTEMS))
def test_every_system_has_a_word_for_every_state_and_an_end_is_an_end(system: str) -> None:
    assert set(SYSTEMS[system]) == set(State)
    for state in State:
        assert (said(state, system) in ENDED) is (state in TERMINAL)
        assert said(state, None) == state
    with pytest.raises(ValueError, match="one of: perdure, bullmq"):
        said("done", "klingon")


@pytest.mark.parametrize(
    ("word", "stage"),
    [
        ("fetching", "fetch"),
        ("extracting", "extract"),
        ("saving_markdown", "extract"),
        ("chunking", "chunk"),
        ("embedding", "embed"),
    ],
)
def test_words_for_a_running_stage_name_it(word: str, stage: str) -> None:
    assert state_filter(word) == (frozenset({State.RUNNING}), stage)


@pytest.mark.parametrize(
    ("past", "present"),
    [
        ("extracted", "extracting"),
        ("markdown_saved", "saving_markdown"),
        ("chunked", "chunking"),
        ("embedded", "embedding"),
    ],
)
def test_a_finished_stage_is_not_the_stage_that_runs(past: str, present: str) -> None:
    assert state_filter(past)[1] is not None
    assert state_filter(past) != state_filter(present)


@pytest.mark.parametrize("state", sorted(State))
def test_our_own_words_mean_themselves(state: State) -> None:
    assert state_filter(f" {state.upper()} ") == (frozenset({state}), None)


def test_an_unknown_word_is_refused_with_the_accepted_ones() -> None:
    with pytest.raises(ValueError, match="unknown state 'finished'") as refused:
        state_filter("finished")
    assert all(word in str(refused.value) for word in [*State, *WORDS])


# --- policies --------------------------------------------------------------------------------

policies = st.builds(
    Policy,
    attempts=st.integers(1, 50),
    base_ms=st.integers(0, 10**7),
    cap_ms=st.none() | st.integers(0, 10**8),
    jitter=st.booleans(),
    postpones_max=st.integers(0, 1_000),
    age_max_ms=st.integers(0, 10**12),
    hooks=st.lists(st.text(max_size=10), max_size=3).map(tuple),
)


@given(policies)
def test_a_policy_survives_being_written(policy: Policy) -> None:
    assert Policy.from_text(policy.to_text()) == policy


def test_the_default_policy_takes_no_room() -> None:
    assert Policy().to_text() is None
    assert Policy.from_text(None) is POLICY_DEFAULT


def test_only_what_differs_is_written() -> None:
    assert json.loads(Policy(attempts=5).to_text() or "") == {"attempts": 5}


def test_the_default_policy_is_the_documented_one() -> None:
    assert (POLICY_DEFAULT.attempts, POLICY_DEFAULT.base_ms) == (3, 2_000)
    assert (POLICY_DEFAULT.cap_ms, POLICY_DEFAULT.jitter) == (None, False)


def test_a_policy_written_by_a_newer_release_can_be_read() -> None:
    assert Policy.from_text('{"attempts":5,"not_yet_known":1}') == Policy(attempts=5)


# --- jobs ------------------------------------------------------------------------------------


def test_keys() -> None:
    assert job_key("17") == "doc-17"
    assert job_key("17", "detect_connections") == "doc-17/detect_connections"


@pytest.mark.parametrize(
    ("claims", "generation", "progress_ms", "resumed"),
    [(1, 1, None, False), (2, 1, None, False), (2, 1, 5, True), (1, 2, None, True), (3, 2, 5, True)],
)
def test_a_job_is_resumed_when_an_earlier_claim_or_generation_may_have_saved_something(
    claims: int, generation: int, progress_ms: int | None, resumed: bool
) -> None:
    job = Job(
        id=1, org="o", key="doc-1", document_id="1", pipeline="p", queue="q", lane="", stage="s", token=1,
        generation=1, attempts=1, claims=1, postpones=0, releases=0, crashes=0, postponed_ms=0, suspect=False,
        attempts_max=3, policy=POLICY_DEFAULT, claimed_ms=0, lease_ms=30_000,
    )  # fmt: skip
    assert replace(job, claims=claims, generation=generation, progress_ms=progress_ms).resumed is resumed
