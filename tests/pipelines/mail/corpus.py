"""An archive of mail whose truth is known: the same 3,000 messages in every run.

    made = corpus()
    made.mbox                   # the bytes of an mbox
    made.letters                # what each message is, in the order of the archive
    made.threads                # sets of their numbers that belong together

Sizes and kinds are as in a mailing list: most are short plain text, some have HTML, some a file. One in fifteen is odd
in a way that real mail is; `Made.broken` says how. Nothing in it is real: all addresses end in .example.
"""

from __future__ import annotations

import functools
import random
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email.message import EmailMessage
from email.utils import format_datetime

WORDS = (
    "the of and to in that it is was for on as with at by be this from or have an they which one you were all her she "
    "there would their we him been has when who will no more if out so up said what its about than into them can only "
    "other time new some could these two may first then do any like my now over such our man me even most made after "
    "also did many off before must well back through years where much your way down should because long each just "
    "state people too mr how little good world make very year still see own work men day get here old between both "
    "life being under three never know same last another while us might great go come since against right came take "
    "used himself few house american use place during high without again home around small however found mrs part "
    "school thought went say general once upon war left every don't does got united number hand course water until "
    "retry queue lease worker stage chunk archive thread summary pipeline database commit token budget breaker"
).split()
PEOPLE = [
    ("Ada Bell", "ada"), ("Björn Çelik", "bjorn"), ("Chloé Dupont", "chloe"), ("Dmitri Жуков", "dmitri"),
    ("Emi 田中", "emi"), ("Farid", "farid"), ("O'Neil, Gwen", "gwen"), ("Hana", "hana"), ("", "ivan"), ("Jo", "jo"),
]  # fmt: skip
START = datetime(2024, 1, 1, 8, tzinfo=UTC)
ODDITIES = (
    "from line in body", "no message id", "headerless reply", "latin-1 undeclared", "wrong charset", "bad date",
    "never closed", "broken base64", "crlf", "nul bytes", "raw header bytes", "parent missing",
)  # fmt: skip


@dataclass
class Made:
    """One message of the archive and what is true of it."""

    number: int
    data: bytes
    message_id: str
    references: tuple[str, ...]
    subject: str
    sender: str
    date: datetime
    thread: int
    marker: str  # stands in its text and in no other's
    attachment: bytes = b""
    broken: str = ""


@dataclass
class Corpus:
    """The archive. `duplicates` of its messages are in it a second time."""

    mbox: bytes
    letters: list[Made]
    duplicates: int
    threads: list[set[int]] = field(default_factory=list)


@functools.cache
def corpus(count: int = 3_000, seed: int = 1) -> Corpus:
    """The archive; what a smaller one holds stands at the beginning of the larger ones of the same seed."""
    maker = _Maker(seed)
    letters = [maker.make(number) for number in range(count)]
    out, duplicates = [], 0
    for letter in letters:
        out.append(_enveloped(letter))
        if letter.number % 200 == 150:
            out.append(_enveloped(letter))
            duplicates += 1
    threads: dict[int, set[int]] = {}
    for letter in letters:
        threads.setdefault(letter.thread, set()).add(letter.number)
    return Corpus(b"".join(out), letters, duplicates, list(threads.values()))


def quoted(data: bytes) -> bytes:
    """Quoted as mboxrd does."""
    lines = data.split(b"\n")
    return b"\n".join(b">" + line if line.lstrip(b">").startswith(b"From ") else line for line in lines)


def _enveloped(letter: Made) -> bytes:
    stamp = letter.date.strftime("%a %b %e %H:%M:%S %Y")
    body = letter.data if letter.data.endswith(b"\n") else letter.data + b"\n"
    end = b"\r\n" if letter.broken == "crlf" else b"\n"
    return b"From %s %s" % (letter.sender.encode(), stamp.encode()) + end + quoted(body) + end


class _Maker:
    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)
        self._made: list[Made] = []

    def make(self, number: int) -> Made:
        chance = random.Random(f"{self._chance.random()}")
        parent = self._parent(chance)
        broken = ODDITIES[number // 15 % len(ODDITIES)] if number % 15 == 7 else ""
        made = self._headers(number, chance, parent, broken)
        message = self._message(made, chance, parent)
        made.data = _spoil(message.as_bytes(), made)
        self._made.append(made)
        return made

    def _parent(self, chance: random.Random) -> Made | None:
        recent = [one for one in self._made[-40:] if one.message_id and one.broken != "bad date"]
        return chance.choice(recent) if recent and chance.random() < 0.72 else None

    def _headers(self, number: int, chance: random.Random, parent: Made | None, broken: str) -> Made:
        subject = f"Topic {number}: " + " ".join(chance.choices(WORDS, k=chance.randint(2, 6)))
        references: tuple[str, ...] = ()
        thread = number
        if parent is not None:
            bare = parent.subject.removeprefix("Re: ")
            subject, thread = f"Re: {bare}", parent.thread
            references = (*parent.references, parent.message_id)[-12:]
        if broken == "headerless reply":
            references = ()
        if broken == "parent missing" and parent is None:
            references = (f"lost-{number}@gone.example",)
        name = f"{number:05}.{chance.getrandbits(48):012x}@mail.example"
        message_id = "" if broken == "no message id" else name
        date = START + timedelta(minutes=11 * number, seconds=chance.randint(0, 59))
        marker = f"marker{number:05}"
        sender = f"{chance.choice(PEOPLE)[1]}@lists.example"
        return Made(number, b"", message_id, references, subject, sender, date, thread, marker, broken=broken)

    def _message(self, made: Made, chance: random.Random, parent: Made | None) -> EmailMessage:
        message = EmailMessage()
        person = next(name for name, user in PEOPLE if made.sender.startswith(f"{user}@"))
        message["From"] = _address(person, made.sender)
        message["To"] = "list@lists.example"
        message["Subject"] = made.subject
        message["Date"] = "soon" if made.broken == "bad date" else format_datetime(made.date)
        message["List-Id"] = "The list <list.lists.example>"
        if made.message_id:
            message["Message-ID"] = f"<{made.message_id}>"
        if made.references:
            message["References"] = " ".join(f"<{one}>" for one in made.references)
            message["In-Reply-To"] = f"<{made.references[-1]}>"
        text = self._text(made, chance, parent)
        message.set_content(text)
        if chance.random() < 0.15:
            message.add_alternative(f"<p>{text.replace(chr(10), '<br>')}</p>", subtype="html")
        if chance.random() < 0.04 or made.broken == "never closed":
            made.attachment = chance.randbytes(chance.randint(5_000, 90_000))
            message.add_attachment(
                made.attachment, maintype="application", subtype="pdf", filename=f"file {made.number}.pdf"
            )
        return message

    def _text(self, made: Made, chance: random.Random, parent: Made | None) -> str:
        paragraphs = [f"Hello, this is {made.marker}."]
        for _ in range(chance.randint(1, 8)):
            sentences = (_sentence(chance) for _ in range(chance.randint(1, 6)))
            paragraphs.append(_wrapped(" ".join(sentences)))
        if chance.random() < 0.1:
            paragraphs.append("From here on it is easy.\nFrom there it is not.")
        if made.broken == "from line in body":
            paragraphs.append(
                "He sent:\nFrom ada@lists.example Mon Jan  1 08:00:00 2024\nSubject: no\n\nnot a message"
            )
        if parent is not None:
            lines = [_sentence(chance) for _ in range(chance.randint(2, 12))]
            quote = "\n".join(f"> {line[:70]}" for line in lines)
            paragraphs.insert(1, f"On {parent.date:%a, %b %d, %Y}, {parent.sender} wrote:\n{quote}")
        return "\n\n".join(paragraphs) + f"\n\n-- \n{made.sender}\n"


def _spoil(data: bytes, made: Made) -> bytes:
    if made.broken == "latin-1 undeclared":
        return data.replace(b"Hello, this", b"H\xe9llo, this")
    if made.broken == "wrong charset":
        return data.replace(b'charset="utf-8"', b'charset="klingon"', 1)
    if made.broken == "never closed":
        return data[: data.rstrip().rindex(b"\n--")] + b"\n"
    if made.broken == "broken base64" and made.attachment:
        return data.replace(b"base64\n", b"base64\n", 1).replace(b"+", b"+*!", 3)
    if made.broken == "crlf":
        return data.replace(b"\n", b"\r\n")
    if made.broken == "nul bytes":
        return data.replace(b"Hello, this", b"Hello\x00, this")
    if made.broken == "raw header bytes":
        return data.replace(b"To: list@", b"Cc: caf\xe9 <cafe@lists.example>\nTo: list@", 1)
    return data


def _address(name: str, address: str) -> str:
    plain = name.replace('"', "")
    return f'"{plain}" <{address}>' if plain else address


def _sentence(chance: random.Random) -> str:
    words = chance.choices(WORDS, k=chance.randint(5, 18))
    return " ".join(words).capitalize() + "."


def _wrapped(text: str) -> str:
    lines, line = [], ""
    for word in text.split():
        if len(line) + len(word) > 72:
            lines.append(line)
            line = word
        else:
            line = f"{line} {word}".strip()
    return "\n".join([*lines, line])
