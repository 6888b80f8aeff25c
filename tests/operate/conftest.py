"""Tests of operators' verbs may be coroutines with a `world`, as those of the store."""

from tests.store.conftest import pytest_pyfunc_call, world

__all__ = ["pytest_pyfunc_call", "world"]
