"""What somebody wrote, apart from what they quoted, and lines that were only broken to be sent."""

from __future__ import annotations

import re

_QUOTED = re.compile(r"\s{0,3}>")
_WROTE = re.compile(
    r"\b(?:wrote|writes|said|schrieb|a écrit|escribi[óo]|ha scritto|schreef|skrev|escreveu|написал|napisał)|@|\d{4}",
    re.I,
)
_WROTE_BEGINS = re.compile(r"(?:On|Am|Le|El|Il|Op|Em|Den|At|In|W dniu|\d)\b|\d")
_SIGNATURE = re.compile(r"--[ \xa0]?\Z")
_FOOTER = re.compile(r"_{30,}\s*\Z")
_ORIGINAL = re.compile(
    r"\s*(?:-{2,}|_{5,})\s*(?:original message|original appointment|forwarded (?:message|by)|ursprüngliche nachricht|"
    r"weitergeleitete nachricht|message d'origine|message original|messaggio originale|mensaje original|"
    r"oorspronkelijk bericht|mensagem original)|\s*begin forwarded message:\s*\Z",
    re.I,
)
_HEADER_LINE = re.compile(
    r"[*\s]*(?:from|von|de|da|van|sent|gesendet|envoyé|enviado|inviato|date|datum|to|an|à|para|cc|subject|betreff|"
    r"objet|asunto|oggetto|onderwerp)[*\s]*:[*\s]*\S",
    re.I,
)
_ATTRIBUTION_LINES = 3
_LINE_CHARS = 500


def unflow(text: str, *, delete_space: bool = False) -> str:
    """Paragraphs of a text in format=flowed, each on one line again (RFC 3676)."""
    paragraphs: list[list[str]] = []
    depth_before, flowing = -1, False
    for line in text.split("\n"):
        depth = len(line) - len(line.lstrip(">"))
        words = line[depth:].removeprefix(" ")
        is_signature = words == "-- "
        if not flowing or depth != depth_before or is_signature:
            paragraphs.append([">" * depth + " " * bool(depth and words)])
        flowing = words.endswith(" ") and not is_signature
        paragraphs[-1].append(words[:-1] if flowing and delete_space else words)
        depth_before = depth
    lines = ("".join(paragraph) for paragraph in paragraphs)
    return "\n".join(line if line.endswith("-- ") else line.rstrip(" ") for line in lines)


def own_text(text: str) -> str:
    """The text without quoted replies, the lines that introduce them, and the signature; "" if none is left."""
    kept: list[str] = []
    more = True  # since the end of what is kept was last looked at
    lines = text.split("\n")
    for place, line in enumerate(lines):
        if _ends_here(lines, place):
            break
        if not _QUOTED.match(line):
            kept.append(line)
            more = more or bool(line.strip())
        elif more and kept and (place == 0 or not _QUOTED.match(lines[place - 1])):
            more = _drop_attribution(kept)
    return re.sub(r"\n{3,}", "\n\n", "\n".join(kept)).strip()


def _ends_here(lines: list[str], place: int) -> bool:
    """Whether the signature, the footer of a list, or somebody else's whole message begins at this line."""
    line = lines[place]
    if not line or line[0] not in "-_ \t*bBfFvVdD":
        return False
    if _SIGNATURE.match(line) or _ORIGINAL.match(line[:200]):
        return True
    if _FOOTER.match(line):
        return True
    following = [after for after in lines[place : place + 6] if after.strip()]
    return len(following) >= 3 and all(_HEADER_LINE.match(after[:200]) for after in following[:3])


def _drop_attribution(kept: list[str]) -> bool:
    """Take "On Monday Joe wrote:", on up to three lines, off the end; whether there was one."""
    end = len(kept)
    while end and not kept[end - 1].strip():
        end -= 1
    if not end or not kept[end - 1].rstrip().endswith(":"):
        return False
    for count in range(1, min(_ATTRIBUTION_LINES, end) + 1):
        lines = kept[end - count : end]
        if _WROTE_BEGINS.match(lines[0].lstrip()) and any(
            _WROTE.search(line[:_LINE_CHARS]) for line in lines
        ):
            del kept[end - count :]
            return True
    if _WROTE.search(kept[end - 1][:_LINE_CHARS]):
        del kept[end - 1 :]
        return True
    return False
