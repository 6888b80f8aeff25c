"""`MODULE:APP` → the app object."""

from __future__ import annotations

import importlib
import os
import sys
import traceback

from perdure.app import Perdure
from perdure.errors import PerdureError, SettingInvalid

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
    except PerdureError:
        raise
    except Exception as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing is not None and f"{module_name}.".startswith(f"{missing}."):
            raise SettingInvalid(
                f"there is no module {module_name!r} here; {FORM}", code="target_invalid"
            ) from error
        last = traceback.extract_tb(error.__traceback__)[-1]
        what = f"{type(error).__name__}: {error} ({last.filename}, line {last.lineno})"
        raise SettingInvalid(f"{module_name!r} cannot be imported: {what}", code="target_invalid") from error
    for name in path.split("."):
        found = getattr(found, name, None)
    if not isinstance(found, Perdure):
        raise SettingInvalid(f"{target!r} is not a Perdure app; {FORM}", code="target_invalid")
    return found
