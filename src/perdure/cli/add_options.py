"""How `perdure add` treats documents, as it was typed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from perdure.cli.operator import moment
from perdure.errors import InputInvalid
from perdure.service import AddOptions


def options_of(*, at: str | None, meta: Sequence[str] | None, **given: Any) -> AddOptions:
    """The options that were given; those that were not are left to the app. Raises: InputInvalid."""
    options = {name: value for name, value in given.items() if value is not None}
    if at is not None:
        options["run_at"] = moment(at, datetime.now(UTC))
    if meta:
        options["meta"] = meta_of(meta)
    found: AddOptions = {}
    found.update(options)  # type: ignore[typeddict-item]
    return found


def meta_of(given: Sequence[str]) -> dict[str, Any]:
    """`NAME=VALUE`, once for each name, or one JSON object. Raises: InputInvalid."""
    if len(given) == 1 and given[0].lstrip().startswith("{"):
        try:
            found = json.loads(given[0])
        except (ValueError, RecursionError) as error:
            raise InputInvalid(f"--meta is not a JSON object: {error}") from None
        return dict(found)
    meta: dict[str, Any] = {}
    for one in given:
        name, sign, value = one.partition("=")
        if not sign or not name:
            raise InputInvalid(f"--meta takes NAME=VALUE or one JSON object, not {one!r}")
        if name in meta:
            raise InputInvalid(f"--meta {name} is given twice")
        meta[name] = value
    return meta
