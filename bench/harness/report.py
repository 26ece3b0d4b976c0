"""The results as JSON, as Markdown and as a picture."""

import json
import os

from . import chart
from .measure import medians, ratio

CPU = "gateway_cpu"


class Results:
    """All rounds: scenario -> contender -> round number -> figures."""

    def __init__(self, scenarios, contenders, baseline):
        self.scenarios = scenarios
        self.contenders = contenders
        self.baseline = baseline
        self.rounds = {}
        self.failures = []

    def add(self, scenario, contender, number, figures):
        self.rounds.setdefault(scenario.name, {}).setdefault(contender.name, {})[number] = figures

    def fail(self, scenario, contender, number, reason):
        self.failures.append(f"{scenario.name}, round {number}, {contender.name}: {reason}")

    def of(self, scenario, contender):
        return self.rounds.get(scenario, {}).get(contender, {})

    def median(self, scenario, contender):
        return medians(list(self.of(scenario, contender).values()))

    def ratio(self, scenario, contender, key, baseline=None):
        other = self.of(scenario, baseline or self.baseline)
        return ratio(self.of(scenario, contender), other, key)

    def names(self, scenario):
        measured = self.rounds.get(scenario, {})
        return [name for name in self.contenders if measured.get(name)]

    def measured(self, kind):
        return [each for each in self.scenarios if each.kind == kind and each.name in self.rounds]


def number(value, digits=None):
    """A figure with about three significant digits."""
    if value is None:
        return "–"
    if digits is None:
        digits = 0 if value >= 1000 else 1 if value >= 10 else 2
    return f"{value:,.{digits}f}"


def times(value):
    return "–" if value is None else f"{value:.2f} ×"


def row(cells):
    return "| " + " | ".join(str(cell) for cell in cells) + " |"


def table(head, rows):
    return [row(head), row(["---", *["---:"] * (len(head) - 1)]), *map(row, rows), ""]


def markdown(results, about, picture):
    lines = ["# Benchmark", ""]
    lines += machine_lines(about)
    loads = results.measured("load")
    if loads:
        lines += ["## Gateway CPU per request", ""]
        lines += [
            f"Microseconds of user and system time of all the gateway's processes, and the ratio to {results.baseline}.",
            "",
        ]
        if picture:
            lines += [
                f"![Gateway CPU per request, as a ratio to {results.baseline}]({picture})",
                "",
            ]
        lines += cpu_table(results, loads)
        lines += ["## Scenario by scenario", ""]
        for scenario in loads:
            lines += scenario_lines(results, scenario)
    for kind, title, lister in (
        ("idle", "Memory of idle connections", idle_table),
        ("peak", "Memory at a peak and after it", peak_table),
    ):
        for scenario in results.measured(kind):
            lines += [f"## {title} (`{scenario.name}`)", "", *lister(results, scenario)]
    if results.failures:
        lines += ["## Failed", "", *[f"- {failure}" for failure in results.failures], ""]
    return "\n".join(lines).rstrip() + "\n"


def machine_lines(about):
    machine = about["machine"]
    parts = [
        f"{machine['date']}; {machine['cpu']}, {machine['cores']} cores, "
        f"Linux {machine['kernel']}, {machine['system']}; "
        f"load average at the start {machine['load_average']:.2f}.",
        f"Gateway on CPU {about['gateway_cpus']}, servers and load on {about['other_cpus']}.",
        f"Medians of {about['rounds']} round(s) of {about['seconds']:g} s, contenders alternating;",
        "ratios are medians of the ratios within each round.",
        *(["**Interrupted before all rounds were done.**"] if about.get("interrupted") else []),
    ]
    lines = [
        " ".join(parts),
        "",
        "To reproduce:",
        "",
        "```sh",
        about["command"],
        "```",
        "",
    ]
    lines += [f"- {name}: {version}" for name, version in about["versions"].items()]
    return lines + [""]


def cpu_table(results, scenarios):
    shown = [
        name
        for name in results.contenders
        if any(CPU in results.median(each.name, name) for each in scenarios)
    ]
    rows = []
    for scenario in scenarios:
        cells = [f"`{scenario.name}` {scenario.title}"]
        for name in shown:
            cells.append(cpu_cell(results, scenario.name, name))
        rows.append(cells)
    return table(["scenario", *shown], rows)


def cpu_cell(results, scenario, name):
    value = results.median(scenario, name).get(CPU)
    if value is None:
        return "–"
    compared = results.ratio(scenario, name, CPU)
    if name == results.baseline or compared is None:
        return number(value)
    return f"{number(value)} ({compared:.2f} ×)"


def scenario_lines(results, scenario):
    head = ["contender", "operations/s", "p50 µs", "p99 µs", "p99.9 µs", "max µs", "gateway CPU µs"]
    head += [
        f"vs {results.baseline}",
        "vs floor",
        "spread",
        "core busy",
        "sleeps",
        "server CPU µs",
        f"server vs {results.baseline}",
    ]
    head += ["peak MiB", "other CPU"]
    rows, notes = [], []
    for name in results.names(scenario.name):
        rounds = list(results.of(scenario.name, name).values())
        middle = medians(rounds)
        rows.append(
            [
                name,
                number(middle["ops"], 0),
                *[number(middle[key], 0) for key in ("p50", "p99", "p99.9", "max")],
                number(middle.get(CPU)),
                times(results.ratio(scenario.name, name, CPU)),
                times(results.ratio(scenario.name, name, CPU, "floor")),
                spread(rounds),
                percent(middle.get("gateway_busy")),
                number(middle.get("sleeps")),
                number(middle["server_cpu"]),
                times(results.ratio(scenario.name, name, "server_cpu")),
                number(middle["peak_kib"] / 1024) if "peak_kib" in middle else "–",
                percent(middle["foreign"]),
            ]
        )
        for key in ("errors", "misses"):
            count = sum(each[key] for each in rounds)
            if count:
                reason = next((each["first_error"] for each in rounds if each["first_error"]), "")
                requests = sum(each["requests"] for each in rounds)
                notes.append(
                    f"- {name}: {count:,} {key} in {requests:,} requests {reason}".rstrip()
                )
    lines = [f"### `{scenario.name}`: {scenario.title}", "", *table(head, rows)]
    return lines + (notes + [""] if notes else [])


def spread(rounds):
    """Lowest and highest round."""
    values = [each[CPU] for each in rounds if CPU in each]
    return f"{number(min(values))}–{number(max(values))}" if values else "–"


def percent(value):
    return "–" if value is None else f"{100 * value:.0f} %"


def idle_table(results, scenario):
    rows = []
    for name in results.names(scenario.name):
        middle = results.median(scenario.name, name)
        each = number(middle["bytes_per_connection"], 0)
        compared = times(results.ratio(scenario.name, name, "bytes_per_connection"))
        rows.append(
            [
                name,
                number(middle["connections"], 0),
                number(middle["start_kib"], 0),
                number(middle["held_kib"], 0),
                each,
                compared,
            ]
        )
    return table(
        [
            "contender",
            "connections",
            "KiB at start",
            "KiB while held",
            "bytes per connection",
            f"vs {results.baseline}",
        ],
        rows,
    )


def peak_table(results, scenario):
    rows = []
    for name in results.names(scenario.name):
        middle = results.median(scenario.name, name)
        rows.append(
            [
                name,
                *[number(middle[key] / 1024, 1) for key in ("start_kib", "peak_kib", "after_kib")],
                times(results.ratio(scenario.name, name, "peak_kib")),
                times(middle["after_kib"] / middle["start_kib"]),
            ]
        )
    return table(
        [
            "contender",
            "MiB at start",
            "MiB at the peak",
            "MiB 10 s later",
            f"peak vs {results.baseline}",
            "after vs start",
        ],
        rows,
    )


def write(results, about, directory, stem):
    """Writes the report into a directory and returns the Markdown's path."""
    os.makedirs(directory, exist_ok=True)
    path = os.path.join(directory, stem)
    picture = chart.draw(results, CPU)
    if picture:
        save(f"{path}.svg", picture)
    save(f"{path}.md", markdown(results, about, f"{stem}.svg" if picture else None))
    data = {"about": about, "rounds": results.rounds, "failures": results.failures}
    save(f"{path}.json", json.dumps(data, indent=1) + "\n")
    return f"{path}.md"


def save(path, text):
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
