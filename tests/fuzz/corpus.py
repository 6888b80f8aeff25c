"""Small sound files that the fuzzing damages: made when they are needed, never stored.

Each kind has some files, and the name of the function of `celled` that reads it.
"""

from __future__ import annotations

import functools
import io
from collections.abc import Callable, Iterator

from PIL import Image

from tests.pipelines.extract import hostile, made
from tests.pipelines.image import making
from tests.pipelines.mail import boxes

Maker = Callable[[], bytes]

ENCODINGS = """utf-8 utf-8-sig utf-16 utf-16-le utf-32 latin-1 cp1252 cp1251 koi8-r iso8859-7 shift_jis euc-jp
    iso2022_jp gb18030 big5 euc-kr utf-7 cp437 mac-roman""".split()
SENTENCES = (
    "Grüße aus Köln, naïve façade.",
    "Съешь ещё этих мягких булок.",
    "Ξεσκεπάζω την ψυχοφθόρα.",
    "吾輩は猫である。名前はまだ無い。",
    "天地玄黃宇宙洪荒",
    "키스의 고유조건은",
)
MAIL = (
    b"From: a@example.org\nSubject: =?utf-8?q?x=C3=A4?=\nMIME-Version: 1.0\n"
    b"Content-Type: multipart/mixed; boundary=q\n\n--q\nContent-Type: text/plain; charset=utf-8\n\n"
    b"hello w\xc3\xb6rld\n--q\nContent-Type: text/html\nContent-Transfer-Encoding: quoted-printable\n\n"
    b"<p>a=20b</p>\n--q\nContent-Type: application/pdf; name*=utf-8''a%20b\n"
    b"Content-Disposition: attachment\nContent-Transfer-Encoding: base64\n\nAAAA\n--q--\n"
)


def _texts() -> Iterator[bytes]:
    for encoding in ENCODINGS:
        text = " ".join(SENTENCES).encode(encoding, "ignore").decode(encoding)
        yield (f"A heading\n\n{text}\n" * 8).encode(encoding)
    yield b"# Markdown\n\n- a\n- b\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n```\ncode\n```\n" * 5
    yield b'<?xml version="1.0" encoding="utf-8"?><a><b c="d">text &amp; more</b></a>'


def _archives() -> Iterator[bytes]:
    one = boxes.letter("one", hour=1)
    two = boxes.letter("two", refers=["one"], files=[("a.txt", "text/plain", b"attached")], hour=2)
    yield boxes.mbox(one, two, boxes.letter("three", refers=["one", "two"], hour=3), MAIL)


def _animation(format_: str) -> bytes:
    first, *others = making.frames(3)
    return making.stored(first, format_, save_all=True, append_images=others)


def _png() -> Iterator[bytes]:
    yield making.as_stored(making.corners(), "png")
    yield making.as_stored(making.corners(mode="P"), "png")
    yield making.png(4, 4, 16, 6, (b"\0" + bytes(range(32))) * 4)
    out = io.BytesIO()
    making.corners(mode="RGBA").save(out, "PNG", exif=making.exif(Make="Maker", Orientation=6))
    yield out.getvalue()


def _jpeg() -> Iterator[bytes]:
    picture = making.corners()
    found = making.exif(Make="Maker", Model="Model", Orientation=8, DateTimeOriginal="2024:03:01 09:00:00")
    yield making.stored(picture, "JPEG", exif=found, icc_profile=making.swapped_profile())
    yield making.as_stored(picture, "progressive")
    yield making.stored(picture.convert("CMYK"), "JPEG", icc_profile=making.ink_profile())
    yield making.stored(picture.convert("L"), "JPEG")


def _tiff() -> Iterator[bytes]:
    yield making.as_stored(making.corners(), "tiff")
    yield making.as_stored(making.corners(), "lzw")
    yield making.stored(making.corners(mode="1"), "TIFF", compression="group4")
    yield making.stored(making.corners(), "TIFF", compression="jpeg")
    yield making.stored(Image.new("F", (9, 7), 0.5), "TIFF")
    yield _animation("TIFF")


def _plain(*makers: Maker) -> Callable[[], list[bytes]]:
    return lambda: [make() for make in makers]


def _page() -> bytes:
    return made.page("Damaged", {f"Part {number}": made.prose(40, number) for number in range(6)})


def _chosen(*names: str) -> Callable[[], list[bytes]]:
    return lambda: [making.as_stored(making.corners(), name) for name in names]


_KINDS: dict[str, tuple[str, Callable[[], list[bytes]]]] = {
    "pdf": (
        "document",
        _plain(
            lambda: made.long_pdf(2, 120),
            lambda: made.long_pdf(2, 120, streams=False),
            hostile.good_pdf,
            lambda: made.pdf(["One", "Two"], title="t", outline=[("One", 1), ("Two", 2)]),
        ),
    ),
    "docx": ("document", _plain(made.detailed_docx)),
    "epub": ("document", _plain(made.detailed_epub, lambda: made.detailed_epub("ncx"))),
    "html": ("document", _plain(_page)),
    "text": ("document", lambda: list(_texts())),
    "eml": ("message", _plain(lambda: MAIL, lambda: boxes.letter("one", files=[("a.html", "text/html", _page())]))),
    "mbox": ("archive", lambda: list(_archives())),
    "png": ("image", lambda: list(_png())),
    "jpeg": ("image", lambda: list(_jpeg())),
    "webp": ("image", lambda: [*_chosen("webp", "lossless")(), _animation("WEBP")]),
    "gif": ("image", lambda: [*_chosen("gif")(), _animation("GIF")]),
    "tiff": ("image", lambda: list(_tiff())),
    "other image": ("image", _chosen("avif", "heif", "bmp", "jp2", "ppm")),
}  # fmt: skip
KINDS = tuple(_KINDS)


def reader_of(kind: str) -> str:
    """The function of `celled` that reads files of this kind."""
    return _KINDS[kind][0]


@functools.cache
def samples(kind: str) -> tuple[bytes, ...]:
    """The sound files of this kind."""
    return tuple(_KINDS[kind][1]())
