"""Policies that come with Perdure; the environment changes their numbers.

    OPENAI_RETRY_MAX=3  OPENAI_RETRY_BASE_MS=2000  OPENAI_RETRY_MAX_BACKOFF_MS=30000

The same for GOOGLE_VISION_RETRY_* (3/1000/15000) and STORAGE_RETRY_* (3/1000/10000). MAX counts retries: 3 are at most
4 requests, 0 is one.
"""

from __future__ import annotations

import os
from functools import cache

from perdure.calls.jitter import FullJitter
from perdure.calls.policy import Policy
from perdure.core.knobs import check as check_knobs
from perdure.core.services import CHECKS
from perdure.errors import PolicyInvalid, SettingInvalid

DIGITS_MAX = 9
_ATTEMPT_S = {"openai": 600.0}


@cache
def openai() -> Policy:
    """OpenAI and whatever speaks like it: 3 retries, up to 2, 4, 8 s apart; an attempt may take ten minutes."""
    return _preset("openai", "OPENAI", 3, 2_000, 30_000)


@cache
def google_vision() -> Policy:
    """Google Vision: 3 retries, up to 1, 2, 4 s apart."""
    return _preset("google_vision", "GOOGLE_VISION", 3, 1_000, 15_000)


@cache
def storage_upload() -> Policy:
    """Writing to object storage: 3 retries, up to 1, 2, 4 s apart."""
    return _preset("storage", "STORAGE", 3, 1_000, 10_000).but(operation="storage.upload")


@cache
def storage_download() -> Policy:
    """Reading from object storage: as `storage_upload`, and the same dependency."""
    return _preset("storage", "STORAGE", 3, 1_000, 10_000).but(operation="storage.download")


PRESETS = {preset.__name__: preset for preset in (openai, google_vision, storage_upload, storage_download)}


def check() -> None:
    """Raises: PolicyInvalid if a number of a preset in the environment cannot be used."""
    check_knobs()
    for preset in PRESETS.values():
        preset.__wrapped__()


CHECKS.append(check)


def _preset(name: str, prefix: str, retries: int, base_ms: int, cap_ms: int) -> Policy:
    retries = _number(f"{prefix}_RETRY_MAX", retries)
    base_s = _number(f"{prefix}_RETRY_BASE_MS", base_ms) / 1000
    cap_s = (
        _number(f"{prefix}_RETRY_MAX_BACKOFF_MS", cap_ms, least=1) / 1000
    )  # and hints up to it are waited for
    return Policy(
        name,
        retries=retries,
        backoff=FullJitter(base_s, cap_s),
        hint_cap_s=cap_s,
        attempt_s=_ATTEMPT_S.get(name),
    )


def _number(variable: str, default: int, least: int = 0) -> int:
    text = os.environ.get(variable, "").strip()
    if not text:
        return default
    whole = text.isascii() and text.isdigit() and len(text.lstrip("0")) <= DIGITS_MAX
    if not whole or int(text) < least:
        raise PolicyInvalid(
            f"{variable} is {text[:100]!r}; it must be a whole number from {least} to {10**DIGITS_MAX - 1:,}",
            code=SettingInvalid.code,  # the variable is a setting
        )
    return int(text)
