"""What each client does when calls fail, with the very classes that real calls use."""

from __future__ import annotations

from collections.abc import Callable

from perdure.calls.breaker import Breaker
from perdure.calls.budget import Budget
from perdure.calls.dependency import Dependency
from perdure.calls.limiter import Limiter
from perdure.core.frozen import frozen

Rand = Callable[[], float]


@frozen
class Policy:
    """The parts a client has."""

    name: str
    retry: bool = True
    budget: bool = False
    breaker: bool = False
    limiter: bool = False
    shared: bool = (
        False  # the job layer asks limiter and breaker before a job starts; what they refuse costs no try
    )


POLICIES = {
    policy.name: policy
    for policy in (
        Policy("none", retry=False),
        Policy("jitter"),
        Policy("budget", budget=True),
        Policy("breaker", budget=True, breaker=True),
        Policy("adaptive", budget=True, limiter=True),
        Policy("ours", budget=True, breaker=True, limiter=True, shared=True),
    )
}
#: As tables call them; from the budget on each has it, and one part more.
WORDS = {
    "none": "no retry",
    "jitter": "full jitter",
    "budget": "+ budget",
    "breaker": "+ breaker",
    "adaptive": "+ adaptive",
    "ours": "ours",
}


class Client:
    """One process and what it knows of the service."""

    __slots__ = ("breaker", "budget", "dependency", "limiter")

    def __init__(self, policy: Policy, rand: Rand, fleet: bool = False) -> None:
        self.budget = Budget() if policy.budget else None
        self.breaker = Breaker(rand=rand) if policy.breaker else None
        self.limiter = Limiter() if policy.limiter else None
        self.dependency: Dependency | None = None  # of a worker that tells others what it learns
        if fleet:
            self.dependency = state = Dependency("service", self.budget, self.limiter, self.breaker)
            state.limiter.led = state.breaker.led = True  # a worker learns from its store before it calls
