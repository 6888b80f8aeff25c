"""Stages that could as well run in the worker have its keys in a cell, too: a suspect must not die of a missing one."""

from __future__ import annotations

import os

import pytest

from perdure.settings import Settings
from perdure.testing import drain, trial
from tests.engine.keyed import letters
from tests.engine.test_suspects import let_a_worker_die

KEY = "sk-of-the-embedder"


@pytest.mark.parametrize("suspect", [False, True])
def test_only_stages_that_are_always_isolated_lack_keys(
    monkeypatch: pytest.MonkeyPatch, suspect: bool
) -> None:
    monkeypatch.setenv("PERDURE_EMBED_KEY", KEY)
    with trial(letters, cells=True, settings=Settings(embed_key=KEY)) as app:
        id_ = app.add(text="a", pipeline=letters).id
        if suspect:
            let_a_worker_die(app, 1)
        assert drain(app).done == 1

        guarded, trusted, here = (app.output(id_, stage) for stage in ("guarded", "trusted", "here"))

        assert guarded[:2] == [None, None]
        assert trusted[:2] == here[:2] == [KEY, KEY]
        own = str(os.getpid())
        assert (guarded[2] == own, trusted[2] == own, here[2] == own) == (False, False, not suspect)
