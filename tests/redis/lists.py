"""The two lists beside this file: what the server itself fails, and where the gateway differs.

Both are text: a section for each `[...]` line, and in it a line for each test, `UNIT: TEST`. Lines
that begin with # are for people.
"""

import re
from pathlib import Path

HERE = Path(__file__).resolve().parent
DIFFERENCES = HERE / "differences.txt"


class Baseline:
    """What Redis's own suite says of the bare server: its failures, and how many tests ran."""

    def __init__(self, protocol, version):
        self.path = HERE / f"baseline-{version}-resp{protocol}.txt"
        self.counts, self.failing = {}, set()
        if self.path.exists():
            for section, unit, rest in entries(self.path):
                if section == "tests":
                    self.counts[unit] = int(rest)
                else:
                    self.failing.add((unit, rest))

    def known(self):
        return self.path.exists()

    def take(self, results):
        for name, unit in results.items():
            self.failing = {each for each in self.failing if each[0] != name}
            self.failing |= {(name, test) for test in unit.failed}
            self.counts[name] = unit.ran()

    def write(self):
        lines = [
            "# What Redis's own test suite says of the server itself, which this directory's `run",
            "# --renew-baseline` writes: tests by unit, and those that fail without a gateway.",
            "", "[tests]",
            *(f"{unit}: {count}" for unit, count in sorted(self.counts.items())),
            "", "[failing]",
            *(f"{unit}: {test}" for unit, test in sorted(self.failing)),
        ]
        self.path.write_text("\n".join(lines) + "\n")


class Differences:
    """The tests that a gateway is known not to pass, with the reason for each.

    A section is `[WHERE] REASON`; WHERE says in front of how many servers (`one`, `three`, a `cluster`), and
    `resp2` or `resp3` where it is so in one protocol only. `= TEXT` behind that is part of what each
    failure in the section says: one that says something else is another, and not listed. A test after
    `!` would not end, or end others, and is not begun; one after `?` passes or not as it happens. `*`
    is all of a unit, which is not begun.
    """

    def __init__(self, servers, protocol):
        self.reasons, self.never, self.sometimes, self.texts = {}, set(), set(), {}
        others = {"one", "three", "cluster"} - {servers}, {"resp2", "resp3"} - {f"resp{protocol}"}
        text = {}
        for section, unit, test in entries(DIFFERENCES):
            if unit == "=":
                text[section] = test
                continue
            where, _, reason = section.partition("] ")
            words = set(re.split(r"[ ,]+", where))
            unknown = words - {"one", "three", "cluster", "resp2", "resp3"}
            if unknown or not reason:
                raise ValueError(f"{DIFFERENCES.name}: [{section}: unknown {unknown} or no reason")
            if servers not in words or words & others[1] and f"resp{protocol}" not in words:
                continue
            mark, test = (test[0], test[1:]) if test[0] in "!?" else ("", test)
            if mark == "!" or test == "*":
                self.never.add((unit, test))
            if mark == "?":
                self.sometimes.add((unit, test))
            if (unit, test) in self.reasons:
                raise ValueError(f"{DIFFERENCES.name}: {unit}: {test} is there twice")
            self.reasons[unit, test] = reason
            self.texts[unit, test] = text.get(section, "")

    def explains(self, unit, test, why):
        """Whether the list has this failure."""
        return (unit, test) in self.reasons and self.texts[unit, test] in why


def entries(path):
    """(section, unit, rest) of each line; a section is what follows its `[`."""
    section = None
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        if line.startswith("["):
            section = line[1:].removesuffix("]") if line.endswith("]") else line[1:]
            continue
        if line.startswith("= "):
            yield section, "=", line[2:]
            continue
        unit, colon, rest = line.partition(": ")
        if not colon or section is None:
            raise ValueError(f"{path.name}:{number}: not a section and not UNIT: TEST: {line}")
        yield section, unit, rest
