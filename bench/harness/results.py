"""The figures of all rounds, and what they say together."""

from .measure import interval, medians, ratio


class Results:
    """All rounds: scenario -> contender -> round number -> figures."""

    def __init__(self, scenarios, contenders, baseline):
        self.scenarios = scenarios
        self.contenders = [each.name for each in contenders]
        #: Other settings and builds of cashew.
        self.variants = {each.name for each in contenders if each.variant}
        self.baseline = baseline
        self.rounds = {}
        self.failures = []
        #: Operations per second that the baseline serves at most, by scenario.
        self.saturation = {}
        #: Requests per second that open-loop scenarios were measured at.
        self.rates = {}

    def add(self, scenario, contender, number, figures):
        self.rounds.setdefault(scenario.name, {}).setdefault(contender.name, {})[number] = figures

    def fail(self, scenario, contender, number, reason):
        self.failures.append(f"{scenario.name}, round {number}, {contender.name}: {reason}")

    def of(self, scenario, contender):
        return self.rounds.get(scenario, {}).get(contender, {})

    def median(self, scenario, contender):
        return medians(list(self.of(scenario, contender).values()))

    def ratio(self, scenario, contender, key, base=None):
        """To the same figure of `base` (else the baseline), round by round; none without both."""
        other = self.of(scenario, base or self.baseline)
        return ratio(self.of(scenario, contender), other, key)

    def interval(self, scenario, contender, key, base=None):
        """Between which ratios the median lies, if there were rounds enough to tell."""
        other = self.of(scenario, base or self.baseline)
        return interval(self.of(scenario, contender), other, key)

    def names(self, scenario):
        measured = self.rounds.get(scenario, {})
        return [name for name in self.contenders if measured.get(name)]

    def measured(self, kind):
        return [each for each in self.scenarios if each.kind == kind and each.name in self.rounds]
