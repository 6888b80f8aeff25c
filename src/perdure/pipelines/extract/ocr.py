"""Text from pictures of text, by the program tesseract where it is installed. Nothing else is needed for it."""

from __future__ import annotations

import shutil
import subprocess
from typing import TYPE_CHECKING

from perdure.errors import Permanent, Transient

if TYPE_CHECKING:
    from pypdfium2 import PdfPage

_DPI = 200
_PIXELS_MAX = 40_000_000
_TIMEOUT_S = 120


def available() -> bool:
    """Whether scanned pages can be read here."""
    return shutil.which("tesseract") is not None


def read(page: PdfPage, language: str = "eng") -> str | None:
    """What is written on the page; None where no OCR is installed. `language` is tesseract's: "eng", "deu+eng" …"""
    program = shutil.which("tesseract")
    if program is None:
        return None
    width, height = page.get_size()
    scale = min(_DPI / 72, (_PIXELS_MAX / max(1.0, width * height)) ** 0.5)
    bitmap = page.render(scale=scale, grayscale=True)
    try:
        rows = bytes(bitmap.buffer)
        lines = (
            rows[at : at + bitmap.width] for at in range(0, bitmap.height * bitmap.stride, bitmap.stride)
        )
        picture = b"P5 %d %d 255\n" % (bitmap.width, bitmap.height) + b"".join(lines)
    finally:
        bitmap.close()
    command = [program, "stdin", "stdout", "-l", language, "--dpi", str(_DPI)]
    try:
        ran = subprocess.run(
            command, input=picture, capture_output=True, timeout=_TIMEOUT_S, check=False,
            env={"OMP_THREAD_LIMIT": "1", "PATH": "/usr/local/bin:/usr/bin:/bin"},
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise Permanent("document_bomb", f"reading a scanned page took more than {_TIMEOUT_S} s") from error
    if ran.returncode != 0:
        raise Transient(f"tesseract failed: {ran.stderr.decode(errors='replace')[-300:]}", code="ocr_failed")
    return ran.stdout.decode(errors="replace")
