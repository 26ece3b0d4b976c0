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
class Measured:
    """What a scenario has to say of a target."""

    scenario: str
    value: float
    #: Between which the value lies, if there were rounds enough to tell.
    interval: tuple | None


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
        # Strangers' generators are there to be compared with ours; they have no target.
        everywhere = () if scenario.generator else ("all",)
        return self.where in (scenario.name, scenario.group, *everywhere)

    def bound(self):
        unit = " ×" if self.bases or self.metric == "after_start" else ""
        digits = ".2f" if unit else ",.0f"
        return f"{'≥' if self.at_least else '≤'} {self.limit:{digits}}{unit}"

    def measure(self, results):
        """What every scenario says where everything it takes was measured."""
        found = (self.find(results, each.name) for each in results.scenarios if self.covers(each))
        return [each for each in found if each]

    def lacks_base(self, results):
        """Whether only those are missing that the figure is to be compared with."""
        covered = (each.name for each in results.scenarios if self.covers(each))
        return bool(self.bases) and any(results.of(name, self.contender) for name in covered)

    def find(self, results, scenario):
        if not self.bases:
            value = results.median(scenario, self.contender).get(self.metric)
            return None if value is None else Measured(scenario, value, None)
        known = []
        for base in self.bases:
            compared = (scenario, self.contender, self.metric, base)
            value = results.ratio(*compared)
            if value is not None:
                known.append(Measured(scenario, value, results.interval(*compared)))
        return self.worst(known)

    def worst(self, measured):
        choose = min if self.at_least else max
        return choose(measured, key=lambda each: each.value, default=None)

    def met(self, value):
        """To the two digits that are printed: no run tells more."""
        value = round(value, 2)
        return value >= self.limit if self.at_least else value <= self.limit

    def may_be_met(self, measured):
        """Whether chance may be all that keeps it from being met."""
        return measured.interval is not None and any(map(self.met, measured.interval))


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
    Target("mc-mget", CPU, 0.60, NUTCRACKER),
    Target("mc-one", SERVER_CPU, 0.65, NUTCRACKER),
    Target("idle", "bytes_per_connection", 256),
    Target("peak", "peak_kib", 8192),
    Target("peak", "after_start", 1.10),
]


def verdicts(results):
    """(target, worst, those that miss it) of all that was measured, and (target, None, []) where
    nothing was there to measure it against."""
    for target in TARGETS:
        measured = target.measure(results)
        missed = [each for each in measured if not target.met(each.value)]
        if measured or target.lacks_base(results):
            yield target, target.worst(measured), missed
