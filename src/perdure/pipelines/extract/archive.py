"""A zip file that cannot unfold without bounds: members are counted as they are read, whatever their headers claim."""

from __future__ import annotations

import lzma
import posixpath
import zipfile
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from perdure.errors import Permanent
from perdure.pipelines.extract import caps
from perdure.pipelines.extract.caps import bomb

if TYPE_CHECKING:
    from lxml.etree import _Element

_TOO_MUCH = ("Excessive depth", "amplification", "Huge input", "entity loop", "too long")
_CHUNK = 1 << 16
_BROKEN = (zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, OSError, ValueError, NotImplementedError)


class Archive:
    """Members by name. Permanent: document_corrupt, document_encrypted, document_bomb."""

    def __init__(self, path: Path) -> None:
        try:
            self._zip = zipfile.ZipFile(path)
        except _BROKEN as error:
            raise Permanent("document_corrupt", f"the archive cannot be opened: {error}") from error
        self._read_bytes = 0
        self._members = {info.filename: info for info in self._zip.infolist()}
        if len(self._members) > caps.MEMBERS_MAX:
            raise bomb(f"the archive has {len(self._members)} members, at most {caps.MEMBERS_MAX} are read")

    def __contains__(self, name: str) -> bool:
        return name in self._members

    def size(self, name: str) -> int:
        """The bytes it claims to have, 0 if it is not there."""
        return self._members[name].file_size if name in self._members else 0

    def read(self, name: str) -> bytes:
        """The whole member; document_corrupt if it is missing or damaged."""
        info = self._members.get(name)
        if info is None:
            raise Permanent("document_corrupt", f"the archive has no {name[:200]!r}")
        if info.flag_bits & 1:
            raise Permanent("document_encrypted", f"{name[:200]!r} needs a password")
        data = bytearray()
        try:
            with self._zip.open(info) as member:
                while chunk := member.read(_CHUNK):
                    data += chunk
                    self._read_bytes += len(chunk)
                    self._check(info, len(data))
        except _BROKEN as error:
            raise Permanent("document_corrupt", f"{name[:200]!r} is damaged: {error}") from error
        return bytes(data)

    def close(self) -> None:
        self._zip.close()

    def _check(self, info: zipfile.ZipInfo, size: int) -> None:
        name = info.filename[:200]
        if size > caps.MEMBER_BYTES_MAX:
            raise bomb(f"{name!r} unpacks to more than {caps.MEMBER_BYTES_MAX} bytes")
        if size > caps.RATIO_FROM_BYTES and size > caps.RATIO_MAX * max(1, info.compress_size):
            raise bomb(f"{name!r} unpacks to more than {caps.RATIO_MAX} times its size")
        if self._read_bytes > caps.ARCHIVE_BYTES_MAX:
            raise bomb(f"the archive unpacks to more than {caps.ARCHIVE_BYTES_MAX} bytes")


def parse_xml(data: bytes, what: str) -> _Element:
    """The root of an XML document; nothing outside of it is ever read, entities unfold within libxml2's bounds."""
    from lxml import etree

    internal: Any = "internal"  # the stubs know only yes and no
    parser = etree.XMLParser(
        resolve_entities=internal, no_network=True, load_dtd=False, huge_tree=False,
        remove_comments=True, remove_pis=True,
    )  # fmt: skip
    try:
        return etree.fromstring(data, parser)
    except etree.XMLSyntaxError as error:
        if too_much(str(error)):
            raise bomb(f"{what} is nested too deeply or unfolds without end: {error}") from error
        raise Permanent("document_corrupt", f"{what} is not XML: {error}") from error


def too_much(message: str) -> bool:
    """Whether libxml2 gave up because of its own bounds."""
    return any(sign in message for sign in _TOO_MUCH)


def resolve(base: str, href: str) -> str:
    """The member that `href` in the member `base` means, without its fragment."""
    path = unquote(href.partition("#")[0])
    if path.startswith("/"):
        return posixpath.normpath(path).lstrip("/")
    return posixpath.normpath(posixpath.join(posixpath.dirname(base), path))
