"""The library at first sight, as a script that somebody runs: word for word, with the functions it leaves to you."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

YOURS = """
from dataclasses import dataclass
from pathlib import Path
from perdure import Pipeline, Document, batched

@dataclass
class Text:
    markdown: str
    pages: int

@dataclass
class Page:
    number: int
    text: str

connect = Pipeline("connect", queue="connections")

@connect.stage
def link(doc: Document) -> str:
    return f"links of {doc.name}"

def pdf_pages(path: Path) -> list[Page]:
    return [Page(n, text) for n, text in enumerate(path.read_text().split("\\f"), 1)]

def read_page(page: Page) -> str:
    return page.text.strip()

def split(markdown: str) -> list[str]:
    return markdown.split()

async def ask_openai(batch: list[str]) -> list[int]:
    return [len(word) for word in batch]
"""

SAMPLE = """
from perdure import Perdure, Pipeline, Document, Context, Result, Row, Permanent

books = Pipeline("books", attempts=3)

@books.stage(version=2, timeout=600, isolate=True)
def extract(doc: Document, ctx: Context) -> Text:
    pages = list(ctx.items(pdf_pages(doc.path), key=lambda p: p.number, run=read_page))   # saved pages return, not re-run
    if not pages:
        raise Permanent("empty_document")
    return Text("\\n".join(pages), len(pages))

@books.stage
def chunk(doc: Document, extract: Text) -> list[str]:        # parameter name = earlier stage
    return split(extract.markdown)

@books.stage(needs=["openai"])
async def embed(doc: Document, chunk: list[str], ctx: Context) -> Result[int]:
    n = 0
    async for vectors in ctx.aitems(batched(chunk, 64), run=ask_openai):
        ctx.emit(Row("vectors", first=n, data=vectors))                                    # commits with this item
        n += len(vectors)
    return Result(n, spawn=[connect.job(doc)])

@embed.ensure                                                  # completion contract
def all_embedded(chunk: list[str], embed: int) -> bool:
    return len(chunk) == embed

with Perdure("sqlite:///books.db", pipelines=[books]) as app:  # async with works too
    added = app.add(path="dune.epub", pipeline=books)          # .id, .answer: "added" | "exists"
    print(app.run_until_idle(wait=10))                          # .done .dead .held .next_due
"""  # noqa: E501

AFTERWARDS = """
with Perdure("sqlite:///books.db", pipelines=[books, connect]) as app:
    print(added.answer, app.status(added.id).state, app.output(added.id, "extract").pages)
    print(app.rows(added.id, "vectors"))
    app.run_until_idle()
    print([(a.job_key.partition("/")[2], a.outcome) for a in app.attempts(added.id)])
"""


def run(directory: Path) -> list[str]:
    script = directory / "books.py"
    script.write_text(YOURS + SAMPLE + AFTERWARDS)
    ran = subprocess.run(
        [sys.executable, script.name], cwd=directory, capture_output=True, text=True, timeout=60, check=False
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.splitlines()


def test_the_library_at_first_sight_runs_word_for_word(tmp_path: Path) -> None:
    (tmp_path / "dune.epub").write_text("A beginning is\fa very delicate time")
    assert run(tmp_path) == [
        "Summary(done=1, dead=0, held=0, waiting=0, next_due=None)",
        "added done 2",
        "[({'first': 0}, [1, 9, 2, 1, 4, 8, 4])]",
        "[('', 'done'), ('connect', 'done')]",
    ]
    assert run(tmp_path)[:2] == [
        "Summary(done=0, dead=0, held=0, waiting=0, next_due=None)",
        "exists done 2",
    ]
