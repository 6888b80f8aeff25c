"""Signatures of webhooks: whoever knows the secret can tell that it was us, and when.

Perdure-Signature: t=1731744000,v1=HEX      HMAC-SHA256 of "TIME.BODY" under the secret
"""

from __future__ import annotations

import hashlib
import hmac
import re
import time

HEADER = "Perdure-Signature"
TOLERANCE_S = 300.0
_FORM = re.compile(r"t=([0-9]{1,12}),v1=([0-9a-f]{64})")


def sign(secret: str, body: bytes, at_s: int) -> str:
    """The header's value."""
    made = hmac.new(secret.encode(), f"{at_s}.".encode() + body, hashlib.sha256).hexdigest()
    return f"t={at_s},v1={made}"


def verify(
    secret: str, header: str, body: bytes, *, tolerance_s: float = TOLERANCE_S, now_s: float | None = None
) -> bool:
    """Whether this came from Perdure, lately; False for any header of another form. `body` is what was received, byte
    for byte."""
    found = _FORM.fullmatch(header)
    if found is None:
        return False
    at_s = int(found[1])
    late_s = abs((time.time() if now_s is None else now_s) - at_s)
    return late_s <= tolerance_s and hmac.compare_digest(sign(secret, body, at_s), header)
