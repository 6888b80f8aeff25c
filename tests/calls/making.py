"""Errors and services as tests want them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from perdure.calls.breaker import Breaker
from perdure.calls.budget import Budget
from perdure.calls.dependency import Dependency
from perdure.calls.jitter import FullJitter
from perdure.calls.limiter import Limiter
from perdure.calls.policy import Policy
from perdure.calls.timing import Timing
from perdure.core.scope import WORK, Work


class HttpError(Exception):
    """As HTTP libraries raise it."""

    def __init__(self, status: int, headers: dict[str, str] | None = None, code: str | None = None) -> None:
        super().__init__(f"the service said {status}")
        self.status_code = status
        self.headers = headers or {}
        self.code = code
        self.response = self


@dataclass
class World:
    """A clock that moves when a policy waits, and chance that always says the same."""

    now_s: float = 1_000.0
    chance: float = 0.5
    waits: list[float] = field(default_factory=list)

    def sleep(self, seconds: float) -> None:
        self.waits.append(seconds)
        self.now_s += seconds

    async def asleep(self, seconds: float) -> None:
        self.sleep(seconds)

    @property
    def timing(self) -> Timing:
        return Timing(
            lambda: self.now_s,
            lambda: 1_800_000_000 + self.now_s,
            self.sleep,
            self.asleep,
            lambda: self.chance,
        )

    def policy(self, name: str = "service", **more: Any) -> Policy:
        """One over a dependency of its own."""
        given: dict[str, Any] = {
            "backoff": FullJitter(2.0, 30.0),
            "dependency": Dependency(name, Budget(), Limiter(), Breaker()),
            "timing": self.timing,
            **more,
        }
        return Policy(name, **given)


class Script:
    """A service that answers as it was told: errors are raised, the rest is returned; the last one for ever."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.calls = 0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.calls += 1
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, BaseException):
            raise answer
        return answer

    async def awaited(self, *args: Any, **kwargs: Any) -> Any:
        return self(*args, **kwargs)


Caller = Callable[..., Any]


@contextmanager
def at_work(needs: tuple[str, ...] = ("service",), probe: str | None = None) -> Iterator[Work]:
    """As if a stage were running."""
    work = Work("doc-1", "doc-1", "default", "books", "embed", 2, needs, probe)
    token = WORK.set(work)
    try:
        yield work
    finally:
        WORK.reset(token)
