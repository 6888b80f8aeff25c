"""The two lists of exact versions agree."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
_PINNED = re.compile(r"^([A-Za-z0-9._-]+)==([^\s;\\]+)", re.MULTILINE)


def pinned(name: str) -> dict[str, str]:
    found = _PINNED.findall((ROOT / name).read_text())
    return {re.sub(r"[-_.]+", "-", package).lower(): version for package, version in found}


def test_every_version_has_hashes() -> None:
    versions, hashed = pinned("constraints.txt"), pinned("constraints-hashes.txt")

    assert len(versions) > 100
    assert {package: hashed.get(package) for package in versions} == versions


def test_no_list_names_a_download_address() -> None:
    assert not [
        name for name in ("constraints.txt", "constraints-hashes.txt") if "://" in (ROOT / name).read_text()
    ]
