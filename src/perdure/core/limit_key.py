"""Keys of limits: `org:NAME`, `dependency:NAME`, and all others, which `concurrency_key` of a pipeline gives.

The first two are *gates*: every job has them, by its organisation and the lane it stands in, in every pipeline.
"""

from __future__ import annotations

from perdure.core.lane import uses_of

ORG, DEPENDENCY = "org:", "dependency:"
#: Of a key in SQL: it is one of a gate. Its index serves both ranges (`;` follows `:`).
IS_ORG = "{key} >= 'org:' AND {key} < 'org;'"
IS_DEPENDENCY = "{key} >= 'dependency:' AND {key} < 'dependency;'"
IS_GATE = f"({IS_ORG} OR {IS_DEPENDENCY})"


def is_gate(key: str) -> bool:
    """Whether the key is that of an organisation or a dependency."""
    return key.startswith((ORG, DEPENDENCY))


def gates_of(org: str, lane: str) -> tuple[str, ...]:
    """The gates of a job of this organisation in this lane."""
    return (ORG + org, *(DEPENDENCY + name for name in sorted(uses_of(lane))))
