"""Where a pipeline's code is, said so that a fresh process can find it.

An address is a module's name (`shop.books`) or, for the script that was started, its path (`/srv/shop/books.py`).
Pipelines register under the modules of their stages' functions; processes of their own load the module and look there.
"""

from __future__ import annotations

import importlib.util
import inspect
import sys
from collections.abc import Callable
from contextvars import ContextVar
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from perdure.errors import PipelineInvalid, PipelineUnknown

if TYPE_CHECKING:
    from perdure.engine.pipeline import Pipeline

#: The name a script is loaded under: not "__main__", so that what it guards with that name does not run.
SCRIPT_MODULE = "__perdure_main__"

_pipelines: WeakValueDictionary[tuple[str, str], Pipeline] = WeakValueDictionary()
_loading: ContextVar[bool] = ContextVar("loading", default=False)


class AppStarted(BaseException):
    """A module that was only loaded for its pipelines starts an app: all that is wanted of it is defined."""


def module_address(fn: Callable[..., Any]) -> str:
    """Where `fn` was defined; PipelineInvalid where no other process could find it (a prompt, `python -c`)."""
    name = getattr(inspect.unwrap(fn), "__module__", None) or ""
    if name not in ("__main__", SCRIPT_MODULE):
        return name
    module = sys.modules.get(name)
    spec = getattr(module, "__spec__", None)
    if spec is not None and spec.name not in ("__main__", SCRIPT_MODULE):  # python -m package.module
        return str(spec.name)
    file = getattr(module, "__file__", None)
    if not file or not Path(file).is_file():
        raise PipelineInvalid(
            f"{getattr(fn, '__qualname__', fn)} is not defined in a file: "
            "a process of its own could not find it; move it into a module"
        )
    return str(Path(file).resolve())


def load_module(address: str) -> ModuleType:
    """The module at this address, imported once. Whatever it starts, guarded by `__name__` or not, does not start."""
    started = sys.modules.get("__main__")
    if not _is_path(address):
        if getattr(getattr(started, "__spec__", None), "name", None) == address and started is not None:
            return started
        return sys.modules.get(address) or _execute(importlib.util.find_spec(address), address)
    for module in (started, sys.modules.get(SCRIPT_MODULE)):
        file = getattr(module, "__file__", None)
        if module is not None and file and Path(file).resolve() == Path(address):
            return module
    if not Path(address).is_file():
        raise PipelineUnknown(f"there is no script at {address}")
    directory = str(Path(address).parent)
    if directory not in sys.path:
        sys.path.insert(0, directory)
    loader = SourceFileLoader(SCRIPT_MODULE, address)
    return _execute(importlib.util.spec_from_file_location(SCRIPT_MODULE, address, loader=loader), address)


def stop_if_loading() -> None:
    """Called where an app starts: a module that is only being loaded for its pipelines ends there."""
    if _loading.get():
        raise AppStarted


def register(address: str, pipeline: Pipeline) -> None:
    """Make a pipeline findable in this process; of two with one name in one module the later counts."""
    _pipelines[address, pipeline.name] = pipeline


def find_pipeline(name: str, address: str | None = None) -> Pipeline:
    """The pipeline of that name, loading the module at `address` if need be; PipelineUnknown."""
    if address is not None:
        found = _pipelines.get((address, name))
        if found is None:
            load_module(address)
            found = _pipelines.get((address, name))
        if found is not None:
            return found
    for (_, known), pipeline in reversed(list(_pipelines.items())):
        if known == name:
            return pipeline
    where = f" in {address}" if address else ""
    raise PipelineUnknown(f"no pipeline {name!r} is defined{where}")


def _is_path(address: str) -> bool:
    return Path(address).is_absolute()


def _execute(spec: ModuleSpec | None, address: str) -> ModuleType:
    if spec is None or spec.loader is None:
        raise PipelineUnknown(f"there is no module {address}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    token = _loading.set(True)
    try:
        spec.loader.exec_module(module)
    except AppStarted:
        pass  # an import statement would forget the module now; what it defined so far is what we came for
    except BaseException:
        del sys.modules[spec.name]
        raise
    finally:
        _loading.reset(token)
    parent, _, name = spec.name.rpartition(".")
    if parent:
        setattr(sys.modules[parent], name, module)
    return module
