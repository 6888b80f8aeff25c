"""What an error of a call means: whether to try again, when, and whether the service is away."""

from __future__ import annotations

from typing import Literal

from perdure.core.frozen import frozen

Kind = Literal["retryable", "rate_limited", "permanent", "unknown"]


#: Permanent reasons that concern stage code alone: a bug may be mended by the next attempt, as anywhere in a stage.
_BUGS = frozenset({"programming_error", "cancelled"})
_INVALID = frozenset({
    "validation", "constraint", "data_invalid", "invalid_url", "invalid_request", "too_many_redirects",
})  # fmt: skip
_RIGHTS = frozenset({
    "credentials", "certificate", "invalid_api_key", "authentication_error", "permission_error", "PERMISSION_DENIED",
    "UNAUTHENTICATED", "AccessDenied", "AccessDeniedException", "ExpiredToken",
})  # fmt: skip
_RIGHTS_STATUSES = frozenset({401, 403, 407})
_PAYMENT_REQUIRED = 402


@frozen
class Verdict:
    """The meaning of one failed request."""

    kind: Kind
    reason: str  # short and stable, for logs and metrics: "status_503", "connection_refused", "quota"
    hint_s: float | None = None  # how long the service asked us to wait
    processed: bool = True  # False only if the request was certainly not carried out
    outage: bool = False  # it says that the service is away, not that it is busy or that we are wrong
    status: int | None = None
    code: str | None = None  # the provider's own, an SQLSTATE, the name of an errno
    unwanted: bool = False  # the service asked this call not to try again; a later one may

    @property
    def passes(self) -> bool:
        """Whether the trouble may pass, so that another request may help, now or later."""
        return self.kind in ("retryable", "rate_limited")

    @property
    def again(self) -> bool:
        """Whether this call may try again."""
        return self.passes and not self.unwanted

    @property
    def refusal(self) -> str | None:
        """The code with which a job dies of this error at once; None if another attempt may help."""
        if self.kind != "permanent" or self.reason in _BUGS:
            return None
        if self.reason == "quota" or self.status == _PAYMENT_REQUIRED:
            return "call_quota"
        if self.status in _RIGHTS_STATUSES or self.code in _RIGHTS or self.reason in _RIGHTS:
            return "call_unauthorized"
        return "call_invalid" if self.status is None and self.reason in _INVALID else "call_refused"
