"""Query parameters that a route does not have are refused: a misspelt filter must not return everything.

The OpenAPI document says which there are, for every route at one place. It is made before the server listens.
"""

from __future__ import annotations

from difflib import get_close_matches
from typing import Any

from fastapi import Request

from perdure.api.refused import Refused

Known = dict[tuple[str, str], tuple[str, ...]]  # by method and path: the names of the query parameters


async def known_only(request: Request) -> None:
    """Refuse a request with a query parameter that its route does not have. Raises: Refused."""
    if not request.query_params:
        return
    path = getattr(request.scope.get("route"), "path_format", "")
    known = _known(request.app).get((request.method, path), ())
    for name in request.query_params:
        if name not in known:
            raise Refused(422, "parameter_unknown", _refusal(name[:100], known))


def _known(app: Any) -> Known:
    found: Known | None = getattr(app.state, "parameters", None)
    if found is None:
        found = {
            (method.upper(), path): tuple(
                p["name"] for p in route.get("parameters", ()) if p["in"] == "query"
            )
            for path, methods in app.openapi()["paths"].items()
            for method, route in methods.items()
        }
        app.state.parameters = found
    return found


def _refusal(name: str, known: tuple[str, ...]) -> str:
    """Say which parameter is meant, or which there are."""
    if not known:
        return f"this route takes no query parameters, not {name!r}"
    near = get_close_matches(name.lower(), known, 1)
    meant = f"did you mean {near[0]}?" if near else f"it takes {', '.join(known)}"
    return f"this route has no query parameter {name!r}; {meant}"
