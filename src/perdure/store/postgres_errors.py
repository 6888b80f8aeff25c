"""The errors of PostgreSQL and of its driver, as ours."""

from __future__ import annotations

from typing import Any

import asyncpg

from perdure.errors import SettingInvalid, StoreBusy, StoreError, StoreUnavailable
from perdure.store.base import DataRefused


class mapped:
    """PostgreSQL's errors as ours."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        match error:
            case None:
                return
            case asyncpg.InvalidCachedStatementError():
                raise StoreUnavailable(f"the schema changed under a prepared statement: {error}") from error
            case asyncpg.PostgresError() if error.sqlstate:
                raise _by_state(error.sqlstate, error) from error
            case asyncpg.DataError() | OverflowError() | UnicodeEncodeError() | TypeError():
                raise DataRefused(str(error)) from error
            case asyncpg.ClientConfigurationError():
                raise DataRefused(str(error)) from error
            case (
                asyncpg.InterfaceError() | asyncpg.InternalClientError()
            ):  # the latter when cut in mid-sentence
                raise StoreUnavailable(f"the connection to PostgreSQL was lost: {error}") from error
            case OSError() | TimeoutError():
                raise StoreUnavailable(
                    f"cannot reach PostgreSQL: {str(error) or type(error).__name__}; check the address and that it runs"
                ) from error
            case ValueError():
                raise DataRefused(str(error)) from error
            case _:
                return


def _by_state(state: str, error: BaseException) -> Exception:
    if state in ("55P03", "57014"):
        return StoreBusy(f"PostgreSQL waited for too long ({state}): {error}", code="lock_timeout")
    if state.startswith("40"):
        return StoreBusy(f"PostgreSQL was busy ({state}): {error}")
    if state in ("28P01", "28000", "3D000"):
        return SettingInvalid(
            f"PostgreSQL refused the address ({state}): {error}; check user, password and database"
        )
    if state in (
        "26000",
        "42P05",
    ):  # another client of a pooler has the server connection that we prepared for
        return StoreUnavailable(
            f"a pooler lost or doubled a prepared statement ({state}: {str(error).partition(chr(10))[0]}); "
            "set PERDURE_DIRECT_URL to the unpooled address"
        )
    if state[:2] in ("08", "53", "57", "58", "25"):
        return StoreUnavailable(f"PostgreSQL is not available ({state}): {error}")
    if state[:2] in ("21", "22", "23", "54"):
        return DataRefused(f"{state}: {error}", foreign_key=state == "23503")
    if state == "42P01":
        return StoreError(f"a table is missing ({error}); run `perdure migrate`", code="schema_outdated")
    return StoreError(f"PostgreSQL {state}: {error}")
