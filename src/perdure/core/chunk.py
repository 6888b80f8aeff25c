"""A chunk: a passage of a document that is found, embedded and connected as one."""

from __future__ import annotations

import hashlib

from perdure.core.fingerprint import digest
from perdure.core.frozen import frozen
from perdure.core.words import without_signs


@frozen
class Chunk:
    """A passage of a document's text: `text` stands at `start` … `end` of it, in characters.

    `vector` is what the model called `model` made of it: float32, little-endian. Both are there or neither is.
    `heading` names the sections that it stands in, the outermost first, one on each line.
    """

    id: str
    position: int
    start: int
    end: int
    text: str
    anchor: str = ""  # of the part that it begins in
    page: int | None = None
    model: str | None = None
    vector: bytes | None = None
    heading: str = ""

    @property
    def read(self) -> str:
        """What is embedded and looked up: the text without signs of parts, below those headings that are not in it."""
        text = without_signs(self.text)
        if not self.heading:
            return text
        lines = {_bare(line) for line in text.split("\n")}
        above = {_bare(line): line for line in reversed(self.heading.split("\n"))}
        return "\n".join([*(above[bare] for bare in reversed(above) if bare not in lines | {""}), text])


def _bare(line: str) -> str:
    """The line without signs of a heading and with single spaces."""
    return " ".join(line.strip("# \t").split())


def chunk_id(document_id: str, content_hash: str, position: int, text: str) -> str:
    """The same passage of the same content has the same id, in every process and every attempt."""
    return digest(document_id, content_hash, position, digest(text))[:32]


def revision(chunks: tuple[Chunk, ...]) -> str:
    """Names a document's chunks with all that is stored of them: equal if, and only if, nothing differs."""
    hashed = hashlib.sha256()
    for c in chunks:
        vector = c.vector or b""
        text = c.text.encode(errors="surrogatepass")
        told = (
            c.id,
            c.position,
            c.start,
            c.end,
            c.anchor,
            c.page,
            c.model,
            c.heading,
            len(text),
            len(vector),
        )
        hashed.update(ascii(told).encode())
        hashed.update(text)
        hashed.update(vector)
    return hashed.hexdigest()


@frozen
class Connection:
    """Two chunks of different documents of one organisation that are about the same; `score` is their cosine."""

    chunk_id: str
    other_document_id: str
    other_id: str
    score: float
    model: str


@frozen
class Completeness:
    """How many chunks a document should have, how many are stored, and how many of these have a vector."""

    expected: int
    stored: int
    embedded: int

    @property
    def complete(self) -> bool:
        return self.expected == self.stored == self.embedded
