"""Services that must be named by the settings before anybody can ask them."""

from __future__ import annotations

from collections.abc import Callable

#: Who holds the documents that need a service which nobody has named yet; a worker that knows one lets them go.
CONFIGURATION = "configuration"

#: Whether the settings of this process name it, by the name that stages have in `needs`.
CONFIGURED: dict[str, Callable[[], bool]] = {}
