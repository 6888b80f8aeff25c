"""A verb that takes options by name refuses a misspelt one, before it does anything."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, NamedTuple, get_args, get_type_hints

import pytest

from perdure.app import AsyncPerdure, Perdure
from perdure.errors import InputInvalid
from perdure.operate.requeue import RequeueOptions
from tests.operate.test_dead import added, opened

#: Arguments that a call needs beside the misspelt one to be right.
NEEDED: dict[str, dict[str, Any]] = {
    "add": {"pipeline": "books", "text": "new"},
    "rerun": {"pipeline": "books", "from_stage": "parse", "where": {}},
    "rerunning": {"pipeline": "books", "from_stage": "parse", "where": {}},
    "export": {"target": "/nowhere/dead.jsonl"},
    "purge": {"export": None},
}


class Taking(NamedTuple):
    """A verb of a door, and the options that it takes by name: beside each other, or in `how`."""

    door: type
    verb: str
    options: type
    nested: bool

    def given(self, name: str) -> dict[str, Any]:
        needed = NEEDED.get(self.verb, {})
        return {**needed, "how": {name: True}} if self.nested else {**needed, name: True}


def verbs_with_options() -> list[Taking]:
    """Every public verb of both doors that takes `Unpack[…]` or `how=`."""
    found = []
    for door in (AsyncPerdure, Perdure):
        for verb, function in inspect.getmembers(door, inspect.isfunction):
            if verb.startswith("_"):
                continue
            parameters = inspect.signature(function).parameters.values()
            for one in (one for one in parameters if one.kind is one.VAR_KEYWORD):
                (options,) = get_args(get_type_hints(function)[one.name])
                found.append(Taking(door, verb, options, nested=False))
            if (
                any(one.name == "how" for one in parameters) and verb != "requeuing"
            ):  # a piece of requeue_dead
                found.append(Taking(door, verb, RequeueOptions, nested=True))
    return found


VERBS = verbs_with_options()


def test_the_walk_finds_the_verbs() -> None:
    assert {"add", "documents", "dead", "groups", "requeue_dead", "export", "purge", "rerun"} == {
        one.verb for one in VERBS if one.door is Perdure
    }


@pytest.mark.parametrize(
    "taking", VERBS, ids=lambda one: f"{one.door.__name__}.{one.verb}{'-how' * one.nested}"
)
def test_a_misspelt_option_is_refused_and_nothing_happens(taking: Taking, store_url: str) -> None:
    with opened(store_url) as app:
        added(app, "good", "bad")
        before, seen = app.documents(), app.dead()
        door: Any = app if taking.door is Perdure else app.service
        call: Callable[..., object] = getattr(door, taking.verb)
        for name in taking.options.__annotations__:
            wrong = f"{name}{name[-1]}"
            with pytest.raises(InputInvalid, match=f"{wrong}; did you mean: .*{name}"):
                app._call(_awaited(call, taking.given(wrong)))
        assert (app.documents(), app.dead()) == (before, seen)


async def _awaited(call: Callable[..., object], given: dict[str, Any]) -> None:
    answer = await asyncio.to_thread(call, **given)
    if isinstance(answer, AsyncIterator):
        await anext(answer)
    elif isinstance(answer, Awaitable):
        await answer
