"""Interleavings: every order of the statements of two operations that a bounded number of switches can make.

A run follows the choices that it is given; after them, the operation that is under way goes on. Each point at which
the run could have gone the other way begins another run, until `SWITCHES` switches were chosen. Switches that locks
force are not counted. Two transactions that wait for each other need one chosen switch to be found; a look
that is outdated by the other's commit and writes on needs one as well.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.pairs.stepping import Side, Watch

SWITCHES = int(os.environ.get("SWITCHES", "1"))
STEPS_MAX = 400
#: Statements about rows of one's own, and those that only add: nobody waits for them and nobody reads them here.
_OWN = re.compile(
    r"(UPDATE worker SET|INSERT INTO (act|feed|counter)|SELECT (coalesce|set_config|pg_notify)\()"
)

Operation = Callable[[], Awaitable[Any]]


@dataclass
class Choice:
    """A point of a run at which either side could go on."""

    taken: int
    other: int


@dataclass
class Run:
    """One interleaving: the choices on its way, the statements in their order, what went wrong."""

    choices: list[Choice] = field(default_factory=list)
    order: list[tuple[str, str]] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    @property
    def taken(self) -> tuple[int, ...]:
        return tuple(choice.taken for choice in self.choices)


def is_own(statement: str) -> bool:
    """Whether no order of this statement and another one's matters."""
    return bool(_OWN.match(statement))


class Interleaving:
    """One run of two operations."""

    def __init__(
        self,
        watch: Watch,
        pids: Sequence[int],
        sides: Sequence[Side],
        after: Callable[[Side], Awaitable[None]],
    ) -> None:
        self._watch, self._pids, self._sides, self._after = watch, pids, sides, after
        self.run = Run()

    async def go(self, operations: Sequence[Operation], choices: Sequence[int]) -> Run:
        tasks = [asyncio.create_task(side.run(op)) for side, op in zip(self._sides, operations, strict=True)]
        for side in self._sides:
            await side.stands.wait()
            if side.ended:
                await self._after(side)
        current = 0
        while free := [n for n, side in enumerate(self._sides) if not side.ended]:
            ready = [n for n in free if not self._sides[n].blocked]
            if not ready:  # PostgreSQL ends one of them
                await self._unblock()
                continue
            current = self._next(ready, current, choices)
            await self._advance(current)
            if len(self.run.order) > STEPS_MAX:
                self.run.wrong.append("it does not come to an end")
                break
        for side, task in zip(self._sides, tasks, strict=True):
            if not side.ended:
                task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return self.run

    def _next(self, ready: list[int], current: int, choices: Sequence[int]) -> int:
        if len(ready) == 1:
            return ready[0]
        if self.run.order and is_own(self._sides[current].at):
            return current
        number = len(self.run.choices)
        taken = choices[number] if number < len(choices) else current
        self.run.choices.append(Choice(taken, 1 - taken))
        return taken

    async def _advance(self, number: int) -> None:
        side = self._sides[number]
        self.run.order.append((side.name, side.at))
        side.go()
        await self._settle(number)
        await self._unblock()

    async def _unblock(self) -> None:
        """Those that waited for a lock may have it by now."""
        for number, side in enumerate(self._sides):
            if side.blocked:
                await self._settle(number)

    async def _settle(self, number: int) -> None:
        side = self._sides[number]
        await self._watch.settled(side, self._pids[number])
        if side.ended:
            await self._after(side)


async def explored(
    run: Callable[[Sequence[int]], Awaitable[Run]], switches: int = SWITCHES, runs_max: int | None = None
) -> AsyncIterator[Run]:
    """Every interleaving, each once, those with the fewest switches first."""
    todo: list[tuple[tuple[int, ...], int]] = [((), 0)]
    number = 0
    while todo and (runs_max is None or number < runs_max):
        choices, used = todo.pop(0)
        done = await run(choices)
        number += 1
        yield done
        for n in range(len(choices), len(done.choices)):
            choice = done.choices[n]
            # the first choice of all says who begins; every other is a switch away from the one under way
            cost = used + (n > 0)
            if cost <= switches:
                todo.append(((*done.taken[:n], choice.other), cost))
