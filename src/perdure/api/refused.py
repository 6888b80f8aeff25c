"""Why a request is turned away. Without the framework, so that a process that reads JSON can say it."""

from __future__ import annotations

from typing import Any

from perdure.errors import UsageError

ERRORS_MAX = 20  # that an answer lists: enough to mend a request, and no echo of it


class Refused(UsageError):
    """A request that is turned away before anything was done."""

    def __init__(
        self, status: int, code: str, message: str, *, retry_after_s: float | None = None, **headers: str
    ) -> None:
        super().__init__(message, code=code)
        self.status = status
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}
        if retry_after_s is not None:
            self.headers["Retry-After"] = str(max(1, round(retry_after_s + 0.5)))

    def __reduce__(self) -> tuple[Any, ...]:
        return Refused, (self.status, self.code, str(self)), self.__dict__


class Invalid(UsageError):
    """A body that does not fit its model: its first errors, each with `loc` and `msg`, and how many are left out."""

    code = "request_invalid"

    def __init__(self, errors: list[dict[str, Any]], left: int = 0) -> None:
        super().__init__("the body is not as it should be")
        self.errors, self.left = errors, left

    def __reduce__(self) -> tuple[Any, ...]:
        return Invalid, (self.errors, self.left)
