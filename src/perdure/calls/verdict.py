"""What an error of a call means: whether to try again, when, and whether the service is away."""

from __future__ import annotations

from typing import Literal

from perdure.core.frozen import frozen

Kind = Literal["retryable", "rate_limited", "permanent", "unknown"]


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

    @property
    def again(self) -> bool:
        """Whether another try may help."""
        return self.kind in ("retryable", "rate_limited")
