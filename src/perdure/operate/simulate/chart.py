"""The chart as shapes: for each fault and policy a small panel of load and answers over time, all on one scale."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from perdure.core.frozen import frozen
from perdure.operate.simulate.experiment import Found
from perdure.operate.simulate.measure import Row
from perdure.operate.simulate.model import Model
from perdure.operate.simulate.policy import WORDS

Point = tuple[float, float]

INK, QUIET, GRID = "#1f2933", "#6b7785", "#d9dee4"
LOAD, LOAD_TINT = "#d9822b", "#fbe9d7"
GOOD, GOOD_TINT = "#1f6fb2", "#bcd8ef"
FAULT = "#f3f4f6"

#: A panel shows so much time around the fault, and so many times the usual rate.
BEFORE_S, AFTER_S, TIMES = 10, 40, 3.0
PANEL_W, PANEL_H, GAP_X, GAP_Y, ACROSS = 260.0, 110.0, 36.0, 52.0, 3
LEFT, TOP = 56.0, 30.0


@frozen
class Shape:
    """A filled area, or with a width a line through the points."""

    points: tuple[Point, ...]
    colour: str
    width: float = 0.0
    dashed: bool = False


@frozen
class Label:
    """Words at a place."""

    at: Point
    text: str
    size: float = 11.0
    colour: str = INK
    bold: bool = False
    anchor: Literal["start", "middle", "end"] = "start"


@frozen
class Chart:
    """Everything to be drawn, in this order."""

    width: float
    height: float
    shapes: tuple[Shape | Label, ...]


def chart(found: Sequence[Found]) -> Chart:
    """Draw each fault below the one before."""
    shapes: list[Shape | Label] = []
    y = TOP
    for one in found:
        y = _section(shapes, one, y)
    width = LEFT + ACROSS * PANEL_W + (ACROSS - 1) * GAP_X + 24
    return Chart(width, y - TOP / 2, tuple(shapes))


def _section(shapes: list[Shape | Label], found: Found, y: float) -> float:
    model = found.model
    title = found.model.fault
    shapes.append(Label((LEFT, y), title[0].upper() + title[1:], 15, bold=True))
    facts = (
        f"{model.rate:g} calls/s of {model.clients} clients, capacity {model.capacity:g}/s, "
        f"timeout {model.timeout_s:g} s; one seed"
    )
    shapes.append(Label((LEFT, y + 18), facts, 11, QUIET))
    right = LEFT + ACROSS * PANEL_W + (ACROSS - 1) * GAP_X
    for words, colour, x in (("requests sent", LOAD, right - 190), ("answers in time", GOOD, right - 86)):
        shapes.append(Shape(((x - 20, y + 14), (x - 5, y + 14)), colour, 3))
        shapes.append(Label((x, y + 18), words, 11, QUIET))
    y += 50
    for n, row in enumerate(found.rows):
        x = LEFT + (n % ACROSS) * (PANEL_W + GAP_X)
        _panel(shapes, model, row, x, y + (n // ACROSS) * (PANEL_H + GAP_Y), first=n % ACROSS == 0)
    rows = -(-len(found.rows) // ACROSS)
    return y + rows * (PANEL_H + GAP_Y)


def _panel(shapes: list[Shape | Label], model: Model, row: Row, x: float, y: float, first: bool) -> None:
    begin, over = model.begin_s, model.over_s
    from_s, to_s = max(0.0, begin - BEFORE_S), min(model.end_s - 1, over + AFTER_S)
    top = TIMES * model.rate
    bottom = y + PANEL_H

    def place(at_s: float, value: float) -> Point:
        across = (at_s - from_s) / (to_s - from_s)
        return x + across * PANEL_W, bottom - min(value, top) / top * PANEL_H

    (x0, _), (x1, _) = place(begin, 0), place(over, 0)
    shapes.append(Shape(((x0, y), (x1, y), (x1, bottom), (x0, bottom)), FAULT))
    for times in range(int(TIMES) + 1):
        height = place(from_s, times * model.rate)[1]
        shapes.append(Shape(((x, height), (x + PANEL_W, height)), GRID, 1, dashed=times == 1))
        if first:
            words = f"{times * model.rate:g}" + ("/s" if times == int(TIMES) else "")
            shapes.append(Label((x - 6, height + 4), words, 10, QUIET, anchor="end"))
    for series, colour, tint in ((row.sent, LOAD, LOAD_TINT), (row.answered, GOOD, GOOD_TINT)):
        line = tuple(place(at + 0.5, series[at]) for at in range(int(from_s), int(to_s)))
        shapes.append(Shape((*line, (line[-1][0], bottom), (line[0][0], bottom)), tint))
        shapes.append(Shape(line, colour, 1.6))
    for at_s in (begin, over, over + 20, over + 40):
        if at_s <= to_s:
            shapes.append(
                Label((place(at_s, 0)[0], bottom + 14), f"{at_s - begin:g} s", 10, QUIET, anchor="middle")
            )
    _heading(shapes, row, x, y, top < max(row.sent[int(from_s) : int(to_s)]))


def _heading(shapes: list[Shape | Label], row: Row, x: float, y: float, cut: bool) -> None:
    shapes.append(Label((x, y - 7), WORDS[row.policy], 12, bold=True))
    recovery = row.recovery_s
    words = "never recovers" if recovery.mean is None else f"recovers in {recovery.mean:.1f} s"
    if cut:
        words += f", peak {row.peak.mean or 0:.1f} times"
    shapes.append(Label((x + PANEL_W, y - 7), words, 11, QUIET, anchor="end"))
