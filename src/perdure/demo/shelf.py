"""The demo's documents: ten short texts that come with the package, and two that cannot be read."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.resources import files

ORDER = "lighthouse seeds letters cathedral sourdough tides bookbinding pendulum walls rope".split()

#: A text that was once UTF-8, after the water.
_DAMAGED = (
    b"The cellar was flooded in the spring, and the shelf \xff\xfe\x00\x9c\xe2\x28 nothing more can be read."
)


@dataclass(frozen=True, slots=True)
class Book:
    """A document of the shelf. `trouble`: `busy` (two failures that pass), `broken`, `crash`, or none."""

    name: str
    data: bytes
    trouble: str = ""

    @property
    def sound(self) -> bool:
        """Whether it is to be done in the end."""
        return self.trouble in ("", "busy")


def books() -> list[Book]:
    """In the order in which they are handed in."""
    texts = files("perdure.demo").joinpath("shelf")
    found = [
        Book(f"{name}.txt", texts.joinpath(f"{name}.txt").read_bytes(), "busy" if name == "letters" else "")
        for name in ORDER
    ]
    found.insert(1, Book("damaged.txt", _DAMAGED, "broken"))
    found.insert(4, Book("cursed.txt", b"Whoever opens this book does not finish it.", "crash"))
    return found
