"""Cashew with one of its statistics on and all the others off: what each of them costs."""

import os
import sys

from .callgrind import InThreads
from .process import Running, free_port

#: All are off. Under valgrind every request is slow, so that `slow_log` is an hour where it is on.
OFF = {"hot_keys": "false", "slow_log": "0ms"}
#: By the name of the statistic: options of the pool, and a line of the global section, in which {directory} and
#: {collector} stand for what a run has. The keys of the load begin with `key:`.
STATISTICS = {
    "hot_keys": ({"hot_keys": "true"}, None),
    "slow_log": ({"slow_log": "1h"}, None),
    "command_stats": ({"command_stats": "true"}, None),
    "prefixes": ({"prefixes": '["user:", "key:", "session:"]'}, None),
    "access_log": ({}, "access_log: {{file: {directory}/access.log}}"),
    "tracing": ({}, 'tracing: {{endpoint: "http://127.0.0.1:{collector}"}}'),
    "audit_log": ({}, "audit_log: {{file: {directory}/audit.log}}"),
}
NONE = "none"
#: The same again: what is between the two is chance.
AGAIN = "none-again"


class Counting(InThreads):
    """Cashew with this statistic and no other."""

    def __init__(self, name, program, **places):
        options, line = STATISTICS.get(name, ({}, None))
        super().__init__(name, program, [line.format(**places)] if line else [])
        self.options = {**OFF, **options}

    def configuration(self, listen, ports, protocol):
        options = "".join(f"    {key}: {value}\n" for key, value in self.options.items())
        text = self.in_threads(super(InThreads, self).configuration(listen, ports, protocol))
        return text.replace("    preconnect: true\n", f"    preconnect: true\n{options}")


def contenders(program, bench, names):
    """One for each of these statistics, between two that have none."""
    # Workers may run as another user and still have to write their logs.
    logs = os.path.join(bench.path, "logs")
    os.makedirs(logs, exist_ok=True)
    os.chmod(logs, 0o777)
    collector = free_port()
    program_of_collector = os.path.join(os.path.dirname(__file__), "collector.py")
    command = [sys.executable, program_of_collector, str(collector)]
    Running("collector", command, bench.other_cpus, bench.path)
    places = {"directory": logs, "collector": collector}
    chosen = [Counting(name, program, **places) for name in (NONE, *names, AGAIN)]
    for each in chosen:
        each.require()
    return chosen


def above(count, none):
    """How much more that is, in percent."""
    return None if count is None or not none else 100 * (count / none - 1)
