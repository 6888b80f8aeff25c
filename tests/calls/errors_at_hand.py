"""Errors to classify, made or raised on purpose, and an address where nobody listens."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any


def raised(call: Callable[[], object]) -> BaseException:
    try:
        call()
    except BaseException as error:
        return error
    raise AssertionError("nothing was raised")


def made(path: str, *bases: type[BaseException], **attributes: Any) -> BaseException:
    """An error of a library that is not installed: only its name and attributes count."""
    module, _, name = path.rpartition(".")
    return type(name, bases or (Exception,), {"__module__": module, **attributes})("text")


class ServiceError(Exception):
    def __init__(self, message: str = "", **facts: Any) -> None:
        super().__init__(message)
        self.__dict__.update(facts)


class Answer:
    def __init__(self, **facts: Any) -> None:
        self.__dict__.update(facts)


def chained(*errors: BaseException, explicit: bool = True) -> BaseException:
    for outer, inner in pairwise(errors):
        outer.__cause__ = inner if explicit else None
        outer.__context__ = inner
        outer.__suppress_context__ = explicit
    return errors[0]


@contextmanager
def closed_port() -> Iterator[str]:
    """An address where nobody listens, and nobody else will meanwhile."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{taken.getsockname()[1]}"
