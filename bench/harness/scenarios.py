"""What is asked of every contender."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Scenario:
    name: str
    title: str
    protocol: str = "redis"
    servers: int = 4
    connections: int = 50
    pipeline: int = 1
    get_percent: int = 50
    mget: int = 0
    value_size: int = 100
    keys: int = 10_000
    #: Requests per second of an open loop.
    rate: float = 0
    #: load (a measured window), idle or peak (memory).
    kind: str = "load"
    short: bool = False

    def arguments(self):
        """The load generator's arguments that say what is asked; bounds are not here."""
        chosen = [*self.data(), f"--connections={self.connections}", f"--pipeline={self.pipeline}"]
        chosen.append(f"--get-percent={self.get_percent}")
        if self.mget:
            chosen.append(f"--mget={self.mget}")
        if self.rate:
            chosen.append(f"--rate={self.rate}")
        if self.short:
            chosen.append("--short")
        if self.kind == "idle":
            chosen.append("--idle")
        return chosen

    def data(self):
        return [
            f"--protocol={self.protocol}",
            f"--value-size={self.value_size}",
            f"--keys={self.keys}",
        ]


SCENARIOS = [
    Scenario("p1", "50 clients, pipeline 1"),
    Scenario("p16", "50 clients, pipeline 16", pipeline=16),
    Scenario("c500", "500 clients, pipeline 1", connections=500),
    Scenario("mget", "MGET of 10 keys over 4 servers, 50 clients", mget=10, get_percent=100),
    Scenario("v4k", "4 KiB values, 50 clients", value_size=4096, keys=2000),
    Scenario(
        "v1m",
        "GET of 1 MiB values, 4 clients",
        value_size=1 << 20,
        keys=32,
        connections=4,
        get_percent=100,
    ),
    Scenario(
        "short", "connect, GET, close; 16 at a time", connections=16, get_percent=100, short=True
    ),
    Scenario("one", "200 clients, one server", connections=200, servers=1),
    Scenario("mc-p1", "memcached, 50 clients, pipeline 1", protocol="memcached"),
    Scenario("mc-p16", "memcached, 50 clients, pipeline 16", protocol="memcached", pipeline=16),
    Scenario("idle", "idle connections", kind="idle", connections=4000),
    Scenario("peak", "50 clients, pipeline 16, then 10 s of rest", kind="peak", pipeline=16),
    # Not in the default set: latency away from saturation.
    Scenario("lone", "one client, pipeline 1", connections=1),
    Scenario("calm", "10 clients, open loop, 7000/s", connections=10, rate=7000),
    Scenario("open", "50 clients, open loop, 35000/s", rate=35000),
    Scenario(
        "mc-mget",
        "memcached, get of 10 keys over 4 servers, 50 clients",
        protocol="memcached",
        mget=10,
        get_percent=100,
    ),
]
EXTRA = ["lone", "calm", "open", "mc-mget"]
BY_NAME = {scenario.name: scenario for scenario in SCENARIOS}
DEFAULT = [scenario.name for scenario in SCENARIOS if scenario.name not in EXTRA]
