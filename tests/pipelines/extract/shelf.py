"""Real documents: manuals that Debian packages ship, and what pandoc makes of them."""

from __future__ import annotations

import gzip
import shutil
import subprocess
from pathlib import Path

from tests.debian import install

PACKAGES = (
    "debian-faq debian-policy developers-reference gnuplot-doc installation-guide-amd64 octave-doc pandoc "
    "poppler-utils qpdf r-doc-pdf tesseract-ocr zsh-doc"
).split()
GUIDE = "/usr/share/doc/installation-guide-amd64"
PDFS = {
    "octave": "/usr/share/doc/octave/octave.pdf",  # 1,158 pages
    "refcard": "/usr/share/doc/octave/refcard-a4.pdf",
    "r-intro": "/usr/share/R/doc/manual/R-intro.pdf",
    "gnuplot": "/usr/share/doc/gnuplot/gnuplot.pdf",
    "policy": "/usr/share/doc/debian-policy/policy.pdf.gz",
    "fhs": "/usr/share/doc/debian-policy/fhs/fhs-3.0.pdf.gz",
    "faq": "/usr/share/doc/debian/FAQ/debian-faq.en.pdf.gz",
    "guide-de": f"{GUIDE}/de/install.de.pdf.gz",
    "guide-ru": f"{GUIDE}/ru/install.ru.pdf.gz",
    "guide-cs": f"{GUIDE}/cs/install.cs.pdf.gz",
    "guide-zh": f"{GUIDE}/zh_CN/install.zh_CN.pdf.gz",
}
EPUBS = {
    "policy": "/usr/share/doc/debian-policy/policy.epub",
    "developers": "/usr/share/developers-reference/developers-reference.epub",
}
PAGES = {
    "fhs": "/usr/share/doc/debian-policy/fhs/fhs-3.0.html",
    "copyright": "/usr/share/doc/debian-policy/copyright-format-1.0.html",
    "practices": "/usr/share/developers-reference/best-pkging-practices.html",
    "choosing": "/usr/share/doc/debian/FAQ/choosing.en.html",
    "kernel": "/usr/share/doc/debian/FAQ/kernel.en.html",
    "calendar": "/usr/share/doc/zsh-common/html/Calendar-Function-System.html",
}
RST = "/usr/share/developers-reference/_sources"


class Shelf:
    """Hands out documents as plain files, made at first use."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        install(*PACKAGES)

    def plain(self, source: str) -> Path:
        """The document without its gzip."""
        if not source.endswith(".gz"):
            return Path(source)
        target = self.directory / Path(source).name.removesuffix(".gz")
        if not target.exists():
            with gzip.open(source) as packed, target.open("wb") as out:
                shutil.copyfileobj(packed, out)
        return target

    def pandoc(self, sources: list[Path], name: str, *options: str) -> Path:
        """What pandoc makes of these files; the kind is that of the name."""
        target = self.directory / name
        if not target.exists():
            subprocess.run(["pandoc", *options, "-o", target, *sources], check=True, cwd=self.directory)
        return target

    def write(self, name: str, text: str) -> Path:
        path = self.directory / name
        path.write_text(text)
        return path

    def tool(self, *command: str | Path) -> str:
        """What a program prints."""
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def long_book(chapters: int = 500) -> str:
    """The Markdown of a book with as many chapters, made of the words of a real one."""
    words = (Path(RST) / "pkgs.rst.txt").read_text().split()
    prose = [word for word in words if word.isalpha()]
    return "\n".join(
        f"# Chapter {number}\n\n{' '.join(prose[number * 5 : number * 5 + 600])}\n\nEnd of {number}.\n"
        for number in range(1, chapters + 1)
    )
