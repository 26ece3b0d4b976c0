"""What is asked of every contender."""

from dataclasses import dataclass

from .generators import GENERATORS


@dataclass(frozen=True)
class Scenario:
    name: str
    title: str
    group: str
    protocol: str = "redis"
    servers: int = 4
    #: The gateway's list has this many servers, which are the real ones under many names.
    entries: int = 0
    #: The gateway has this many pools, and the clients are spread over them.
    pools: int = 1
    connections: int = 50
    pipeline: int = 1
    get_percent: int = 50
    mget: int = 0
    value_size: int = 100
    #: Bytes of the large values, and the share of keys that have one.
    large_size: int = 65536
    large_percent: int = 0
    keys: int = 10_000
    #: Requests per second of an open loop.
    rate: float = 0
    #: An open loop at this share of what the baseline serves in the scenario `saturation`.
    share: float = 0
    saturation: str = ""
    #: How many requests of an open loop come at a time.
    burst: int = 1
    #: Pipeline of one more client, whose figures are kept apart.
    greedy: int = 0
    #: So many more clients, whose figures are kept apart, and the requests per second of each.
    slow: int = 0
    slow_rate: float = 0
    #: load (a measured window), idle or peak (memory).
    kind: str = "load"
    short: bool = False
    #: Clients say HELLO 3 first.
    resp3: bool = False
    default: bool = True

    @property
    def generator(self):
        """Who asks, if it is not our own load generator."""
        return GENERATORS.get(self.name)

    @property
    def server(self):
        """Which server's protocol this is: memcached has several."""
        return "redis" if self.protocol == "redis" else "memcached"

    @property
    def open_loop(self):
        return bool(self.rate or self.share)

    @property
    def beside(self):
        """What the clients are whose figures are kept apart, if there are any."""
        return "greedy" if self.greedy else "slow" if self.slow else ""

    def arguments(self):
        """The load generator's arguments that say what is asked; bounds are not here."""
        chosen = [*self.data(), f"--connections={self.connections}", f"--pipeline={self.pipeline}"]
        chosen.append(f"--get-percent={self.get_percent}")
        if self.mget:
            chosen.append(f"--mget={self.mget}")
        if self.rate:
            chosen += [f"--rate={self.rate:.0f}", f"--burst={self.burst}"]
        if self.greedy:
            chosen.append(f"--greedy={self.greedy}")
        if self.slow:
            chosen += [f"--slow={self.slow}", f"--slow-rate={self.slow_rate:g}"]
        if self.short:
            chosen.append("--short")
        if self.resp3:
            chosen.append("--resp3")
        if self.kind == "idle":
            chosen.append("--idle")
        return chosen

    def data(self):
        return [
            f"--protocol={self.protocol}",
            f"--value-size={self.value_size}",
            f"--large-size={self.large_size}",
            f"--large-percent={self.large_percent}",
            f"--keys={self.keys}",
        ]


def speed(name, title, **rest):
    return Scenario(name, title, "speed", **rest)


def tails(name, title, **rest):
    return Scenario(name, title, "tails", **rest)


def memory(name, title, **rest):
    return Scenario(name, title, "memory", **rest)


def strangers(name, title, **rest):
    clients = GENERATORS[name].clients
    return Scenario(name, title, "strangers", connections=clients, **rest)


def scale(name, title, **rest):
    return Scenario(name, title, "scale", default=False, **rest)


#: 3.4 KB a request on average.
MIX = {"large_percent": 5, "keys": 2000}

SCENARIOS = [
    speed("p1", "50 clients, pipeline 1"),
    speed("p16", "50 clients, pipeline 16", pipeline=16),
    speed("resp3-p1", "as `p1`, RESP3", resp3=True, default=False),
    speed("resp3-p16", "as `p16`, RESP3", pipeline=16, resp3=True, default=False),
    speed("c500", "500 clients, pipeline 1", connections=500),
    speed("mget", "MGET of 10 keys over 4 servers, 50 clients", mget=10, get_percent=100),
    speed("v4k", "4 KiB values, 50 clients", value_size=4096, keys=2000, default=False),
    speed(
        "v1m",
        "GET of 1 MiB values, 4 clients",
        value_size=1 << 20,
        keys=32,
        connections=4,
        get_percent=100,
    ),
    speed(
        "set1m",
        "SET of 1 MiB values, 4 clients",
        value_size=1 << 20,
        keys=32,
        connections=4,
        get_percent=0,
        default=False,
    ),
    speed(
        "short", "connect, GET, close; 16 at a time", connections=16, get_percent=100, short=True
    ),
    speed("one", "200 clients, one server", connections=200, servers=1),
    speed(
        "hot",
        "GET of one key of 1 KiB, 16 clients; what `coalesce_reads` is for",
        connections=16,
        get_percent=100,
        value_size=1024,
        keys=1,
        servers=1,
        default=False,
    ),
    speed("mc-p1", "memcached, 50 clients, pipeline 1", protocol="memcached"),
    speed("mc-p16", "memcached, 50 clients, pipeline 16", protocol="memcached", pipeline=16),
    speed(
        "mc-one",
        "memcached, 200 clients, one server",
        protocol="memcached",
        connections=200,
        servers=1,
    ),
    speed(
        "mc-mget",
        "memcached, get of 10 keys over 4 servers, 50 clients",
        protocol="memcached",
        mget=10,
        get_percent=100,
    ),
    speed("meta-p1", "memcached's meta commands, 50 clients, pipeline 1", protocol="meta"),
    speed("meta-p16", "as `meta-p1`, pipeline 16", protocol="meta", pipeline=16),
    speed("binary-p1", "memcached's binary protocol, 50 clients, pipeline 1", protocol="binary"),
    speed("binary-p16", "as `binary-p1`, pipeline 16", protocol="binary", pipeline=16),
    speed(
        "meta-one",
        "memcached's meta commands, 200 clients, one server",
        protocol="meta",
        connections=200,
        servers=1,
    ),
    speed(
        "binary-one",
        "memcached's binary protocol, 200 clients, one server",
        protocol="binary",
        connections=200,
        servers=1,
    ),
    tails("lone", "one client, pipeline 1", connections=1),
    tails("calm", "10 clients, open loop", connections=10, share=0.1, saturation="p1"),
    tails("half", "50 clients, open loop", share=0.5, saturation="p1"),
    tails("high", "50 clients, open loop", share=0.9, saturation="p1"),
    tails(
        "bursts",
        "50 clients, open loop in bursts of 100",
        share=0.5,
        saturation="p1",
        burst=100,
    ),
    tails("mix", "50 clients, values of 100 bytes and (5 %) 64 KiB", **MIX),
    tails("mix-half", "as `mix`, open loop", share=0.5, saturation="mix", **MIX),
    tails("mix-high", "as `mix`, open loop", share=0.9, saturation="mix", **MIX),
    tails(
        "steps",
        "20 clients, values of 100 bytes and 64 KiB in equal numbers",
        connections=20,
        large_percent=50,
        keys=400,
    ),
    tails(
        "fair",
        "100 polite clients, open loop, beside a greedy one that pipelines 1000 GETs",
        connections=100,
        share=0.03,
        saturation="p1",
        greedy=1000,
    ),
    tails(
        "slow",
        "45 clients, pipeline 1, beside 5 slow ones, 200/s each",
        connections=45,
        slow=5,
        slow_rate=200,
    ),
    memory("idle", "idle connections", kind="idle", connections=4000),
    memory("peak", "50 clients, pipeline 16, then 10 s of rest", kind="peak", pipeline=16),
    strangers("rb-p1", "redis-benchmark, 50 clients"),
    strangers("rb-p16", "redis-benchmark, 50 clients, pipeline 16", pipeline=16),
    strangers("rb-threads", "redis-benchmark with two threads, 50 clients"),
    strangers("rb-one", "redis-benchmark, 200 clients, one server", servers=1),
    strangers("memcslap", "memcslap, 16 threads, get", protocol="memcached"),
    strangers("memtier", "memtier_benchmark, 50 clients"),
    scale("c10", "10 clients, pipeline 1", connections=10),
    scale("c100", "100 clients, pipeline 1", connections=100),
    scale("c1000", "1,000 clients, pipeline 1", connections=1000),
    scale("c10000", "10,000 clients, pipeline 1", connections=10_000),
    scale("pools100", "100 clients, 100 pools of 4 servers", connections=100, pools=100),
    scale("s1", "50 clients, 1 server", servers=1),
    scale("s100", "50 clients, 100 servers (of 4 processes)", entries=100),
    scale("s1000", "50 clients, 1,000 servers (of 4 processes)", entries=1000),
]
BY_NAME = {scenario.name: scenario for scenario in SCENARIOS}
DEFAULT = [scenario.name for scenario in SCENARIOS if scenario.default]


def expand(names):
    """Scenario names, each once, from names, names of groups and `all`."""
    chosen = []
    for name in names:
        members = [each.name for each in SCENARIOS if name in (each.group, "all")]
        chosen += members or [name]
    return list(dict.fromkeys(chosen))
