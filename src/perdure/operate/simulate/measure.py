"""What one run shows, and what several seeds show together."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from statistics import fmean

from perdure.core.frozen import frozen
from perdure.operate.simulate.model import Model
from perdure.operate.simulate.policy import POLICIES
from perdure.operate.simulate.world import World

STEP_S = 0.5
#: Recovered means: of the calls that begin in these seconds, this share of what was usual before succeeds.
RECOVERED_S, RECOVERED_SHARE = 5.0, 0.99
SMALLER = 8


@frozen
class Task:
    """One run to make."""

    model: Model
    policy: str
    seed: int
    jobs: bool  # whether failed calls are tried again later by the job around them


@frozen
class Calls:
    """What a run without jobs shows."""

    recovery_s: float | None  # None: never
    load: float  # requests in the fault, by calls
    peak: float  # requests of the worst second from then on, by calls of a usual second
    ok_fault: float  # share of the calls that began in the fault and succeeded
    ok: float  # share of all calls
    p99_s: float  # of calls that succeeded, waits included
    sent: tuple[int, ...]  # requests by second
    answered: tuple[int, ...]  # successes by second


@frozen
class Jobs:
    """What a run with jobs shows."""

    done: float  # share of jobs
    killed: float  # share of jobs that used up their tries
    unfinished: float  # share of jobs that had not ended when the run did
    requests: float  # by job
    p99_s: float  # of jobs that were done, from their arrival


def play(task: Task) -> Calls | Jobs:
    """Make one run."""
    policy = POLICIES[task.policy]
    if task.jobs:
        return jobs(World(_smaller(task.model), policy, task.seed, jobs=True).run())
    return calls(World(task.model, policy, task.seed).run())


def _smaller(model: Model) -> Model:
    """Runs with jobs are long: of many clients an eighth is taken, and of the service as well."""
    if model.clients < SMALLER * 10:
        return model
    clients = model.clients // SMALLER
    part = clients / model.clients
    return replace(model, clients=clients, rate=model.rate * part, capacity=model.capacity * part)


def jobs(world: World) -> Jobs:
    """Measure a run with jobs."""
    ended = len(world.calls)
    every = max(1, ended + world.live)
    done = ended - world.killed
    return Jobs(
        done / every, world.killed / every, world.live / every, world.requests / max(1, ended), _p99_s(world)
    )  # fmt: skip


def calls(world: World) -> Calls:
    """Measure a run without jobs."""
    model = world.model
    began, good = Counter[int](), Counter[int]()
    for began_s, took_s in world.calls:
        step = int(began_s / STEP_S)
        began[step] += 1
        good[step] += took_s is not None
    begin, over, end = (int(at_s / STEP_S) for at_s in (model.begin_s, model.over_s, model.end_s))
    sent, answered = _by_second(world.sent, model.end_s), _by_second(world.answers, model.end_s)
    in_fault = sum(model.begin_s <= at_s < model.over_s for at_s in world.sent)
    return Calls(
        recovery_s=_recovery_s(began, good, (begin, over, end)),
        load=in_fault / max(1, _sum(began, begin, over)),
        peak=max(sent[int(model.begin_s) :]) / model.rate,
        ok_fault=_sum(good, begin, over) / max(1, _sum(began, begin, over)),
        ok=good.total() / max(1, began.total()),
        p99_s=_p99_s(world),
        sent=sent,
        answered=answered,
    )


def _recovery_s(began: Counter[int], good: Counter[int], fault: tuple[int, int, int]) -> float | None:
    begin, over, end = fault
    usual = _sum(good, 0, begin) / max(1, _sum(began, 0, begin))
    window = int(RECOVERED_S / STEP_S)
    for step in range(over, end - window):
        wanted = RECOVERED_SHARE * usual * _sum(began, step, step + window)
        if _sum(good, step, step + window) >= wanted:
            return (step - over) * STEP_S
    return None


def _p99_s(world: World) -> float:
    took = sorted(took_s for _, took_s in world.calls if took_s is not None)
    return took[int(len(took) * 0.99)] if took else 0.0


def _sum(counted: Counter[int], first: int, end: int) -> int:
    return sum(counted[step] for step in range(first, end))


def _by_second(times_s: list[float], end_s: float) -> tuple[int, ...]:
    counted = Counter(map(int, times_s))
    return tuple(counted[second] for second in range(int(end_s)))


# --- several seeds -----------------------------------------------------------------------------


@frozen
class Spread:
    """A measure over all seeds. None: never."""

    mean: float | None
    worst: float | None
    never: int = 0  # seeds in which it did not happen


def spread(values: list[float | None], high_is_good: bool = False) -> Spread:
    """Mean and worst of what happened; a seed in which it never did is the worst."""
    found = [value for value in values if value is not None]
    never = len(values) - len(found)
    mean = fmean(found) if found else None
    worst = None if never else (min(found) if high_is_good else max(found))
    return Spread(mean, worst, never)


@frozen
class Row:
    """One policy in one fault, over all seeds."""

    policy: str
    recovery_s: Spread
    load: Spread
    peak: Spread
    ok_fault: Spread
    ok: Spread
    p99_s: Spread
    done: Spread
    requests_per_job: Spread
    killed: Spread
    unfinished: Spread
    job_p99_s: Spread
    sent: tuple[int, ...]  # by second, of the first seed
    answered: tuple[int, ...]


def row(policy: str, alone: list[Calls], with_jobs: list[Jobs]) -> Row:
    """Put the runs of one policy together."""
    return Row(
        policy,
        recovery_s=spread([run.recovery_s for run in alone]),
        load=spread([run.load for run in alone]),
        peak=spread([run.peak for run in alone]),
        ok_fault=spread([run.ok_fault for run in alone], high_is_good=True),
        ok=spread([run.ok for run in alone], high_is_good=True),
        p99_s=spread([run.p99_s for run in alone]),
        done=spread([run.done for run in with_jobs], high_is_good=True),
        requests_per_job=spread([run.requests for run in with_jobs]),
        killed=spread([run.killed for run in with_jobs]),
        unfinished=spread([run.unfinished for run in with_jobs]),
        job_p99_s=spread([run.p99_s for run in with_jobs]),
        sent=alone[0].sent,
        answered=alone[0].answered,
    )
