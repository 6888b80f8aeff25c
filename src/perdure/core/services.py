"""What a worker asks about its settings before it claims: which services they name, and whether they are valid."""

from __future__ import annotations

from collections.abc import Callable

#: Who holds the documents that need a service which nobody has named yet; a worker that knows one lets them go.
CONFIGURATION = "configuration"

#: Whether the settings of this process name it, by the name that stages have in `needs`.
CONFIGURED: dict[str, Callable[[], bool]] = {}

#: Checks of settings that stages read late; each raises SettingInvalid. A worker runs all of them before it claims.
CHECKS: list[Callable[[], object]] = []
