"""A bar chart in SVG: a figure of each contender in each scenario, as a ratio to the baseline."""

from dataclasses import dataclass
from xml.sax.saxutils import escape

WIDTH, LABELS, RIGHT = 820, 210, 56
BAR, GAP, GROUP_GAP, TOP = 13, 3, 16, 74
#: Room for the two lines of a group's label.
LEAST_GROUP = 29
MOST = 2.0

#: By contender, light and dark; others take the spare colours in turn.
COLOURS = {
    "cashew": ("#c2571a", "#f08c4a"),
    "cashew-nowindow": ("#e3a06f", "#a8683c"),
    "haproxy": ("#5b7aa6", "#84a7d6"),
    "envoy": ("#8a5aa8", "#b58ad2"),
    "floor": ("#8a8f98", "#9aa1ac"),
}
SPARE = [
    ("#3d8a6a", "#62b892"),
    ("#a88a2a", "#d4b552"),
    ("#3f8fa3", "#6cbed2"),
]

STYLE = """\
  text { font: 12px system-ui, -apple-system, "Segoe UI", sans-serif; fill: #1f2328 }
  .title { font-size: 15px; font-weight: 600 }
  .quiet { fill: #656d76 }
  .grid { stroke: #d8dee4 }
  .one { stroke: #1f2328; stroke-width: 1.5 }
  .back { fill: #ffffff }
"""
DARK = """\
    text { fill: #e6edf3 }
    .quiet { fill: #8d96a0 }
    .grid { stroke: #30363d }
    .one { stroke: #e6edf3 }
    .back { fill: #0d1117 }
"""


@dataclass(frozen=True)
class Figure:
    """What is drawn: a figure, by its key, in the scenarios of some groups."""

    title: str
    key: str
    unit: str
    groups: tuple
    more_is_better: bool


def draw(results, figure):
    """The picture, or nothing when there is no baseline to compare with."""
    scenarios = [
        each
        for each in results.measured("load")
        if each.group in figure.groups and results.baseline in results.names(each.name)
    ]
    names = [name for name in results.contenders if name != results.baseline]
    values = {
        (scenario.name, name): results.ratio(scenario.name, name, figure.key)
        for scenario in scenarios
        for name in names
    }
    names = [name for name in names if any(values[each.name, name] for each in scenarios)]
    if not names:
        return None
    groups = [
        (each, [(name, values[each.name, name]) for name in names if values[each.name, name]])
        for each in scenarios
    ]
    groups = [(each, bars) for each, bars in groups if bars]
    top = min(max(value for _, bars in groups for _, value in bars), MOST)
    scale = (WIDTH - LABELS - RIGHT) / max(1.1, top)
    body, bottom = bars_of(groups, results, scale, palette(names)[0], figure)
    return "\n".join([*head(names, results.baseline, bottom, scale, figure), *body, "</svg>\n"])


def palette(names):
    spare = iter(SPARE * 8)
    return {name: f"c{index}" for index, name in enumerate(names)}, [
        COLOURS.get(name) or next(spare) for name in names
    ]


def head(names, baseline, bottom, scale, figure):
    title = f"{figure.title}, {escape(baseline)} = 1"
    better = f"{'longer' if figure.more_is_better else 'shorter'} is better"
    classes, colours = palette(names)
    light = "".join(
        f"  .{classes[name]} {{ fill: {pair[0]} }}\n" for name, pair in zip(names, colours)
    )
    dark = "".join(
        f"    .{classes[name]} {{ fill: {pair[1]} }}\n" for name, pair in zip(names, colours)
    )
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {bottom + 34}" width="{WIDTH}" role="img">',
        f"<title>{title}</title>",
        f"<style>\n{STYLE}{light}  @media (prefers-color-scheme: dark) {{\n{DARK}{dark}  }}\n</style>",
        f'<rect class="back" width="{WIDTH}" height="{bottom + 34}" rx="6"/>',
        f'<text class="title" x="16" y="26">{title}</text>',
        f'<text class="quiet" x="{WIDTH - 16}" y="26" text-anchor="end">{better}</text>',
    ]
    x = 16
    for name in names:
        lines.append(
            f'<rect class="{classes[name]}" x="{x}" y="40" width="11" height="11" rx="2"/>'
        )
        lines.append(f'<text x="{x + 16}" y="50">{escape(name)}</text>')
        x += 34 + 7 * len(name)
    step = 0.25
    mark = 0.0
    while LABELS + mark * scale <= WIDTH - RIGHT + 1:
        at = LABELS + mark * scale
        kind = "one" if mark == 1 else "grid"
        lines.append(
            f'<line class="{kind}" x1="{at:.1f}" x2="{at:.1f}" y1="{TOP - 8}" y2="{bottom}"/>'
        )
        lines.append(
            f'<text class="quiet" x="{at:.1f}" y="{bottom + 18}" text-anchor="middle">{mark:g}</text>'
        )
        mark += step
    return lines


def bars_of(groups, results, scale, classes, figure):
    lines, y = [], TOP
    for scenario, bars in groups:
        height = len(bars) * (BAR + GAP) - GAP
        middle = y + max(height, LEAST_GROUP) / 2
        next_y = y + max(height, LEAST_GROUP) + GROUP_GAP
        y += max(LEAST_GROUP - height, 0) // 2
        base = results.median(scenario.name, results.baseline)[figure.key]
        amount = f"{base:,.0f}" if base >= 1000 else f"{base:.3g}"
        lines.append(
            f'<text x="{LABELS - 10}" y="{middle - 1:.1f}" text-anchor="end">{escape(scenario.name)}</text>'
        )
        lines.append(
            f'<text class="quiet" x="{LABELS - 10}" y="{middle + 13:.1f}" text-anchor="end">{escape(results.baseline)} {amount} {figure.unit}</text>'
        )
        for name, value in bars:
            width = min(value, MOST) * scale
            more = "→ " if value > MOST else ""
            lines.append(
                f'<rect class="{classes[name]}" x="{LABELS}" y="{y}" width="{width:.1f}" height="{BAR}" rx="2"><title>{escape(scenario.name)}, {escape(name)}: {value:.2f}</title></rect>'
            )
            # On a ground of its own: a grid line through a figure makes it hard to read.
            ground = 7 * len(more) + 32
            lines.append(
                f'<rect class="back" x="{LABELS + width + 2:.1f}" y="{y}" width="{ground}" height="{BAR}"/>'
            )
            lines.append(
                f'<text x="{LABELS + width + 6:.1f}" y="{y + BAR - 2}">{more}{value:.2f}</text>'
            )
            y += BAR + GAP
        y = next_y
    return lines, y - GROUP_GAP + 6
