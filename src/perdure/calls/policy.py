"""A policy: how one dependency is called. Decorator or direct, plain or awaited.

openai = Policy("openai", retries=3, backoff=FullJitter(2, 30), total_s=120, attempt_s=60)

@openai
async def ask(prompt: str) -> str: ...

answer = openai.call(client.get, url)               # plain
answer = await openai.acall(client.get, url)        # awaited
openai.but(idempotent=False, key=ctx.idempotency_key()).call(pay, sum)
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Awaitable, Callable, Coroutine
from functools import wraps
from types import CoroutineType
from typing import Any, Literal, ParamSpec, TypedDict, TypeVar, Unpack, cast, overload

import perdure.calls.home  # noqa: F401  cells and their workers tell each other of services
from perdure.calls.binding import bind
from perdure.calls.checking import check_changes, check_dependency, check_name, check_policy
from perdure.calls.classify import classify
from perdure.calls.cutoff import cut_off
from perdure.calls.dependency import DEPENDENCIES, Dependency
from perdure.calls.dependency import dependency as known
from perdure.calls.inside import Inside
from perdure.calls.jitter import FullJitter
from perdure.calls.run import Instead, Patience, Run
from perdure.calls.scope import SCOPE, Scope
from perdure.calls.timing import TIMING, Timing
from perdure.calls.unbound import look, looked_of, unbound_requests
from perdure.calls.unfinished import WHOLE, NotAwaitable, refuse_plain, refuse_unawaitable, refuse_unfinished
from perdure.calls.verdict import Verdict
from perdure.core.scope import WORK, Work

P = ParamSpec("P")
T = TypeVar("T")

RESCHEDULE_S = 300.0


class Changes(TypedDict, total=False):
    """What `Policy.but` takes."""

    retries: int
    backoff: FullJitter
    total_s: float | None
    attempt_s: float | None
    hint_cap_s: float
    reschedule_s: float
    classify: Callable[[BaseException], Verdict]
    on_exhausted: Literal["reschedule", "raise"] | Callable[[Exception], Any]
    idempotent: bool
    key: str | None
    best_effort: bool
    operation: str


class Policy:
    """How a dependency is called. `retries` counts repetitions: 3 are at most 4 requests, 0 is one request.

    Inside a job a call that gives up reschedules the document (`on_exhausted="reschedule"`), outside it raises what
    was raised last. Policies of one name share budget, limiter and breaker. Inside another policy's call this one runs
    once: the outermost owns the retries.
    """

    def __init__(
        self,
        name: str,
        *,
        retries: int = 3,
        backoff: FullJitter | None = None,
        total_s: float | None = None,
        attempt_s: float | None = None,
        hint_cap_s: float = 60.0,
        reschedule_s: float = RESCHEDULE_S,
        classify: Callable[[BaseException], Verdict] = classify,
        on_exhausted: Literal["reschedule", "raise"] | Callable[[Exception], Any] = "reschedule",
        idempotent: bool = True,
        key: str | None = None,
        best_effort: bool = False,
        dependency: Dependency | None = None,
        timing: Timing = TIMING,
    ) -> None:
        check_name(name)
        self.name = name
        self.operation = name
        self.retries = retries
        self.backoff = FullJitter(1.0, 30.0) if backoff is None else backoff
        self.total_s, self.attempt_s = total_s, attempt_s
        self.hint_cap_s, self.reschedule_s = hint_cap_s, reschedule_s
        self.classify = classify
        self.on_exhausted = on_exhausted
        self.idempotent, self.key = idempotent, key
        self.best_effort = best_effort
        self.timing = timing
        self._looked = looked_of(name)  # when the clients of functions are looked at again
        check_policy(self)
        check_dependency(name, dependency)
        self.dependency = dependency or known(name)
        shared = DEPENDENCIES.setdefault(name, self.dependency)  # what has a name is shared by the fleet
        if shared is not self.dependency and self.dependency.tuned:
            self.dependency = shared  # a second one would learn nothing from the fleet
            shared.tune()

    def __repr__(self) -> str:
        return f"<Policy {self.name}: {self.retries} retries>"

    def but(self, **changes: Unpack[Changes]) -> Policy:
        """This policy with some things changed, over the same dependency. Raises: PolicyInvalid."""
        check_changes(self.name, changes, Changes.__annotations__)
        changed = copy.copy(self)
        for name, value in changes.items():
            setattr(changed, name, value)
        check_policy(changed)
        return changed

    def bind(self, client: Any) -> bool:
        """Set the retries of an SDK's client to 0, so that they do not multiply ours; False where it cannot be done."""
        return bind(client)

    # --- as a decorator --------------------------------------------------------------------------

    @overload
    def __call__(self, fn: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, Coroutine[Any, Any, T]]: ...
    @overload
    def __call__(self, fn: Callable[P, T]) -> Callable[P, T]: ...
    def __call__(self, fn: Callable[P, Any]) -> Callable[P, Any]:
        """Guard a function; TypeError for one that yields, because what it gave already cannot be taken back."""
        _refuse_generators(fn)
        policy = self if self.operation != self.name else self.but(operation=_operation(self.name, fn))
        if inspect.iscoroutinefunction(fn):

            @wraps(fn)
            async def awaited(*args: P.args, **kwargs: P.kwargs) -> Any:
                return await policy._acall(fn, args, kwargs)

            return awaited

        @wraps(fn)
        def plain(*args: P.args, **kwargs: P.kwargs) -> Any:
            return policy._call(fn, args, kwargs)

        return plain

    # --- the loops -------------------------------------------------------------------------------

    def call(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a plain function."""
        return self._call(fn, args, kwargs)

    async def acall(self, fn: Callable[P, Awaitable[T]], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a coroutine function, or one that returns an awaitable; an attempt that hangs is cut off after
        `attempt_s`. Raises: TypeError for any other, whose request has been made by then; use `call`."""
        return await self._acall(fn, args, kwargs)

    # One piece each, and alike line by line: what can differ is only what is awaited.

    def _call(self, fn: Callable[..., T], args: Any, kwargs: Any) -> T:  # noqa: C901, PLR0912, PLR0915
        state, clock, work = self.dependency, self.timing.clock, WORK.get()
        flying, began_s = state.flying, clock()
        run: Run | None = None
        deadline_s = None if work is None else work.deadline_s
        if self.total_s is not None or SCOPE.get() is not None:
            run, deadline_s = self._begin(work, began_s)
        if (left := self._looked.get(place := id(getattr(fn, "__code__", None)), 0)) > 0:
            self._looked[place] = left - 1
        else:
            look(self.name, self._looked, fn, args, kwargs)
        while True:
            if run is not None or state.breaker.troubled or state.limiter.on or state.held:
                run = run or Run(self, work, began_s, deadline_s)
                while isinstance(admitted := run.admit(clock()), Patience):
                    self.timing.sleep(admitted.wait_s)
                if isinstance(admitted, Instead):
                    return cast(T, admitted.value)
                if admitted > 0:
                    run.wait(admitted)
            scope = Scope()
            scope.operation = self.operation
            if self.attempt_s is not None or deadline_s is not None:
                now_s = began_s if run is None else clock()  # an attempt does not begin before its turn
                if deadline_s is not None and now_s >= deadline_s:
                    return cast(T, (run or Run(self, work, began_s, deadline_s)).late(now_s).value)
                scope.deadline_s = self._until(now_s, deadline_s)
            flying.add(scope)
            token = SCOPE.set(scope)
            try:
                result = fn(*args, **kwargs)
            except Exception as error:
                run = run or Run(self, work, began_s, deadline_s)
                self._count_unbound(fn, error, scope, work)
                decided = run.failed(error, clock(), scope)
                if decided is None:
                    raise
                if isinstance(decided, Instead):
                    return cast(T, decided.value)
            except BaseException:
                if run is not None:
                    run.left(clock())
                raise
            else:
                if type(result) not in WHOLE:
                    self._refuse_unfinished(result, run)
                if run is None:
                    state.passed(began_s, clock(), self.timing)
                else:
                    run.answered(clock())
                return result
            finally:
                flying.discard(scope)
                SCOPE.reset(token)
                scope.over = True
                if not scope.nested:  # or a policy inside has counted it
                    state.requests += 1
                    if work is not None:
                        state.count(work)
            self.timing.sleep(decided)

    async def _acall(self, fn: Callable[..., Awaitable[T]], args: Any, kwargs: Any) -> T:  # noqa: C901, PLR0912, PLR0915
        state, clock, work = self.dependency, self.timing.clock, WORK.get()
        flying, began_s = state.flying, clock()
        run: Run | None = None
        deadline_s = None if work is None else work.deadline_s
        if self.total_s is not None or SCOPE.get() is not None:
            run, deadline_s = self._begin(work, began_s)
        refuse_plain(fn)
        if (left := self._looked.get(place := id(getattr(fn, "__code__", None)), 0)) > 0:
            self._looked[place] = left - 1
        else:
            look(self.name, self._looked, fn, args, kwargs)
        while True:
            if run is not None or state.breaker.troubled or state.limiter.on or state.held:
                run = run or Run(self, work, began_s, deadline_s)
                while isinstance(admitted := run.admit(clock()), Patience):
                    await self.timing.asleep(admitted.wait_s)
                if isinstance(admitted, Instead):
                    return cast(T, admitted.value)
                if admitted > 0:
                    await run.await_(admitted)
            scope = Scope()
            scope.operation = self.operation
            if self.attempt_s is not None or deadline_s is not None:
                now_s = began_s if run is None else clock()  # an attempt does not begin before its turn
                if deadline_s is not None and now_s >= deadline_s:
                    return cast(T, (run or Run(self, work, began_s, deadline_s)).late(now_s).value)
                scope.deadline_s = self._until(now_s, deadline_s)
            flying.add(scope)
            token = SCOPE.set(scope)
            try:
                attempt = fn(*args, **kwargs)
                if type(attempt) is not CoroutineType:
                    refuse_unawaitable(fn, attempt)
                if scope.deadline_s is None:
                    result = await attempt
                else:
                    result = await cut_off(attempt, scope.deadline_s - clock())
            except NotAwaitable:
                if run is not None:
                    run.left(clock())
                raise
            except Exception as error:
                run = run or Run(self, work, began_s, deadline_s)
                self._count_unbound(fn, error, scope, work)
                decided = run.failed(error, clock(), scope)
                if decided is None:
                    raise
                if isinstance(decided, Instead):
                    return cast(T, decided.value)
            except BaseException:
                if run is not None:
                    run.left(clock())
                raise
            else:
                if type(result) not in WHOLE:
                    self._refuse_unfinished(result, run)
                if run is None:
                    state.passed(began_s, clock(), self.timing)
                else:
                    run.answered(clock())
                return result
            finally:
                flying.discard(scope)
                SCOPE.reset(token)
                scope.over = True
                if not scope.nested:  # or a policy inside has counted it
                    state.requests += 1
                    if work is not None:
                        state.count(work)
            await self.timing.asleep(decided)

    def _begin(self, work: Work | None, now_s: float) -> tuple[Run | None, float | None]:
        """Inside another call, a run that belongs to it; and the earliest deadline: the stage's, that of the call
        around us, our own."""
        outer = SCOPE.get()
        if outer is not None and outer.over:  # we were started there, but go on without it
            outer = None
        deadline_s = outer.deadline_s if outer is not None else work.deadline_s if work is not None else None
        if self.total_s is not None:
            own_s = now_s + self.total_s
            deadline_s = own_s if deadline_s is None else min(own_s, deadline_s)
        return None if outer is None else Inside(self, outer, work, now_s, deadline_s), deadline_s

    def _count_unbound(
        self, fn: Callable[..., Any], error: Exception, scope: Scope, work: Work | None
    ) -> None:
        """Count the requests that a client made by itself; a policy inside has looked at its own."""
        if scope.nested:
            return
        for _ in range(unbound_requests(self.name, fn, error)):
            self.dependency.requests += 1
            if work is not None:
                self.dependency.count(work)

    def _refuse_unfinished(self, result: object, run: Run | None) -> None:
        try:
            refuse_unfinished(result)
        except TypeError:
            if run is not None:
                run.left(self.timing.clock())
            raise

    def _until(self, now_s: float, deadline_s: float | None) -> float | None:
        """When an attempt that begins now must be over."""
        if self.attempt_s is None:
            return deadline_s
        until_s = now_s + self.attempt_s
        return until_s if deadline_s is None else min(until_s, deadline_s)


def _operation(name: str, fn: Callable[..., Any]) -> str:
    return f"{name}.{getattr(fn, '__name__', 'call')}"


def _refuse_generators(fn: Callable[..., Any]) -> None:
    if inspect.isgeneratorfunction(fn) or inspect.isasyncgenfunction(fn):
        raise TypeError(
            f"{getattr(fn, '__qualname__', fn)} yields: what it gave before it failed cannot be taken back. "
            "Guard the call that opens the stream, or return a list"
        )
