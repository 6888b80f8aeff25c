"""Which value goes into which parameter: decided by name and annotation when a stage is defined, never later."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Mapping
from typing import Any, Union, get_args, get_origin

from perdure.core.frozen import frozen
from perdure.engine.annotations import bare, compatible, hints_of, is_union
from perdure.engine.codec import type_name
from perdure.engine.context import Context
from perdure.engine.document import Document
from perdure.engine.result import Result
from perdure.errors import PipelineInvalid

DOCUMENT, CONTEXT, STAGE, INPUT, FAILURE = "document", "context", "stage", "input", "failure"
PREVIOUS, GATHERED = "previous", "gathered"

#: Parameter names with a meaning of their own; no stage may be called so.
RESERVED = {
    "doc": DOCUMENT, "document": DOCUMENT, "ctx": CONTEXT, "input": INPUT, "failure": FAILURE, "previous": PREVIOUS,
    "gathered": GATHERED,
}  # fmt: skip


@frozen
class Wiring:
    """A function's parameters in order with where their values come from, and its types."""

    inputs: dict[str, str]  # parameter → document | context | stage | input | failure | previous | gathered
    types: dict[str, Any]
    output: Any
    sources: tuple[str, ...]  # the stages it reads, in parameter order


def wire(
    owner: str,
    fn: Callable[..., Any],
    outputs: Mapping[str, Any],
    kinds: frozenset[str],
    localns: Mapping[str, Any] | None = None,
) -> Wiring:
    """Wire `fn` to the stages in `outputs` (name → output type) and to the other `kinds` of value allowed here.

    PipelineInvalid names the owner, the parameter, and what it could have been called.
    """
    hints = hints_of(fn, localns)
    inputs: dict[str, str] = {}
    wanted: dict[str, Any] = {}
    for name, parameter in inspect.signature(fn).parameters.items():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise PipelineInvalid(f"{owner}: *args and **kwargs cannot be wired; name the stages it reads")
        if parameter.kind is parameter.POSITIONAL_ONLY:
            raise PipelineInvalid(f"{owner}: parameter {name!r} is positional-only; inputs go in by name")
        wanted[name] = hints.get(name, Any)
        kind = _kind(name, wanted[name], outputs)
        if kind not in kinds:
            raise PipelineInvalid(_unknown(owner, name, outputs, kinds))
        if kind == STAGE and not compatible(outputs[name], wanted[name]):
            raise PipelineInvalid(
                f"{owner}: parameter {name!r} wants {type_name(wanted[name])}, "
                f"but stage {name} gives {type_name(outputs[name])}"
            )
        inputs[name] = kind
    sources = tuple(name for name, kind in inputs.items() if kind == STAGE)
    return Wiring(inputs, wanted, output_type(hints.get("return", Any)), sources)


def output_type(hint: Any) -> Any:
    """What a stage saves: the annotation without the Result around it."""
    if hint is Result:
        return Any
    if get_origin(hint) is Result:
        return get_args(hint)[0]
    if is_union(hint):
        return Union[tuple(output_type(member) for member in get_args(hint))]  # noqa: UP007
    return hint


def _kind(name: str, wanted: Any, outputs: Mapping[str, Any]) -> str | None:
    plain = bare(wanted)
    if plain is Document:
        return DOCUMENT
    if plain is Context:
        return CONTEXT
    return RESERVED.get(name) or (STAGE if name in outputs else None)


def _unknown(owner: str, name: str, outputs: Mapping[str, Any], kinds: frozenset[str]) -> str:
    known = [*outputs, *(word for word, kind in RESERVED.items() if kind in kinds)]
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return (
        f"{owner}: parameter {name!r} is neither an earlier stage nor anything else that can be handed in "
        f"here (known: {', '.join(known)}){hint}"
    )
