"""What PostgreSQL's statements are made of: rows as arrays, guarded changes, a finish with all that belongs to it."""

from __future__ import annotations

from perdure.store.dialect import FENCE_SAVE, FINISH, FINISH_ATTEMPT, FINISH_DOCUMENT, KEPT


def unnest(columns: dict[str, str], scalars: int = 0) -> str:
    arrays = ", ".join(f"${n}::{kind}[]" for n, kind in enumerate(columns.values(), scalars + 1))
    return f"unnest({arrays}) AS r({', '.join(columns)})"


def insert(table: str, columns: dict[str, str], conflict: str) -> str:
    names = ", ".join(columns)
    return f"INSERT INTO {table} ({names}) SELECT {names} FROM {unnest(columns)} {conflict}"


def guarded(columns: dict[str, str], put: str, also: str = "") -> str:
    """Change what is still ours, in the order of the rows; answers the ordinals that were accepted.

    Only a running job has a token, so its state need not be asked for: the index of running jobs, full of entries
    that are dead already, would be the slower way to a job whose id is known.
    """
    return (
        f"UPDATE job j SET {put.replace('{r}', 'r.')} FROM {unnest(columns, 1)} "
        f"WHERE j.org = r.org AND j.id = r.id AND j.token = r.token {also} RETURNING r.ord, j.state"
    )


#: A job that is saved or (`done`) finished.
SAVED_OR_DONE = FENCE_SAVE | FINISH | {"done": "boolean"}


def either(condition: str, put: str, otherwise: str) -> str:
    """One list of assignments or the other; a column that one of them does not name stays as it is."""
    first, second = (dict(part.split(" = ", 1) for part in text.split(", ")) for text in (put, otherwise))
    return ", ".join(
        f"{name} = CASE WHEN {condition} THEN {first.get(name, f'j.{name}')} "
        f"ELSE {second.get(name, f'j.{name}')} END"
        for name in first | second
    )


def finishing(columns: dict[str, str], put: str, done: str) -> str:
    """Change jobs that are still ours; those that are `done` get their history, and their documents end."""
    kept = ", ".join(f"{column} = own.{column}" for column in KEPT)
    return (
        f"WITH own AS (UPDATE job j SET {put.replace('{r}', 'r.')} FROM {unnest(columns, 1)} "
        "WHERE j.org = r.org AND j.id = r.id AND j.token = r.token "
        "RETURNING r.ord, r.token, r.stage, r.worker, r.requests, j.org, j.document_id, j.key, j.generation, "
        f"j.claims, j.attempts, j.claimed_ms, j.attempts_max, j.beat_ms, {done} AS done), "
        f"history AS ({FINISH_ATTEMPT.replace('{job}', '').replace('{r}', '')} FROM own WHERE own.done "
        "ON CONFLICT DO NOTHING), "
        f"ended AS ({FINISH_DOCUMENT} {kept} FROM own WHERE own.done AND own.key = 'doc-' || own.document_id "
        "AND d.org = own.org AND d.id = own.document_id) SELECT ord FROM own"
    )
