"""The results as JSON, as Markdown and as pictures."""

import json
import os

from . import chart, machine, targets
from .measure import DISTURBED, medians

CPU = "gateway_cpu"
LATENCIES = ("p50", "p99", "p99.9", "max")
INTERVALS = (
    "The medians decide. In brackets is between which ratios the median lies nine times of ten, as far as",
    "the rounds of this run tell. Where that reaches the limit in all scenarios that miss it, the answer is",
    "*perhaps*, and a longer run tells. Of twenty scenarios that are just at a limit, chance has one beyond it.",
)


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


def markdown(results, about, pictures):
    """The report; `pictures` are (title, file name)."""
    lines = ["# Benchmark", ""]
    lines += machine_lines(about, results)
    lines += target_lines(results)
    loads = results.measured("load")
    if loads:
        lines += ["## Gateway CPU per request", ""]
        lines += [
            f"Microseconds of user and system time of all the gateway's processes, and the ratio to {results.baseline}.",
            "",
        ]
        lines += cpu_table(results, loads)
        for title, file in pictures:
            lines += [f"![{title}, as a ratio to {results.baseline}]({file})", ""]
        lines += overview_lines(results, loads)
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


def machine_lines(about, results):
    host = about["machine"]
    parts = [
        f"{host['date']}; {host['cpu']}, {host['cores']} cores,",
        f"Linux {host['kernel']}, {host['system']}, TCP with {host['congestion_control']};",
        f"load average at the start {host['load_average']:.2f}.",
        f"Gateway on CPU {about['gateway_cpus']}, servers and load on {about['other_cpus']}.",
        f"Medians of {round_count(about)} of {about['seconds']:g} s, contenders alternating;",
        "ratios are medians of the ratios within each round.",
        *disturbance_lines(results),
        *stall_lines(host.get("stalls", {})),
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


def round_count(about):
    tails = about["tail_rounds"]
    apart = f" ({tails} of `tails`)" if tails != about["rounds"] else ""
    return f"{about['rounds']} round(s){apart}"


def disturbance_lines(results):
    """How often other processes spoilt a round, and how often to the end."""
    rounds = [
        each
        for scenario in results.measured("load")
        for name in results.names(scenario.name)
        for each in results.of(scenario.name, name).values()
    ]
    again = sum(each["tries"] - 1 for each in rounds)
    if not again:
        return []
    left = sum(each["strangers"] > DISTURBED for each in rounds)
    return [
        f"{again} more rounds than the {len(rounds)} were measured, in the place of such in which",
        f"processes of others used more than {percent(DISTURBED)} of a core; {left} were so to the last.",
    ]


def stall_lines(stalls):
    """What the machine did to everybody, by when it was watched."""
    watched = [report for reports in stalls.values() for report in reports]
    if not watched:
        return []
    whole = machine.stall_summary(watched)
    when = " and ".join(
        f"{percent(machine.stall_summary(reports)['share'], 2)} {name}"
        for name, reports in stalls.items()
    )
    lines = ["With all processors busy, watched apart from the rounds, the host"]
    if whole["per_second"]:
        lines += [
            f"took them away for {percent(whole['share'], 2)} of the time ({when}),",
            f"{number(whole['per_second'])} times a second, in pieces of up to {number(whole['longest_ms'])} ms:",
            "where that is more than 1 %, what is told of p99 and beyond in a single round is the",
            "host's, and where it is more than 0.1 %, what is told of p99.9.",
        ]
    else:
        lines += ["took none away for as long as 0.5 ms."]
    if whole["elsewhere_share"] > 0:
        lines += [
            f"Other processes had them for {percent(whole['elsewhere_share'], 2)}, in pieces of 0.5 ms or more."
        ]
    return lines


def target_lines(results):
    rows = []
    for target, worst, missed in targets.verdicts(results):
        digits = 2 if "×" in target.bound() else 0
        unit = " ×" if digits else ""
        cells = ["–", "not measured"]
        if worst:
            cells = [number(worst.value, digits) + unit, answer(target, missed, digits)]
        rows.append([target.title(), target.bound(), *cells])
    if not rows:
        return []
    head = ["target", "limit", "measured", "met"]
    return ["## Targets", "", " ".join(INTERVALS), "", *table(head, rows)]


def answer(target, missed, digits):
    """Whether it is met, and by whom it is not."""
    if not missed:
        return "yes"
    names = [f"`{each.scenario}` {number(each.value, digits)}{between(each)}" for each in missed]
    verdict = "perhaps" if all(map(target.may_be_met, missed)) else "no"
    return f"{verdict}: {', '.join(names)}"


def between(measured):
    if measured.interval is None:
        return ""
    low, high = measured.interval
    return f" ({low:.2f}–{high:.2f})"


def overview_lines(results, loads):
    """Cashew against the baseline, and every other setting or build of it against cashew."""
    lines = []
    if "cashew" in results.contenders and results.baseline in results.contenders:
        lines += [f"## Cashew as a ratio to {results.baseline}", ""]
        rows = [("cashew", scenario) for scenario in loads]
        lines += ratio_table(results, rows, results.baseline, named=False)
    variants = [name for name in results.contenders if name in results.variants]
    if variants:
        lines += ["## Other settings and builds as ratios to cashew", ""]
        rows = [(name, scenario) for scenario in loads for name in variants]
        lines += ratio_table(results, rows, "cashew", named=True)
    return lines


def ratio_table(results, pairs, base, named):
    keys = ("ops", "p50", "p99", "p99.9", CPU, "server_cpu")
    rows = []
    for name, scenario in pairs:
        cells = [times(results.ratio(scenario.name, name, key, base)) for key in keys]
        if any(cell != "–" for cell in cells):
            rows.append([f"`{scenario.name}`", *([name] if named else []), *cells])
    head = ["scenario", *(["contender"] if named else [])]
    return table([*head, "operations/s", *keys[1:4], "gateway CPU", "server CPU"], rows)


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
    title = f"### `{scenario.name}`: {scenario.title}"
    rate = results.rates.get(scenario.name) or scenario.rate
    if rate:
        title += f", {rate:,.0f}/s"
    if scenario.share:
        title += f" ({100 * scenario.share:.0f} % of what {results.baseline} serves at most in `{scenario.saturation}`)"
    lines = [title, "", *figure_table(results, scenario)]
    if len(results.names(scenario.name)) > 1:
        lines += against_table(results, scenario)
    return lines + flaws(results, scenario)


def figure_table(results, scenario):
    head = ["contender", "operations/s", *(f"{name} µs" for name in LATENCIES), "> 35 ms"]
    head += ["gateway CPU µs", "spread", "core busy", "sleeps", "server CPU µs", "load CPU µs"]
    head += ["others busy", "peak MiB", "other CPU", *beside_title(scenario)]
    rows = []
    for name in results.names(scenario.name):
        rounds = list(results.of(scenario.name, name).values())
        middle = medians(rounds)
        cells = [name, number(middle["ops"], 0)]
        cells += [number(middle.get(key), 0) for key in LATENCIES]
        cells += [slow(rounds), number(middle.get(CPU)), spread(rounds)]
        cells += [percent(middle.get("gateway_busy")), number(middle.get("sleeps"))]
        cells += [number(middle["server_cpu"]), number(middle["load_cpu"])]
        cells += [percent(middle["others_busy"])]
        cells += [number(middle["peak_kib"] / 1024) if "peak_kib" in middle else "–"]
        cells += [percent(middle["foreign"])]
        cells += [number(middle["beside_ops"], 0)] if scenario.beside else []
        rows.append(cells)
    return table(head, rows)


def beside_title(scenario):
    """The column of those whose figures are kept apart, where there are such."""
    return [f"{scenario.beside} operations/s"] if scenario.beside else []


def against_table(results, scenario):
    """Every contender as ratios: to the baseline, to the floor, and to no gateway at all."""
    columns = [
        ("operations/s", "ops", None),
        *((name, name, None) for name in LATENCIES),
        ("gateway CPU", CPU, None),
        ("server CPU", "server_cpu", None),
        *((title, "beside_ops", None) for title in beside_title(scenario)),
        ("gateway CPU vs floor", CPU, "floor"),
        ("operations/s vs direct", "ops", "direct"),
        ("server CPU vs direct", "server_cpu", "direct"),
    ]
    rows = {
        name: [results.ratio(scenario.name, name, key, base) for _, key, base in columns]
        for name in results.names(scenario.name)
    }
    shown = [any(row[at] is not None for row in rows.values()) for at in range(len(columns))]
    head = [f"vs {results.baseline}", *(title for title, _, _ in columns)]
    return table(
        [cell for cell, show in zip(head, [True, *shown]) if show],
        [
            [name, *(times(value) for value, show in zip(row, shown) if show)]
            for name, row in rows.items()
        ],
    )


def flaws(results, scenario):
    """Notes on contenders that gave errors or missed keys."""
    notes = []
    for name in results.names(scenario.name):
        rounds = list(results.of(scenario.name, name).values())
        for key in ("errors", "misses"):
            count = sum(each[key] for each in rounds)
            if count:
                reason = next((each["first_error"] for each in rounds if each["first_error"]), "")
                requests = sum(each["requests"] for each in rounds)
                notes.append(
                    f"- {name}: {count:,} {key} in {requests:,} requests {reason}".rstrip()
                )
    return notes + [""] if notes else []


def slow(rounds):
    """How many requests met a delayed acknowledgement or worse, in all rounds."""
    count = sum(each["slow"] for each in rounds)
    share = count / max(sum(each["timed"] for each in rounds), 1)
    return f"{count:,} ({100 * share:.3g} %)" if count else "0"


def spread(rounds):
    """Lowest and highest round."""
    values = [each[CPU] for each in rounds if CPU in each]
    return f"{number(min(values))}–{number(max(values))}" if values else "–"


def percent(value, digits=0):
    return "–" if value is None else f"{100 * value:.{digits}f} %"


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


#: Suffix of the file, title, figure, unit, groups of scenarios, whether more is better.
PICTURES = [
    ("", "Gateway CPU per request", CPU, "µs", ("speed", "scale"), False),
    ("-operations", "Operations per second", "ops", "/s", ("speed", "scale"), True),
    ("-p99", "99th percentile of latency", "p99", "µs", ("tails",), False),
    ("-p99.9", "99.9th percentile of latency", "p99.9", "µs", ("tails",), False),
]


def write(results, about, directory, stem):
    """Writes the report into a directory and returns the Markdown's path."""
    os.makedirs(directory, exist_ok=True)
    path = os.path.join(directory, stem)
    pictures = []
    for suffix, title, key, unit, groups, more in PICTURES:
        picture = chart.draw(results, chart.Figure(title, key, unit, groups, more))
        if picture:
            save(f"{path}{suffix}.svg", picture)
            pictures.append((title, f"{stem}{suffix}.svg"))
    save(f"{path}.md", markdown(results, about, pictures))
    save(f"{path}.json", record(results, about))
    return f"{path}.md"


def record(results, about):
    """Everything as JSON, a line for each round."""
    facts = {
        "about": about,
        "saturation": results.saturation,
        "rates": results.rates,
        "failures": results.failures,
    }
    rounds = [
        {"scenario": scenario, "contender": contender, "round": number}
        | {key: short(value) for key, value in figures.items()}
        for scenario, contenders in results.rounds.items()
        for contender, measured in contenders.items()
        for number, figures in sorted(measured.items())
    ]
    lines = ",\n".join(f"  {json.dumps(each)}" for each in rounds)
    return f'{json.dumps(facts, indent=1)[:-2]},\n "rounds": [\n{lines}\n ]\n}}\n'


def short(value):
    """Six digits, more than any figure has to say."""
    return float(f"{value:.6g}") if isinstance(value, float) else value


def save(path, text):
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
