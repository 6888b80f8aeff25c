"""Secrets of webhooks that stand nowhere: derived from a key of the operator's and the webhook's id.

A store keeps only which key it was, so a copy of it signs nothing. Secrets that were made without a key are kept as
they are.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets

from perdure.errors import SettingInvalid

LENGTH_MIN = 32  # characters of a key, which could be guessed from its name otherwise
DERIVED = "derived:"


def keys_of(setting: str | None) -> list[str]:
    """Return the keys of the setting, the one for new secrets first; SettingInvalid if one is too short."""
    keys = [key.strip() for key in (setting or "").split(",") if key.strip()]
    if any(len(key) < LENGTH_MIN for key in keys):
        raise SettingInvalid(
            f"a key of PERDURE_SECRET_KEY has fewer than {LENGTH_MIN} characters; make one with `openssl rand -hex 32`"
        )
    return keys


def new_secret(setting: str | None) -> str:
    """Return what a store keeps of a new secret: the name of the key, or without one the secret itself."""
    keys = keys_of(setting)
    return f"{DERIVED}{_name(keys[0])}" if keys else f"whsec_{secrets.token_urlsafe(32)}"


def secret_of(kept: str, id_: str, setting: str | None) -> str:
    """Return the secret of the webhook; SettingInvalid (`secret_key_missing`) if its key is not set here."""
    if not kept.startswith(DERIVED):
        return kept
    for key in keys_of(setting):
        if hmac.compare_digest(_name(key), kept.removeprefix(DERIVED)):
            made = _hmac(key, f"perdure webhook {id_}")
            return f"whsec_{base64.urlsafe_b64encode(made).decode().rstrip('=')}"
    raise SettingInvalid(
        f"the secret of webhook {id_} was made with a key that PERDURE_SECRET_KEY does not name; add that key to it",
        code="secret_key_missing",
    )


def _name(key: str) -> str:
    return _hmac(key, "perdure name of a key").hex()[:16]


def _hmac(key: str, text: str) -> bytes:
    return hmac.new(key.encode(), text.encode(), hashlib.sha256).digest()
