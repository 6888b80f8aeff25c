"""Runbooks: a page for each alert and each tier. They are in the package, beside the rules."""

from __future__ import annotations

import re
from difflib import get_close_matches
from pathlib import Path

import perdure
from perdure.errors import InputInvalid

#: Where the rules say that they are.
_LINK = re.compile(r"(?<=runbook_url: )docs/runbooks/([\w-]+)\.md")
_INSTALLED = Path(perdure.__file__).parent / "runbooks"
_CHECKED_OUT = Path(perdure.__file__).parents[2] / "docs" / "runbooks"


def names() -> dict[str, str]:
    """Every runbook with its title."""
    pages = sorted(_directory().glob("*.md"))
    return {page.stem: page.read_text().partition("\n")[0].removeprefix("# ") for page in pages}


def runbook(name: str) -> str:
    """The page of an alert or a tier, by its name or that of the alert. Raises: InputInvalid."""
    known = names()
    by_name = {plain(one): one for one in (*known,)}
    found = by_name.get(plain(name.removesuffix(".md")))
    if found is None:
        near = get_close_matches(plain(name), by_name, 3, 0.4)
        hint = ", ".join(by_name[one] for one in near) or "`perdure runbook` lists them"
        raise InputInvalid(f"there is no runbook {name!r}; did you mean: {hint}?", code="runbook_unknown")
    return (_directory() / f"{found}.md").read_text()


def plain(name: str) -> str:
    """`NoWorkers`, `no-workers` and `no_workers` are the same."""
    return name.lower().replace("-", "").replace("_", "")


def rules(base: str) -> str:
    """The alert rules, with links to runbooks at this address: {name} in it, or else at its end, is the runbook's."""
    text = (Path(__file__).parent / "rules" / "perdure.rules.yml").read_text()
    place = base if "{name}" in base else f"{base.rstrip('/')}/{{name}}.md"
    return _LINK.sub(lambda found: place.replace("{name}", found[1]), text)


def _directory() -> Path:
    return _INSTALLED if _INSTALLED.is_dir() else _CHECKED_OUT
