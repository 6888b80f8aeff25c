"""`MODULE:APP` → the app object."""

from __future__ import annotations

import importlib
import os
import sys

from perdure.app import Perdure
from perdure.errors import SettingInvalid

FORM = "write it as module:app, for example books:app"


def load_app(target: str) -> Perdure:
    """The app that the module defines; SettingInvalid says what is missing."""
    module_name, _, path = target.partition(":")
    if not module_name or not path:
        raise SettingInvalid(f"{target!r} does not name an app; {FORM}", code="target_invalid")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found: object = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and not module_name.startswith(error.name):
            raise
        raise SettingInvalid(
            f"there is no module {module_name!r} here; {FORM}", code="target_invalid"
        ) from error
    for name in path.split("."):
        found = getattr(found, name, None)
    if not isinstance(found, Perdure):
        raise SettingInvalid(f"{target!r} is not a Perdure app; {FORM}", code="target_invalid")
    return found
