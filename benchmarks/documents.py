"""What the document pipeline costs beside the bare libraries in a plain loop: 200 mixed documents, one run.

    python benchmarks/documents.py [--documents 200] [--store URL] [--json]

`libraries` reads the files with pypdfium2, trafilatura, lxml, zipfile and email, which gives their words; `loop` reads
them with `perdure.pipelines.extract`, which gives Markdown with headings and anchors. Both cut with
semantic-text-splitter and embed with wordllama, one document after the other in one process, and store nothing. The
pipeline reads as `loop` does in processes that can be killed, saves every page, makes everything durable and
searchable: with one worker and with two, each taking a dozen documents at a time. Connections are left for later
(their queue is paused). The loops run before and after it. Before the clock starts the loops have loaded the model and
read ten documents, and the workers have done forty others: a fleet that runs already. CPU seconds are those of all
processes of a run from there on; where others use the machine, too, they say more than the time does.

The documents are real: manuals from Debian packages, PDFs of them in slices of 20 pages, and what pandoc makes of them.
"""

from __future__ import annotations

import argparse
import email
import email.policy
import json
import logging
import os
import signal
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from perdure.app import Perdure  # noqa: E402
from perdure.engine.nursery import tree  # noqa: E402
from perdure.pipelines.document import documents  # noqa: E402
from perdure.pipelines.extract import join, open_reader, summarise  # noqa: E402
from tests.pipelines.extract.shelf import PDFS, RST, Shelf  # noqa: E402

SLICE = 20
WAIT_S = 600
WARM = 40


# --- the documents ---------------------------------------------------------------------------------


def corpus(directory: Path, count: int) -> list[Path]:
    """So many documents, the kinds mixed: of ten, three PDFs, three pages, one EPUB, one DOCX, one mail, one text."""
    shelf = Shelf(directory)
    kinds = [
        _pdfs(shelf),
        _pages(),
        _pdfs(shelf, 1),
        _pages(1),
        _epubs(shelf),
        _docx(shelf),
        _mails(),
        _texts(),
    ]
    kinds += [_pages(2), _pdfs(shelf, 2)]
    made: list[Path] = []
    while len(made) < count:
        for kind in kinds:
            content, suffix = next(kind)
            path = directory / f"document-{len(made):03}{suffix}"
            path.write_bytes(content)
            made.append(path)
    return made[:count]


def _pdfs(shelf: Shelf, part: int = 0) -> Iterator[tuple[bytes, str]]:
    import io

    import pypdfium2

    for name in ("octave", "r-intro", "gnuplot", "policy", "guide-de"):
        with pypdfium2.PdfDocument(shelf.plain(PDFS[name])) as whole:
            for begin in range(part * SLICE, len(whole) - SLICE, 3 * SLICE):
                piece, out = pypdfium2.PdfDocument.new(), io.BytesIO()
                piece.import_pages(whole, list(range(begin, begin + SLICE)))
                piece.save(out)
                yield out.getvalue(), ".pdf"


def _pages(part: int = 0) -> Iterator[tuple[bytes, str]]:
    found = sorted(Path("/usr/share/doc/zsh-common/html").glob("*.html"))
    found += sorted(Path("/usr/share/doc/debian/FAQ").glob("*.en.html"))
    found += sorted(Path("/usr/share/developers-reference").glob("*.html"))
    for path in [p for p in found if p.stat().st_size > 8_000][part::3]:
        yield path.read_bytes(), ".html"


def _sources() -> list[Path]:
    return sorted(Path(RST).glob("*.txt"))


def _converted(shelf: Shelf, suffix: str) -> Iterator[tuple[bytes, str]]:
    for number in range(1_000):
        sources = _sources()
        source = sources[number % len(sources)]
        text = shelf.write(f"source-{number}.rst", f"Edition {number}\n\n{source.read_text()}")
        yield shelf.pandoc([text], f"made-{number}{suffix}", "-f", "rst", "--quiet").read_bytes(), suffix


def _epubs(shelf: Shelf) -> Iterator[tuple[bytes, str]]:
    return _converted(shelf, ".epub")


def _docx(shelf: Shelf) -> Iterator[tuple[bytes, str]]:
    return _converted(shelf, ".docx")


def _mails() -> Iterator[tuple[bytes, str]]:
    for number in range(1_000):
        message = email.message.EmailMessage()
        sources = _sources()
        message["Subject"], message["From"] = f"Edition {number}", "ann@example.com"
        message.set_content(sources[number % len(sources)].read_text())
        yield bytes(message), ".eml"


def _texts() -> Iterator[tuple[bytes, str]]:
    for number in range(1_000):
        sources = _sources()
        yield f"Edition {number}\n\n{sources[number % len(sources)].read_text()}".encode(), ".txt"


def twins(paths: list[Path]) -> list[Path]:
    """Documents that read as these do and are others: they end with a line that nobody sees."""
    made = [path.with_name(f"twin-of-{path.name}") for path in paths]
    for path, twin in zip(paths, made, strict=True):
        twin.write_bytes(path.read_bytes() + b"\n")
    return made


# --- the plain loop --------------------------------------------------------------------------------


def bare_pdf(path: Path) -> str:
    import pypdfium2

    with pypdfium2.PdfDocument(path) as pdf:
        return "\n\n".join(page.get_textpage().get_text_range() for page in pdf)


def bare_page(path: Path) -> str:
    import trafilatura

    return trafilatura.extract(path.read_bytes(), output_format="markdown", include_tables=True) or ""


def bare_zip(path: Path) -> str:
    from lxml import etree, html

    with zipfile.ZipFile(path) as archive:
        if path.suffix == ".docx":
            return " ".join(etree.fromstring(archive.read("word/document.xml")).itertext())
        chapters = [name for name in archive.namelist() if name.endswith(("html", "htm"))]
        return "\n\n".join(html.fromstring(archive.read(name)).text_content() for name in chapters)


def bare_mail(path: Path) -> str:
    message = email.message_from_bytes(path.read_bytes(), policy=email.policy.default)
    body = message.get_body(("plain", "html"))
    return str(body.get_content()) if body is not None else ""


def bare_text(path: Path) -> str:
    return path.read_text()


BARE: dict[str, Callable[[Path], str]] = {
    ".pdf": bare_pdf, ".html": bare_page, ".epub": bare_zip, ".docx": bare_zip, ".eml": bare_mail, ".txt": bare_text,
}  # fmt: skip


def bare(path: Path) -> str:
    return BARE[path.suffix](path)


def same_extraction(path: Path) -> str:
    with open_reader(path, name=path.name) as reader:
        parts = [reader.read(key) for key in reader.parts]
        summarise(parts, reader.title, reader.language)
        return join(parts)


def plain_loop(paths: list[Path], read: Callable[[Path], str]) -> dict[str, float]:
    """Read, cut and embed one after the other; seconds, CPU seconds, and how many chunks it gave."""
    import wordllama
    from semantic_text_splitter import MarkdownSplitter

    model = wordllama.WordLlama.load(cache_dir=Path(wordllama.__file__).parent, disable_download=True)
    model.embed(["warm"])
    for path in paths[:10]:
        read(path)  # what it imports at first use
    splitter, made = MarkdownSplitter(1_200), 0
    began_s, cpu_s = time.perf_counter(), time.process_time()
    for path in paths:
        chunks = splitter.chunks(read(path))
        for n in range(0, len(chunks), 64):
            model.embed(chunks[n : n + 64], norm=True)
        made += len(chunks)
    return {"seconds": time.perf_counter() - began_s, "cpu_s": time.process_time() - cpu_s, "chunks": made}


# --- the pipeline ----------------------------------------------------------------------------------


def _cpu_s(workers: list[subprocess.Popen[bytes]]) -> float:
    """Of these workers and all that they started, whether it still runs or not."""
    ticks = 0
    for pid in [pid for worker in workers for pid in tree(worker.pid)]:
        with suppress(OSError):
            ticks += sum(map(int, Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


def pipeline(
    paths: list[Path], warm: list[Path], store: str, workers: int, concurrency: int
) -> dict[str, float]:
    """The same documents through real workers; from the moment that they may start to the last that is done."""
    with Perdure(store, pipelines=[documents]) as app:
        app.pause("connections")
        command = [sys.executable, "-m", "perdure", "worker", "--concurrency", str(concurrency)]
        environment = {**os.environ, "PERDURE_STORE": store}
        running = [
            subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL) for _ in range(workers)
        ]
        try:
            _warm(app, workers, warm)
            app.pause("documents")
            added = app.add_many([{"path": path} for path in paths], pipeline=documents)
            began_s, began_cpu_s = time.perf_counter(), _cpu_s(running)
            app.resume("documents")
            _wait(app)
            seconds, cpu_s = time.perf_counter() - began_s, _cpu_s(running) - began_cpu_s
        finally:
            for one in running:
                one.send_signal(signal.SIGTERM)
            for one in running:
                one.wait()
        ids = [one.id for one in added]
        if left := [id_ for id_ in ids if app.status(id_).state != "done"]:
            raise SystemExit(f"{len(left)} of {len(paths)} documents are not done")
        chunks = sum(len(app.chunks(id_)) for id_ in ids)
    return {"seconds": seconds, "cpu_s": cpu_s, "chunks": chunks}


def _warm(app: Perdure, workers: int, paths: list[Path]) -> None:
    """Until all workers are there and have read, cut and embedded these documents."""
    while len([w for w in app._call(app.service.store.workers()) if w.kind == "worker"]) < workers:
        time.sleep(0.1)
    time.sleep(2)
    app.add_many([{"path": path} for path in paths], pipeline=documents)
    _wait(app)


def _wait(app: Perdure) -> None:
    """Until nothing is left to do."""
    until_s = time.perf_counter() + WAIT_S
    while (tally := app._call(app.service.store.tally())).documents.get("open", 0):
        time.sleep(0.05)
        if time.perf_counter() > until_s:
            raise SystemExit(f"not done after {WAIT_S} s: {tally}")


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--documents", type=int, default=200)
    options.add_argument(
        "--concurrency", type=int, default=12, help="documents that a worker takes at a time"
    )
    options.add_argument("--store", help="instead of new SQLite files; it must be empty")
    options.add_argument("--json", action="store_true")
    given = options.parse_args()
    logging.getLogger("trafilatura").setLevel(logging.ERROR)
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as directory:
        paths = corpus(Path(directory), given.documents)
        warm = twins(paths[:WARM])
        found["libraries"] = plain_loop(paths, bare)
        found["loop"] = plain_loop(paths, same_extraction)
        for name, workers in (("one worker", 1), ("two workers", 2)):
            store = given.store or f"sqlite:///{directory}/{workers}.db"
            found[name] = pipeline(paths, warm, store, workers, given.concurrency)
        found["libraries again"] = plain_loop(paths, bare)
        found["loop again"] = plain_loop(paths, same_extraction)
    for reference in ("libraries", "loop"):
        before, after = found[reference], found[f"{reference} again"]
        for row in list(found.values()):
            row[f"pace of the {reference}"] = (before["seconds"] + after["seconds"]) / 2 / row["seconds"]
            row[f"CPU of the {reference}"] = row["cpu_s"] * 2 / (before["cpu_s"] + after["cpu_s"])
    if given.json:
        print(json.dumps(found))
        return
    print(f"{'':16}{'':27}{'of the libraries':>18}{'of the loop':>18}")
    print(f"{'':16}{'seconds':>9}{'CPU s':>9}{'chunks':>9}" + f"{'pace':>10}{'CPU':>8}" * 2)
    for name, row in found.items():
        figures = f"{row['seconds']:9.2f}{row['cpu_s']:9.2f}{row['chunks']:9.0f}"
        for reference in ("libraries", "loop"):
            figures += f"{row[f'pace of the {reference}']:9.2f}x{row[f'CPU of the {reference}']:7.2f}x"
        print(f"{name:16}{figures}")


if __name__ == "__main__":
    main()
