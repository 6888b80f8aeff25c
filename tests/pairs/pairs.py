"""A pair of verbs beside each other: the situations in which they meet, and what every interleaving came to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import combinations_with_replacement

from tests.pairs.exploring import SWITCHES, Interleaving, Run, explored
from tests.pairs.kit import HELD, Stepped, Subject
from tests.pairs.promises import broken
from tests.pairs.stepping import Side
from tests.pairs.verbs import VERBS, Call, Verb


@dataclass(frozen=True)
class Situation:
    """The states of the documents, and which of them each of the two operations is about, in their order."""

    states: tuple[str, ...]
    about: tuple[tuple[int, ...], tuple[int, ...]]

    def __str__(self) -> str:
        return f"{'+'.join(self.states)}, {'each both' if len(self.states) > 1 else 'the same document'}"


@dataclass
class Told:
    """What a pair came to: how many interleavings, and of those with a violation what it was and how it came to it."""

    interleavings: int = 0
    violations: Counter[str] = field(default_factory=Counter)
    examples: dict[str, str] = field(default_factory=dict)

    def add(self, where: str, run: Run) -> None:
        self.interleavings += 1
        for wrong in run.wrong:
            kind = f"{where}: {wrong}"
            self.violations[kind] += 1
            self.examples.setdefault(kind, "\n".join(f"  {name}: {sql[:150]}" for name, sql in run.order))


def all_pairs() -> list[tuple[str, str]]:
    return list(combinations_with_replacement(VERBS, 2))


def situations(first: Verb, second: Verb) -> list[Situation]:
    """The same document, as either verb would have it; and two documents that both are about, in opposite order."""
    same = [Situation((state,), ((0,), (0,))) for state in dict.fromkeys((first.state, second.state))]
    return [*same, Situation((first.state, second.state), ((0, 1), (1, 0)))]


async def prepared(world: Stepped, states: Sequence[str]) -> list[Subject]:
    """Those that wait to be claimed last: whoever is prepared is claimed."""
    await world.reset()
    subjects: dict[int, Subject] = {}
    for n in sorted(range(len(states)), key=lambda n: (states[n] in ("queued", "unserved", *HELD), n)):
        subjects[n] = await world.subject(states[n], f"{states[n]}{n}")
    return [subjects[n] for n in range(len(states))]


async def run_pair(
    world: Stepped, verbs: tuple[Verb, Verb], situation: Situation, choices: Sequence[int]
) -> Run:
    """One interleaving, and whether every promise holds in it."""
    subjects = await prepared(world, situation.states)
    jobs = {s.id: job for s in subjects if (job := await world.standing(s)) is not None}
    calls = [
        Call(world, store, [subjects[n] for n in about], jobs)
        for store, about in zip(world.stores, situation.about, strict=True)
    ]
    sides = world.sides([f"{n}:{verb.name}" for n, verb in enumerate(verbs)])
    wrong: list[str] = []

    async def answered(side: Side) -> None:
        verb, call = verbs[sides.index(side)], calls[sides.index(side)]
        if side.error is not None:
            wrong.append(f"{verb.name} raised {type(side.error).__name__}: {side.error}")
        else:
            wrong.extend(await verb.wrong(call, side.answer))

    operations = [
        lambda verb=verb, call=call: verb.call(call) for verb, call in zip(verbs, calls, strict=True)
    ]
    try:
        run = await Interleaving(world.watch, world.pids, sides, answered).go(operations, choices)
    finally:
        world.release()
    run.wrong += [f"deadlock at {sql[:60]}" for side in sides for sql in side.deadlocks]
    run.wrong += [_general(text, subjects) for text in [*wrong, *await broken(world)]]
    return run


def _general(text: str, subjects: Sequence[Subject]) -> str:
    """Without the ids of this run, so that the same violation is told in the same words."""
    for n, subject in enumerate(subjects):
        text = text.replace(subject.id, f"document {'AB'[n]}")
    return text


async def run_all(
    world: Stepped, first: str, second: str, switches: int = SWITCHES, only: int | None = None
) -> Told:
    """Every interleaving of the pair in every situation, or in one of them."""
    told, verbs = Told(), (VERBS[first], VERBS[second])
    met = situations(*verbs)
    for situation in met if only is None else [met[only]]:
        where = f"{first} | {second} ({situation})"

        async def run(choices: Sequence[int], situation: Situation = situation) -> Run:
            return await run_pair(world, verbs, situation, choices)

        async for done in explored(run, switches):
            told.add(where, done)
    return told
