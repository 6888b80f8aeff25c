"""Errors of calls that no other attempt changes, as the job layer learns of them.

A call lets the client's own exception through, because stage code may catch it. The call marks it; where it leaves the
stage, `refused` gives the error that ends the job. Stage code that raises one of Perdure's errors instead has decided.
"""

from __future__ import annotations

from perdure.errors import CallRefused, PerdureError

MARK = "_perdure_refused"
CAUSES_MAX = 20


def mark_refused(
    error: Exception, code: str, dependency: str, reason: str, status: int | None = None
) -> None:
    """Note that the call to `dependency` which raised this error has failed for good."""
    # not through setattr, which a frozen class refuses
    error.__dict__[MARK] = (code, dependency, reason, status)


def refused(error: BaseException) -> CallRefused | None:
    """The end of the job if this error, or one that it was raised from, comes from a call that failed for good."""
    at: BaseException | None = error
    for _ in range(CAUSES_MAX):
        if at is None or isinstance(at, PerdureError):
            return None
        if MARK in vars(at):
            return _ending(at)
        at = at.__cause__
    return None


def _ending(error: BaseException) -> CallRefused:
    code, dependency, reason, status = vars(error)[MARK]
    try:
        words = str(error)
    except Exception:  # an exception whose own text cannot be had must still end its job
        words = ""
    message = f"{dependency} failed for good ({reason}): {words}" if words else f"{dependency}: {reason}"
    ending = CallRefused(
        code, message, dependency=dependency, type_name=type(error).__name__, status_code=status
    )
    ending.__cause__ = error
    return ending
