"""Pipelines refuse what cannot run when it is defined, and say what they were asked: options, policies, hooks."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, replace
from typing import Any

import pytest

from perdure.core.model import Policy
from perdure.core.outcome import Failure
from perdure.engine.context import Context
from perdure.engine.document import Document
from perdure.engine.pipeline import Pipeline
from perdure.errors import PipelineInvalid
from tests.core.jobs import UNSTARTED
from tests.engine.port import DOC, context, name_of


def empty(name: str = "books", **options: Any) -> Pipeline:
    return Pipeline(name, **options)


def generator(doc: Document) -> Iterator[int]:
    yield 1


async def async_generator(doc: Document) -> Any:
    yield 1


def starred(doc: Document, *rest: Any) -> None: ...


def double_starred(doc: Document, **rest: Any) -> None: ...


def positional(doc: Document, /) -> None: ...


def Capital(doc: Document) -> None: ...


def ctx(doc: Document) -> None: ...


def plain(doc: Document) -> None: ...


@pytest.mark.parametrize(
    "fn",
    [
        generator,
        async_generator,
        starred,
        double_starred,
        positional,
        Capital,
        ctx,
        5,
        functools.partial(plain),
    ],
    ids=name_of,
)
def test_functions_that_cannot_be_stages(fn: Any) -> None:
    with pytest.raises(PipelineInvalid):
        empty().stage(fn)


@pytest.mark.parametrize(
    "options",
    [
        {"version": 0},
        {"timeout": 0},
        {"attempts": 0},
        {"lease_s": 2_147_484},
        {"backoff_s": -1},
        {"memory_mb": 0},
        {"needs": ["Open AI"]},
        {"was": "Old"},
        {"was": "plain"},
        {"was": "there"},
    ],
    ids=name_of,
)
def test_options_that_make_no_sense(options: Any) -> None:
    pipeline = empty()

    @pipeline.stage
    def there(doc: Document) -> None: ...

    with pytest.raises(PipelineInvalid):
        pipeline.stage(**options)(plain)
    assert [stage.name for stage in pipeline.stages] == ["there"]


@pytest.mark.parametrize(
    "options",
    [
        {"name": "Books"},
        {"name": "1books"},
        {"name": "b" * 64},
        {"name": "books.on_dead"},
        {"attempts": 0},
        {"lease_s": 0},
        {"lease_s": 2_147_484},
        {"backoff_s": -1},
        {"queue": "My queue"},
    ],
    ids=name_of,
)
def test_pipelines_that_make_no_sense(options: Any) -> None:
    with pytest.raises(PipelineInvalid):
        empty(**options)


def test_names_are_taken_once() -> None:
    pipeline = empty()
    pipeline.stage(was="older")(plain)
    assert pipeline.at("older") is pipeline.at("plain") is pipeline.stages[0]
    assert pipeline.at("oldest") is None
    with pytest.raises(PipelineInvalid, match="already"):
        pipeline.stage(plain)
    with pytest.raises(PipelineInvalid, match="its name"):

        @pipeline.stage
        def older(doc: Document) -> None: ...


def test_a_pipeline_needs_stages_and_types_that_can_be_stored() -> None:
    with pytest.raises(PipelineInvalid, match="no stages"):
        empty().check()
    pipeline = empty()

    class Opaque: ...

    @pipeline.stage
    def hidden(doc: Document) -> Opaque:
        return Opaque()

    pipeline.check()
    with pytest.raises(PipelineInvalid, match="what stage hidden gives"):
        pipeline.check(types=True)


def test_a_lane_is_the_same_whatever_the_order() -> None:
    pipeline = empty()
    pipeline.stage(needs=["openai", "ocr", "openai"])(plain)
    assert pipeline.stages[0].lane == "ocr+openai"


def test_the_model_is_asked_for_each_time() -> None:
    pipeline = empty()
    names = iter(["a", "b"])
    stage = pipeline.stage(model=lambda: next(names))(plain)
    assert (stage.model_name(), stage.model_name()) == ("a", "b")
    assert empty().stage(model="m")(plain).model_name() == "m"
    assert empty().stage(plain).model_name() is None


def test_each_stage_has_its_own_policy_within_the_jobs() -> None:
    pipeline = empty(attempts=2, backoff_s=300, backoff_cap_s=3600, jitter=True, lease_s=20)
    patient = pipeline.stage(attempts=5, backoff_s=1.5, lease_s=60)(plain)

    @pipeline.stage
    def other(doc: Document) -> None: ...

    base = pipeline.policy
    assert base == Policy(5, 300_000, 3_600_000, jitter=True)
    job = replace(UNSTARTED, policy=base)
    assert patient.policy(job) == Policy(5, 1_500, 3_600_000, jitter=True)
    assert other.policy(job) == Policy(2, 300_000, 3_600_000, jitter=True)
    own = replace(UNSTARTED, policy=Policy(attempts=9, pinned=True))
    assert other.policy(own).attempts == 9  # the document's own
    assert (patient.lease_ms, other.lease_ms) == (60_000, 20_000)
    assert empty().policy == Policy()


def test_hooks_are_pipelines_of_one_stage() -> None:
    pipeline = empty(queue="slow")
    pipeline.stage(plain)

    @pipeline.on_dead
    def tell(doc: Document, failure: Failure | None, ctx: Context) -> str:
        return f"{doc.id}: {failure.code if failure else 'fine'}"

    @pipeline.on_done
    def cheer(doc): ...  # type: ignore[no-untyped-def]

    hook = pipeline.hooks["dead"]
    assert (hook.name, hook.queue, hook.policy.attempts, hook.stages) == ("books.on_dead", "slow", 5, [tell])
    assert pipeline.policy.hooks == ("dead", "done")
    assert [stage.name for stage in pipeline.stages] == ["plain"]
    failure = Failure("plain", "ValueError", "unexpected", "bad", 500)
    raw = json.dumps(asdict(failure)).encode()
    ctx = context()
    assert tell.arguments(DOC, ctx, {}, raw) == {"doc": DOC, "failure": failure, "ctx": ctx}
    assert tell(**tell.arguments(DOC, ctx, {}, b"null")) == "d1: fine"
    pipeline.check(types=True)
    with pytest.raises(PipelineInvalid, match="has an on_dead already"):
        pipeline.on_dead(plain)
    with pytest.raises(PipelineInvalid, match="'plain'"):
        empty().on_dead(lambda_named_after_nothing)


def lambda_named_after_nothing(plain: int) -> None: ...


def test_pydantic_is_not_imported_before_it_is_needed() -> None:
    program = (
        "import sys; from perdure.engine.pipeline import Pipeline; p = Pipeline('p')\n"
        "@p.stage\ndef a(doc) -> list[int]: return [1]\n"
        "p.check(); assert 'pydantic' not in sys.modules, 'pydantic'"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
