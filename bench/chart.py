#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draws docs/figures/NAME.svg, a horizontal bar chart, from the measured figures in docs/figures/NAME.json.

  bench/chart.py [NAME…]            writes the files (default: all)
  bench/chart.py --check [NAME…]    fails if a file differs from its data

Data format: {"title", "unit", "note", "bars": [{"name", "value", "highlight"?}]}. The note gives machine, date and command.
"""
import html
import json
import pathlib
import sys

FIGURES = pathlib.Path(__file__).resolve().parent.parent / "docs" / "figures"
WIDTH, BAR, GAP, LEFT, RIGHT, TOP = 760, 26, 12, 260, 90, 46
STYLE = """text { font: 14px system-ui, sans-serif; fill: #1b2230 } .title { font-weight: 600; font-size: 16px } .note { font-size: 11px; fill: #667085 }
.bar { fill: #94a3b8 } .best { fill: #2563eb } .value { font-weight: 600 }
@media (prefers-color-scheme: dark) { text { fill: #e6eaf2 } .note { fill: #94a0b4 } .bar { fill: #64748b } .best { fill: #6ea8fe } }"""


def draw(data):
    bars, most = data["bars"], max(bar["value"] for bar in data["bars"])
    height = TOP + len(bars) * (BAR + GAP) + 30
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{html.escape(data["title"])}">',
             f"<style>{STYLE}</style>", f'<text class="title" x="12" y="26">{html.escape(data["title"])}</text>']
    for i, bar in enumerate(bars):
        y, length = TOP + i * (BAR + GAP), max(2, (WIDTH - LEFT - RIGHT) * bar["value"] / most)
        parts += [f'<text x="{LEFT - 10}" y="{y + 18}" text-anchor="end">{html.escape(bar["name"])}</text>',
                  f'<rect class="bar{" best" if bar.get("highlight") else ""}" x="{LEFT}" y="{y}" width="{length:.1f}" height="{BAR}" rx="3"/>',
                  f'<text class="value" x="{LEFT + length + 8:.1f}" y="{y + 18}">{bar["value"]:,}</text>']
    parts += [f'<text class="note" x="12" y="{height - 10}">{html.escape(data["unit"])}; {html.escape(data["note"])}</text>', "</svg>", ""]
    return "\n".join(parts)


def main():
    names = [name for name in sys.argv[1:] if name != "--check"] or sorted(path.stem for path in FIGURES.glob("*.json"))
    if any(name.startswith("-") for name in names):
        sys.exit(__doc__)
    for name in names:
        text, path = draw(json.loads((FIGURES / f"{name}.json").read_text())), FIGURES / f"{name}.svg"
        if "--check" not in sys.argv:
            path.write_text(text)
        elif not path.exists() or path.read_text() != text:
            sys.exit(f"{path.name} differs from {name}.json; run bench/chart.py {name}")


if __name__ == "__main__":
    main()
