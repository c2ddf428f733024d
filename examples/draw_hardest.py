"""Draw what AVH is, and the hardest and easiest digits of a demo run, as one SVG (the picture in docs/concepts.md).

hardsight demo -o run && python examples/draw_hardest.py run overview.svg
"""

import math
import sys

import hardsight as hs
from hardsight.data import load_digits

PIXEL, STEP = 7, 78
STYLE = """<style>
  text { font: 13px system-ui, sans-serif; fill: #24292f } .small { font-size: 11px; fill: #57606a }
  .head { font-weight: 600; font-size: 15px } .paper { fill: #ffffff } .frame { fill: #000 }
  .ray { stroke-width: 2.5; fill: none } .own { stroke: #0969da } .other { stroke: #9a9fa5 } .x { stroke: #24292f }
  .arc { stroke: #bc4c00; fill: none; stroke-width: 2 } .hot { fill: #bc4c00 }
</style>"""


def ray(cx, cy, degrees, length, kind, label):
    x, y = cx + length * math.cos(math.radians(degrees)), cy - length * math.sin(math.radians(degrees))
    return (
        f'<path class="ray {kind}" d="M{cx},{cy} L{x:.0f},{y:.0f}"/><circle cx="{x:.0f}" cy="{y:.0f}" r="3"/>'
        f'<text x="{x + 7:.0f}" y="{y + 4:.0f}">{label}</text>'
    )


def angle_panel():
    cx, cy = 60, 225
    end = (cx + 55 * math.cos(math.radians(62)), cy - 55 * math.sin(math.radians(62)))
    start = (cx + 55 * math.cos(math.radians(20)), cy - 55 * math.sin(math.radians(20)))
    return "".join(
        [
            '<text class="head" x="20" y="32">One angle a class</text>',
            ray(cx, cy, 20, 120, "own", "w of the label"),
            ray(cx, cy, 62, 140, "x", "feature x"),
            ray(cx, cy, 118, 110, "other", "w of another"),
            ray(cx, cy, 150, 45, "other", ""),
            f'<path class="arc" d="M{start[0]:.0f},{start[1]:.0f} A55,55 0 0 0 {end[0]:.0f},{end[1]:.0f}"/>',
            f'<text class="hot" x="{cx + 48}" y="{cy - 45}">θ</text>',
            '<text x="20" y="262">AVH = θ of the label / sum of all θ</text>',
            '<text class="small" x="20" y="281">small: easy · C·AVH = 1: chance · larger: hard</text>',
        ]
    )


def digit(picture, x, y):
    cells = [
        f'<rect x="{x + PIXEL * column}" y="{y + PIXEL * row}" width="{PIXEL}" height="{PIXEL}" '
        f'fill-opacity="{value / 255:.2f}"/>'
        for row, line in enumerate(picture)
        for column, value in enumerate(line)
        if value
    ]
    side = 8 * PIXEL
    return f'<rect class="paper" x="{x}" y="{y}" width="{side}" height="{side}" stroke="#d0d7de"/>' + "".join(cells)


def row_of_digits(title, table, pictures, x, y):
    parts = [f'<text class="head" x="{x}" y="{y}">{title}</text>']
    for i, row in enumerate(table.to_arrow().to_pylist()):
        at = x + i * STEP
        parts.append(digit(pictures[int(row["id"].split(":")[1])], at, y + 14))
        parts.append(f'<text class="small" x="{at}" y="{y + 86}">{row["label"]} read as {row["pred"]}</text>')
        parts.append(f'<text class="small" x="{at}" y="{y + 102}">C·AVH {10 * row["avh"]:.2f}</text>')
    return "".join(parts)


def main(run, out):
    table, (pictures, _) = hs.SampleTable.load(run), load_digits()
    panels = [
        angle_panel(),
        row_of_digits("The hardest of 1,797 real digits", table.hardest(6), pictures, 300, 32),
        row_of_digits("The easiest", table.easiest(6), pictures, 300, 178),
    ]
    size = 'width="780" height="300" viewBox="0 0 780 300"'
    with open(out, "w", encoding="utf-8") as file:  # noqa: PTH123
        file.write(f'<svg xmlns="http://www.w3.org/2000/svg" {size}>{STYLE}')
        file.write(f'<rect class="paper" width="780" height="300" rx="8"/>{"".join(panels)}</svg>\n')


if __name__ == "__main__":
    main(*sys.argv[1:3])
