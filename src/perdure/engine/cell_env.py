"""The environment of cells: without Perdure's own addresses, passwords and keys, unless PERDURE_CELL_ENV names them.

A cell in a sandbox reads files of strangers and gets no more than an interpreter needs. Any other runs stages of the
user, whose keys for services of his own stay.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from typing import Any
from urllib.parse import urlsplit

from perdure.settings import ADDRESSES, SECRETS, WITHHELD, WITHHELD_SERVER, Settings, variable

#: Whether a variable of this name is passed on.
Passes = Callable[[str], bool]

#: Of the services that Perdure itself uses.
OWN = (
    "RABBITMQ_*", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_CONTAINER_AUTHORIZATION_TOKEN*", "PGPASSWORD",
    "PGPASSFILE", "PGSERVICEFILE", "PGSSLKEY", "OTEL_EXPORTER_OTLP*HEADERS", "PUSHGATEWAY_*",
)  # fmt: skip
#: What a cell in a sandbox gets besides settings that are not secret.
NEEDED = (
    "PATH", "HOME", "LANG", "LANGUAGE", "LC_*", "TZ", "TZDIR", "TMPDIR", "PYTHON*", "VIRTUAL_ENV", "LD_LIBRARY_PATH",
    "DYLD_*", "TESSDATA_PREFIX", "FONTCONFIG_*", "MALLOC_*", "*_NUM_THREADS", "PERDURE_*", "COVERAGE_*",
)  # fmt: skip
_PLACES = ("store", "direct_url", "blobs")


def passes(patterns: str) -> Passes:
    """What PERDURE_CELL_ENV says: names or patterns, separated by commas."""
    wanted = [pattern.strip() for pattern in patterns.split(",") if pattern.strip()]
    return lambda name: any(fnmatchcase(name, pattern) for pattern in wanted)


def environment(given: Mapping[str, str], boxed: bool, passed: Passes) -> dict[str, str]:
    """The variables of the process that forks cells, and of these."""
    secret_names = {variable(name) for name in (*SECRETS, *_PLACES)}
    # the same address or password under another name is as secret; a short one is a word of any text
    secret_values = {given[name] for name in secret_names if len(given.get(name, "")) >= 8}

    def kept(name: str, value: str) -> bool:
        if passed(name):
            return True
        own = name.upper() in secret_names or any(fnmatchcase(name, pattern) for pattern in OWN)
        if own or value in secret_values or (name.upper().startswith("PERDURE_") and "@" in value):
            return False
        return not boxed or any(fnmatchcase(name, pattern) for pattern in NEEDED)

    found = {name: value for name, value in given.items() if kept(name, value)}
    return {variable("store"): _withheld(given.get(variable("store"), "")), **found}


def settings_for_cell(settings: Settings, passed: Passes) -> dict[str, Any]:
    """The settings as plain values, without secrets and places; addresses of services without passwords."""
    found = settings.model_dump()
    for name in (*SECRETS, *ADDRESSES):
        if passed(variable(name)):
            continue
        if name in (*SECRETS, *_PLACES):
            del found[name]
        elif "@" in (address := found[name] or ""):
            parts = urlsplit(address)
            found[name] = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
    return {"store": _withheld(settings.store), **found}


def _withheld(address: str) -> str:
    """An address of the same kind, so that modules that name a store can be imported in a cell."""
    return WITHHELD_SERVER if address.startswith("postgres") else WITHHELD
