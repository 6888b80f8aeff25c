"""Small archives, made by hand: what is in a message is what a test says."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from email.message import EmailMessage
from email.utils import format_datetime

from tests.pipelines.mail.corpus import quoted

START = datetime(2024, 3, 1, 9, tzinfo=UTC)

#: name, kind, content
File = tuple[str, str, bytes]


def letter(
    name: str, text: str = "", *, subject: str = "", refers: Sequence[str] = (), files: Sequence[File] = (),
    hour: int = 0,
) -> bytes:  # fmt: skip
    """A message with the id `{name}@x.example` that refers to others by their names."""
    message = EmailMessage()
    message["From"] = f"{name} <{name}@people.example>"
    message["To"] = "list@lists.example"
    message["Subject"] = subject or f"About {name}"
    message["Date"] = format_datetime(START + timedelta(hours=hour))
    message["Message-ID"] = f"<{name}@x.example>"
    if refers:
        message["References"] = " ".join(f"<{one}@x.example>" for one in refers)
    message.set_content(text or f"This is what {name} wrote that day. Nobody else wrote anything like it.")
    for file, kind, content in files:
        main, _, sub = kind.partition("/")
        message.add_attachment(content, maintype=main, subtype=sub, filename=file)
    if message.is_multipart():
        message.set_boundary(f"={name}=")  # or it would be another message each time
    return message.as_bytes()


def mbox(*letters: bytes) -> bytes:
    """An archive of these."""
    stamp = b"From someone@people.example Fri Mar  1 09:00:00 2024\n"
    return b"".join(stamp + quoted(one if one.endswith(b"\n") else one + b"\n") + b"\n" for one in letters)
