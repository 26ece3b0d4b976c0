"""What cashew is to reach, and whether it did."""

from dataclasses import dataclass

from .scenarios import BY_NAME

CPU, SERVER_CPU = "gateway_cpu", "server_cpu"
NUTCRACKER = ("nutcracker",)
DIRECT = ("direct",)
NO_WINDOW = ("cashew-nowindow",)
FLOOR = ("floor",)
#: Gateways that look at keys as cashew does; haproxy in TCP mode does not.
PEERS = ("nutcracker", "envoy")

#: Figures that a round's stalls of the machine decide.
TAILS = ("p99", "p99.9")

WORDS = {
    CPU: "gateway CPU per request",
    SERVER_CPU: "server CPU per request",
    "ops": "operations/s",
    "slow": "requests above 35 ms",
    "bytes_per_connection": "bytes per connection",
    "peak_kib": "peak memory, KiB",
    "after_start": "memory 10 s later, of that at start",
}

WHERE = {"all": "every scenario", "tails": "every scenario of `tails`"}


@dataclass(frozen=True)
class Target:
    """A limit on a figure in one scenario, in those of a group, or in every one.

    With bases the figure is a ratio, and the least favourable of them decides.
    """

    where: str
    metric: str
    limit: float
    bases: tuple = ()
    contender: str = "cashew"
    at_least: bool = False

    def title(self):
        """What is limited, in words."""
        where = f"`{self.where}`" if self.where in BY_NAME else WHERE[self.where]
        against = f", against {' and '.join(self.bases)}" if self.bases else ""
        return f"{self.contender}, {where}: {WORDS.get(self.metric, self.metric)}{against}"

    def covers(self, scenario):
        # The rate of an open loop is given, so its operations/s say nothing.
        if self.metric == "ops" and scenario.open_loop:
            return False
        return self.where in (scenario.name, scenario.group, "all")

    def bound(self):
        unit = " ×" if self.bases or self.metric == "after_start" else ""
        digits = ".2f" if unit else ",.0f"
        return f"{'≥' if self.at_least else '≤'} {self.limit:{digits}}{unit}"

    def measure(self, results):
        """(scenario, value) for each scenario where everything it takes was measured."""
        names = [each.name for each in results.scenarios if self.covers(each)]
        values = ((name, self.value(results, name)) for name in names)
        return [(name, value) for name, value in values if value is not None]

    def value(self, results, scenario):
        if not self.bases:
            return results.median(scenario, self.contender).get(self.metric)
        ratios = [results.ratio(scenario, self.contender, self.metric, b) for b in self.bases]
        known = [ratio for ratio in ratios if ratio is not None]
        return self.worst(known) if known else None

    def quiet(self, results):
        """(scenario, ratio of the quiet rounds) likewise, where the figure is a tail."""
        if self.metric not in TAILS or not self.bases:
            return []
        found = []
        for each in results.scenarios:
            if self.covers(each):
                ratios = [
                    results.quiet_ratio(each.name, self.contender, self.metric, base)
                    for base in self.bases
                ]
                known = [ratio for ratio in ratios if ratio is not None]
                found += [(each.name, self.worst(known))] if known else []
        return found

    def worst(self, values):
        return min(values) if self.at_least else max(values)

    def met(self, value):
        """To the two digits that are printed: no run tells more."""
        value = round(value, 2)
        return value >= self.limit if self.at_least else value <= self.limit


TARGETS = [
    Target("p1", CPU, 1.10, FLOOR, "cashew-nowindow"),
    Target("p16", CPU, 1.25, FLOOR, "cashew-nowindow"),
    Target("p1", CPU, 1.00, PEERS, "cashew-nowindow"),
    Target("p16", CPU, 1.00, PEERS, "cashew-nowindow"),
    Target("p1", CPU, 0.70, NUTCRACKER),
    Target("p16", CPU, 0.55, NUTCRACKER),
    Target("one", CPU, 0.70, NUTCRACKER),
    Target("one", SERVER_CPU, 0.65, NUTCRACKER),
    Target("one", SERVER_CPU, 0.25, DIRECT),
    Target("one", "ops", 1.60, DIRECT, at_least=True),
    Target("all", "ops", 1.00, NUTCRACKER, at_least=True),
    Target("all", "p50", 1.00, NUTCRACKER),
    Target("all", "p99", 1.00, NUTCRACKER),
    Target("all", "p99.9", 1.00, NUTCRACKER),
    Target("tails", "slow", 0),
    Target("lone", "p50", 1.05, NO_WINDOW),
    Target("lone", "p99", 1.05, NO_WINDOW),
    Target("calm", "p50", 1.05, NO_WINDOW),
    Target("calm", "p99", 1.05, NO_WINDOW),
    Target("mget", CPU, 0.60, NUTCRACKER),
    Target("v1m", CPU, 0.95, NUTCRACKER),
    Target("short", CPU, 0.85, NUTCRACKER),
    Target("mc-p1", CPU, 0.70, NUTCRACKER),
    Target("mc-p16", CPU, 0.55, NUTCRACKER),
    Target("mc-one", CPU, 0.70, NUTCRACKER),
    Target("mc-one", SERVER_CPU, 0.65, NUTCRACKER),
    Target("idle", "bytes_per_connection", 256),
    Target("peak", "peak_kib", 8192),
    Target("peak", "after_start", 1.10),
]


def verdicts(results):
    """(target, worst value, scenarios that miss it with their values, those of its quiet rounds)
    of all that was measured; the quiet rounds decide nothing."""
    for target in TARGETS:
        values = target.measure(results)
        if values:
            missed = [(name, value) for name, value in values if not target.met(value)]
            worst = target.worst([value for _, value in values])
            yield target, worst, missed, target.quiet(results)
