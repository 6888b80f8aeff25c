"""`MODULE:APP` → the app object."""

from __future__ import annotations

import os
import sys
import traceback

from perdure.app import AsyncPerdure, Perdure
from perdure.engine.address import load_module
from perdure.errors import PerdureError, PipelineUnknown, SettingInvalid
from perdure.operate.desk import or_only

FORM = "write it as module:app, for example books:app"


def load_app(target: str) -> Perdure:
    """The app that the module defines; SettingInvalid says what is missing."""
    module_name, _, path = target.partition(":")
    if not module_name or not path:
        raise SettingInvalid(f"{target!r} does not name an app; {FORM}", code="target_invalid")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    missing = SettingInvalid(f"there is no module {module_name!r} here; {FORM}", code="target_invalid")
    try:
        found: object = load_module(module_name)
    except PipelineUnknown as error:
        raise missing from error
    except PerdureError:
        raise
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and f"{module_name}.".startswith(f"{error.name}."):
            raise missing from error
        what = f"{type(error).__name__}: {error}{_where(error)}"
        raise SettingInvalid(f"{module_name!r} cannot be imported: {what}", code="target_invalid") from error
    for name in path.split("."):
        found = getattr(found, name, None)
    if not isinstance(found, Perdure):
        raise SettingInvalid(f"{target!r} is not a Perdure app; {FORM}", code="target_invalid")
    return found


def pipeline_of(app: AsyncPerdure, wanted: str) -> str:
    """What is wanted, or where the app does not have that, its only one."""
    return or_only(app.pipelines, wanted)


def _where(error: Exception) -> str:
    """The last line of a file that led there; a syntax error says itself where it is."""
    frames = traceback.extract_tb(error.__traceback__)
    files = [frame for frame in frames if not frame.filename.startswith("<")]
    if isinstance(error, SyntaxError) or not files:
        return ""
    return f" ({files[-1].filename}, line {files[-1].lineno})"
