"""Load generators that strangers use, beside our own: what they say is what a user sees."""

import csv
import io
import shutil
from dataclasses import dataclass

from .process import Broken


@dataclass(frozen=True)
class Generator:
    """A program that sends a number of requests to one port and ends."""

    program: str
    #: Its arguments; {port} and {requests} are filled in.
    arguments: tuple
    #: Requests of a run: about a second's on a usual machine.
    requests: int
    clients: int
    #: Whether {requests} is what each client sends, not all of them together.
    per_client: bool = False
    #: How often it sends {requests}: once for each of its tests.
    tests: int = 1

    def path(self):
        """Where it is, or None."""
        return shutil.which(self.program)

    def command(self, port):
        count = self.requests // self.tests
        count = count // self.clients if self.per_client else count
        named = {"port": port, "requests": count, "clients": self.clients}
        return [self.path(), *(each.format(**named) for each in self.arguments)]

    def latency(self, output):
        """Percentiles in µs, the worse of its tests; none where it prints none."""
        if self.program != "redis-benchmark":
            return {}
        rows = list(csv.DictReader(io.StringIO(output)))
        if len(rows) != self.tests or "p99_latency_ms" not in rows[0]:
            raise Broken(f"redis-benchmark printed {output[-300:]!r}")
        names = {"p50": "p50_latency_ms", "p99": "p99_latency_ms", "max": "max_latency_ms"}
        return {
            name: max(1000 * float(row[column]) for row in rows) for name, column in names.items()
        }


def redis_benchmark(*extra, clients=50, requests=80_000):
    arguments = ("-p", "{port}", "-c", "{clients}", "-n", "{requests}", "-d", "100", "-r", "10000")
    # Sets come first, so that gets find something.
    return Generator(
        "redis-benchmark",
        (*arguments, *extra, "-t", "set,get", "--csv"),
        requests,
        clients,
        tests=2,
    )


GENERATORS = {
    "rb-p1": redis_benchmark(),
    "rb-p16": redis_benchmark("-P", "16", requests=640_000),
    "rb-threads": redis_benchmark("--threads", "2"),
    "rb-one": redis_benchmark(clients=200),
    "memcslap": Generator(
        "memcslap",
        ("--servers=127.0.0.1:{port}", "--test=get", "--concurrency={clients}",
         "--execute-number={requests}"),
        48_000,
        clients=16,
        per_client=True,
    ),
    "memtier": Generator(
        "memtier_benchmark",
        ("-p", "{port}", "-t", "2", "-c", "25", "-n", "{requests}", "-d", "100", "--ratio=1:1",
         "--hide-histogram"),
        60_000,
        clients=50,
        per_client=True,
    ),
}
