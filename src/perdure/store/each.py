"""Reading for each of many rows, in one text for both databases: the row is `r` in it, after the scalar parameters."""

from __future__ import annotations

from collections.abc import Sequence

from perdure.store.base import Query, Row, Steps

SLICE = 500


class Each:
    """`SELECT … FROM {r} CROSS JOIN …`; the columns of `r` with PostgreSQL's types.

    `of_all` is another text for PostgreSQL, which has all rows at a time.
    """

    def __init__(self, text: str, scalars: int, of_all: str | None = None, **columns: str) -> None:
        arrays = ", ".join(f"${n}::{kind}[]" for n, kind in enumerate(columns.values(), scalars + 1))
        values = ", ".join(f"${n} AS {name}" for n, name in enumerate(columns, scalars + 1))
        self.texts = {
            "postgres": (of_all or text).replace("{r}", f"unnest({arrays}) AS r({', '.join(columns)})"),
            "sqlite": text.replace("{r}", f"(SELECT {values}) AS r"),
        }

    def steps(self, dialect_name: str, params: Row, wanted: Sequence[Row]) -> Steps[list[Row]]:
        """What is read, some hundred rows at a time."""
        found: list[Row] = []
        for n in range(0, len(wanted), SLICE):
            found += yield Query(self.texts[dialect_name], params, wanted[n : n + SLICE])
        return found
