"""A chart written to a file: SVG by hand, PNG with Pillow."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from perdure.errors import ExtraMissing, SettingInvalid
from perdure.operate.simulate.chart import Chart, Label, Shape, chart
from perdure.operate.simulate.experiment import Found

#: A PNG is drawn this much larger for sharp screens, and again that much to smooth its edges.
SCALE, SMOOTH = 2, 2


def check(path: Path) -> None:
    """SettingInvalid unless a plot can be written there, so that nobody waits for runs in vain."""
    if path.suffix.lower() not in (".svg", ".png"):
        raise SettingInvalid(f"--plot {path}: the name must end in .svg or .png")
    if not path.parent.is_dir():
        raise SettingInvalid(f"--plot {path}: there is no directory {path.parent}")
    if path.suffix.lower() == ".png":
        try:
            import PIL  # noqa: F401
        except ImportError:
            hint = "install it with: pip install 'perdure[plot]', or name the file .svg, which needs nothing"
            raise ExtraMissing(f"--plot {path}: a PNG needs Pillow; {hint}") from None


def write(path: Path, found: Sequence[Found]) -> None:
    """Write the chart, as the file's name asks for."""
    drawn = chart(found)
    if path.suffix.lower() == ".svg":
        path.write_text(svg(drawn), encoding="utf-8")
    else:
        image(drawn).save(path)


def svg(drawn: Chart) -> str:
    """The chart as SVG."""
    size = f'width="{drawn.width:g}" height="{drawn.height:g}" viewBox="0 0 {drawn.width:g} {drawn.height:g}"'
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="Inter, Helvetica, Arial, sans-serif">',
        '<rect width="100%" height="100%" fill="#ffffff"/>',
        *map(_element, drawn.shapes),
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def _element(shape: Shape | Label) -> str:
    if isinstance(shape, Label):
        weight = ' font-weight="600"' if shape.bold else ""
        return (
            f'<text x="{shape.at[0]:.1f}" y="{shape.at[1]:.1f}" font-size="{shape.size:g}" fill="{shape.colour}" '
            f'text-anchor="{shape.anchor}"{weight}>{escape(shape.text)}</text>'
        )
    points = " ".join(f"{x:.1f},{y:.1f}" for x, y in shape.points)
    if not shape.width:
        return f'<polygon points="{points}" fill="{shape.colour}"/>'
    dash = ' stroke-dasharray="4 3"' if shape.dashed else ""
    return (
        f'<polyline points="{points}" fill="none" stroke="{shape.colour}" stroke-width="{shape.width:g}" '
        f'stroke-linejoin="round"{dash}/>'
    )


def image(drawn: Chart) -> Any:
    """The chart as an image of Pillow's."""
    from PIL import Image, ImageDraw

    size = (round(drawn.width * SCALE), round(drawn.height * SCALE))
    canvas = Image.new("RGB", (size[0] * SMOOTH, size[1] * SMOOTH), "#ffffff")
    draw = ImageDraw.Draw(canvas)
    for shape in drawn.shapes:
        if isinstance(shape, Label):
            _write(draw, shape, SCALE * SMOOTH)
        else:
            _draw(draw, shape, SCALE * SMOOTH)
    return canvas.resize(size, Image.Resampling.LANCZOS)


def _write(draw: Any, label: Label, scale: int) -> None:
    from PIL import ImageFont

    anchor = {"start": "ls", "middle": "ms", "end": "rs"}[label.anchor]
    at = (label.at[0] * scale, label.at[1] * scale)
    stroke = scale * 0.1 if label.bold else 0
    draw.text(
        at, label.text, label.colour, ImageFont.load_default(label.size * scale), anchor, stroke_width=stroke
    )


def _draw(draw: Any, shape: Shape, scale: int) -> None:
    points = [(x * scale, y * scale) for x, y in shape.points]
    width = round(shape.width * scale)
    if not shape.width:
        draw.polygon(points, shape.colour)
    elif not shape.dashed:
        draw.line(points, shape.colour, width, joint="curve")
    else:  # only level lines are dashed
        (left, y), (right, _) = points
        for x in range(round(left), round(right), 7 * scale):
            draw.line(((x, y), (min(right, x + 4 * scale), y)), shape.colour, width)
