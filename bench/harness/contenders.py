"""Everything that can stand between clients and servers, with equal configuration."""

import os
import resource
import shlex
import subprocess

from . import machine
from .process import Running, free_port

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


class Contender:
    """A gateway that can be started in front of servers. `port` is where clients connect."""

    #: Whether clients reach the servers without anything between.
    direct = False
    #: Whether the servers' process runs on the gateway's core.
    own_core = False

    def __init__(self, name):
        self.name = name

    def require(self):
        """Raises Missing when this contender cannot run here."""

    def supports(self, _scenario):
        return True

    def version(self):
        return "unknown"

    def command(self, port, ports, protocol, directory):
        raise NotImplementedError

    def start(self, ports, protocol, cpus, directory, prefix=()):
        """Starts it and returns the process and the port to connect to."""
        if self.direct:
            return None, ports[0]
        port = free_port()
        command = [*prefix, *self.command(port, ports, protocol, directory)]
        return Running(self.name, command, cpus, directory), port

    def write(self, directory, text):
        path = os.path.join(directory, f"{self.name}.conf")
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        return path


def pool(port, ports, protocol, indent=""):
    """A pool in nutcracker's words."""
    servers = "\n".join(f"    - 127.0.0.1:{server}:1" for server in ports)
    text = POOL.format(port=port, redis=str(protocol == "redis").lower(), servers=servers)
    return "".join(f"{indent}{line}\n" for line in ["bench:", *text.splitlines()])


class Nutcracker(Contender):
    """By default at verbosity 4: at its own default of 5 it formats, for every request, a line
    that it then throws away, which doubles its instructions. The comparison is with its best."""

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

    def configuration(self, port, ports, protocol):
        return pool(port, ports, protocol)

    def command(self, port, ports, protocol, directory):
        config = self.write(directory, self.configuration(port, ports, protocol))
        files = os.path.join(directory, self.name)
        stats = ["-a", "127.0.0.1", "-s", str(free_port())]
        quiet = ["-v", str(self.verbosity)] if self.verbosity is not None else []
        files = ["-o", f"{files}.out", "-p", f"{files}.pid"]
        return [self.path(), "-c", config, *stats, *files, *quiet]


class Cashew(Nutcracker):
    """Cashew takes nutcracker's flags and the sectioned dialect of its configuration."""

    def __init__(self, name, program, settings=()):
        super().__init__(name, verbosity=None)
        self.program = os.path.abspath(program)
        self.settings = settings

    def require(self):
        if not os.access(self.program, os.X_OK):
            raise machine.Missing(f"{self.program} is missing; build it: cargo build --release")

    def configuration(self, port, ports, protocol):
        settings = ["worker_processes: 1", *self.settings]
        lines = "".join(f"  {line}\n" for line in settings)
        return f"global:\n{lines}pools:\n{pool(port, ports, protocol, '  ')}"


class Haproxy(Contender):
    """TCP mode: each client connection goes to one server, whatever its keys."""

    def require(self):
        machine.tool("haproxy")

    def version(self):
        return machine.first_line(machine.tool("haproxy"), "-v")

    def command(self, port, ports, protocol, directory):
        servers = "\n".join(f"  server s{port} 127.0.0.1:{port}" for port in ports)
        # Two descriptors a connection, and haproxy refuses to start when they cannot all be had.
        most = min(15_000, resource.getrlimit(resource.RLIMIT_NOFILE)[1] // 2 - 100)
        config = self.write(directory, HAPROXY.format(port=port, servers=servers, most=most))
        return [machine.tool("haproxy"), "-db", "-f", config]


class Floor(Contender):
    """The least a RESP proxy can do; see its source."""

    def __init__(self, name, source, target, engine="epoll", window=0):
        super().__init__(name)
        self.source, self.binary = source, os.path.join(target, "floor")
        self.engine, self.window = engine, window

    def require(self):
        if not os.path.exists(self.source):
            raise machine.Missing(f"the floor's source {self.source} is missing (--floor FILE)")
        built = os.path.exists(self.binary)
        if built and os.path.getmtime(self.binary) >= os.path.getmtime(self.source):
            return
        os.makedirs(os.path.dirname(self.binary), exist_ok=True)
        command = [machine.tool("gcc"), "-O2", "-w", "-o", self.binary, self.source, "-luring"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            hint = "on Debian: apt-get install liburing-dev"
            raise machine.Missing(f"the floor does not compile ({hint}):\n{done.stderr.strip()}")

    def supports(self, scenario):
        # It finds the key of a request and the end of a simple reply, and knows only RESP.
        return scenario.protocol == "redis" and not scenario.mget

    def version(self):
        return f"{machine.first_line(machine.tool('gcc'), '--version')}, -O2, {self.engine}"

    def command(self, port, ports, protocol, directory):
        window = ["env", f"FLOOR_W={self.window}"] if self.window else []
        return [*window, self.binary, self.engine, str(port), *map(str, ports)]


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

    def command(self, port, ports, protocol, directory):
        config = self.write(directory, pool(port, ports, protocol))
        servers = " ".join(map(str, ports))
        text = self.template.format(port=port, servers=servers, config=shlex.quote(config))
        return shlex.split(text)


DEFAULT = ["cashew", "nutcracker", "haproxy", "floor", "direct"]


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
        Nutcracker("nutcracker"),
        Nutcracker("nutcracker-v5", verbosity=5),
        Haproxy("haproxy"),
        Floor("floor", floor, target),
        Floor("floor-uring", floor, target, engine="uring"),
        Floor("floor-w50", floor, target, window=50),
        Floor("floor-w200", floor, target, window=200),
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
    """The contenders of this run. One that was asked for must be there, others are skipped."""
    table, added = known(options, target)
    if options.contenders:
        unknown = [name for name in options.contenders if name not in table]
        if unknown:
            raise machine.Missing(
                f"unknown contender {', '.join(unknown)}; known: {', '.join(table)}"
            )
    chosen = []
    for name in options.contenders or default + added:
        try:
            table[name].require()
            chosen.append(table[name])
        except machine.Missing as missing:
            if options.contenders or name in added:
                raise
            say(f"without {name}: {missing}")
    return chosen
