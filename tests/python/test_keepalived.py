"""Two gateways that share an address by keepalived, as contrib/keepalived.conf says, in a network of their own: how long
clients that keep asking are without an answer when one dies, and that nothing moves for another reason."""

import collections
import contextlib
import errno
import selectors
import shutil
import signal
import socket
import subprocess
import time

import pytest

from conftest import Place
from harness import CASHEW, HOST, ROOT, in_time, measured, wait_until
from network import Switch, needs_namespaces

SHARED = "10.0.0.10"
GATEWAYS = {"gateway-1": "10.0.0.11", "gateway-2": "10.0.0.12"}
SERVERS = "10.0.0.1"
PORT = 6379
QUESTION = b"*2\r\n$3\r\nGET\r\n$1\r\nk\r\n"
ANSWER = b"$5\r\nvalue\r\n"
#: A client asks so often, in seconds.
PERIOD = 0.005

pytestmark = [pytest.mark.alone]


class Asker:
    """Asks the shared address every 5 ms, by a connection of its own each time, whether or not the ones before have
    been answered."""

    def __init__(self, host):
        self.stopped = False
        #: When answers came, and when servers could not be reached.
        self.answers, self.errors = [], []
        self.refused = collections.Counter()
        self._done = host.work(self._run)

    def _run(self):
        selector = selectors.DefaultSelector()
        opened = collections.OrderedDict()
        due = time.monotonic()
        while not self.stopped:
            now = time.monotonic()
            if now >= due:
                due = max(due + PERIOD, now)
                conn = socket.socket()
                conn.setblocking(False)
                if conn.connect_ex((SHARED, PORT)) in (0, errno.EINPROGRESS):
                    selector.register(conn, selectors.EVENT_WRITE)
                    opened[conn] = now
                else:
                    self.refused["at once"] += 1
                    conn.close()
            for conn in [conn for conn, since in opened.items() if since < now - 1]:
                self.refused["in time"] += 1
                self._close(selector, opened, conn)
            for key, event in selector.select(max(0, due - time.monotonic())):
                self._serve(selector, opened, key.fileobj, event)
        for conn in list(opened):
            self._close(selector, opened, conn)
        selector.close()

    def _serve(self, selector, opened, conn, event):
        try:
            if event & selectors.EVENT_WRITE:
                conn.send(QUESTION)
                selector.modify(conn, selectors.EVENT_READ)
                return
            answer = conn.recv(200)
        except OSError as error:
            self.refused[errno.errorcode[error.errno]] += 1
        else:
            if answer == ANSWER:
                self.answers.append(time.monotonic())
            elif answer.startswith(b"-"):
                self.errors.append(time.monotonic())
            else:
                self.refused["nothing"] += 1
        self._close(selector, opened, conn)

    @staticmethod
    def _close(selector, opened, conn):
        selector.unregister(conn)
        del opened[conn]
        conn.close()

    def goes_on(self, seconds=5):
        """Waits for some more answers."""
        before = len(self.answers)
        wait_until(lambda: len(self.answers) > before + 20, f"answers come; {dict(self.refused)}", seconds)

    def longest_wait(self, since):
        """The longest time without an answer, in seconds, from then until now."""
        times = [since, *(it for it in list(self.answers) if it > since), time.monotonic()]
        return max(later - sooner for sooner, later in zip(times, times[1:]))

    def close(self):
        self.stopped = True
        self._done.result(10)


class Node:
    """A host with a gateway, what watches it, and keepalived."""

    def __init__(self, place, switch, name, servers):
        self.place, self.name = place, name
        self.host = switch.host(name, f"{GATEWAYS[name]}/24")
        directory = place.directory / name
        directory.mkdir()
        self.file = directory / "cashew.yml"
        self.file.write_text(
            f"global:\n  stats_listen: {HOST}:22222\n  worker_processes: 2\n  control_socket: {directory}/control\n"
            f"pools:\n  main:\n    listen: 0.0.0.0:{PORT}\n    redis: true\n    timeout: 1000\n    servers:\n"
            + "".join(f"      - {SERVERS}:{server.port}:1\n" for server in servers))
        self.state = directory / "state"
        self.start_gateway()
        self.watcher = self.host.start("health", CASHEW, "health", "-c", self.file, "--track", self.state)
        self.keepalived = self._start_keepalived(directory)

    def start_gateway(self):
        self.gateway = self.host.start("cashew", CASHEW, "-c", self.file, ready=self.is_healthy)

    def is_healthy(self):
        return subprocess.run(self.host.command(CASHEW, "health", "-c", self.file), capture_output=True,
                              timeout=10).returncode == 0

    def _start_keepalived(self, directory):
        # As it is shipped, but for paths and the user, who need not exist here.
        text = (ROOT / "contrib/keepalived.conf").read_text()
        for shipped, here in {"/usr/bin/cashew": CASHEW, "/etc/cashew/cashew.yml": self.file,
                              "/run/cashew-health/state": self.state, "script_user cashew": "script_user root"}.items():
            assert shipped in text, shipped
            text = text.replace(shipped, str(here))
        # It wants scripts that root alone can change, and the directory of a test is not so.
        text = text.replace("    enable_script_security\n", "")
        path = directory / "keepalived.conf"
        path.write_text(text)
        path.chmod(0o644)
        pids = [word for option in ("pid", "vrrp_pid", "checkers_pid")
                for word in (f"--{option}", directory / f"{option}")]
        return self.host.start("keepalived", "keepalived", "--dont-fork", "--log-console", "--vrrp", "--config-id",
                               self.name, "--use-file", path, *pids)

    def has_the_address(self):
        return SHARED in self.host.addresses()


class Pair:
    def __init__(self, place):
        self.place = place
        self.switch = Switch(place, f"{SERVERS}/24")
        self.servers = [self._server(10_000 + number) for number in range(2)]
        self.first, self.second = (Node(place, self.switch, name, self.servers) for name in GATEWAYS)
        self.client_host = self.switch.host("client", "10.0.0.100/24")
        self.wait(lambda: len(self.owners()) == 1, "one has the address")
        # The one that came first may have it by chance.
        self.owner, = self.owners()
        self.other = self.second if self.owner is self.first else self.first
        self.asker = place.keep(Asker(self.client_host))
        self.asker.goes_on()

    def wait(self, condition, what, seconds=15):
        try:
            wait_until(condition, what, seconds)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.output()}") from None

    def output(self):
        return "\n".join(f"{node.name}: {node.keepalived.output()}" for node in (self.first, self.second))

    def _server(self, port):
        server = self.switch.start(f"redis-{port}", "redis-server", "--port", port, "--bind", SERVERS, "--save", "",
                                   "--appendonly", "no", "--dir", self.place.directory, "--protected-mode", "no")
        server.port = port
        ask = ["redis-cli", "-h", SERVERS, "-p", str(port), "SET", "k", "value"]
        wait_until(lambda: subprocess.run(self.switch.command(*ask), capture_output=True, timeout=10).stdout == b"OK\n",
                   "a server is there")
        return server

    def owners(self):
        return [node for node in (self.first, self.second) if node.has_the_address()]

    def client_goes_to(self, node):
        return self.client_host.neighbour(SHARED) == node.host.hardware_address()

    def stays(self, seconds):
        """The owner has the address all the time, and nobody else."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            assert self.owners() == [self.owner], self.output()
            time.sleep(0.05)


@pytest.fixture
def pair():
    if not shutil.which("keepalived"):
        pytest.skip("keepalived is not installed (Debian: keepalived)")
    needs_namespaces()
    with contextlib.ExitStack() as stack:
        def make():
            # That of the try before.
            stack.close()
            place = Place()
            stack.enter_context(place.stack)
            return Pair(place)

        yield make


def taken_over(pair, since, limit, what):
    """Waits until the other one answers; clients had to wait less than so many seconds."""
    pair.wait(lambda: pair.owners() == [pair.other], what)
    pair.asker.goes_on()
    waited = pair.asker.longest_wait(since)
    print(f"{what}: {waited * 1000:.0f} ms without an answer")
    in_time(waited, limit, what)
    assert pair.client_goes_to(pair.other)


@measured
def test_a_gateway_is_killed_and_the_other_one_has_its_address(pair):
    pair = pair()
    since = time.monotonic()
    pair.owner.gateway.signal(signal.SIGKILL)
    taken_over(pair, since, 0.9, "after kill -9")
    # It comes back, and takes nothing away: clients would be moved a second time.
    pair.owner.start_gateway()
    wait_until(lambda: pair.owner.state.read_text() == "0\n", "it is known to serve again")
    back, pair.owner, pair.other = pair.owner, pair.other, pair.owner
    again = time.monotonic()
    pair.stays(1)
    in_time(pair.asker.longest_wait(again), 0.3, "while the former one comes back")
    # And stands by.
    since = time.monotonic()
    pair.owner.gateway.signal(signal.SIGKILL)
    taken_over(pair, since, 0.9, "after the second kill -9")
    assert pair.owners() == [back]


@measured
def test_a_cable_is_pulled(pair):
    pair = pair()
    since = time.monotonic()
    pair.switch.unplug(pair.owner.name)
    taken_over(pair, since, 0.5, "after the loss of the link")
    pair.switch.plug(pair.owner.name)
    pair.owner, pair.other = pair.other, pair.owner
    pair.stays(1)


@measured
def test_nothing_moves_because_servers_are_down(pair):
    pair = pair()
    for server in pair.servers:
        server.kill()
    wait_until(lambda: len(pair.asker.errors) > 20, "clients get errors from the gateway")
    # Longer than any check of keepalived's takes, in every place.
    pair.stays(5)
    assert [node.state.read_text() for node in (pair.owner, pair.other)] == ["0\n", "0\n"]
    assert pair.asker.errors[-1] > time.monotonic() - 1


@pytest.mark.long
@measured
def test_a_drained_gateway_hands_its_address_over_at_the_end(pair):
    pair = pair()
    since = time.monotonic()
    draining = pair.owner.host.start("drain", CASHEW, "drain", "--delay", "2", "-c", pair.owner.file)
    wait_until(lambda: not draining.running(), "it accepts no more", 15)
    drained = time.monotonic()
    assert drained - since > 1.9
    # Until then it served: whoever was connected had that long to leave.
    before = [it for it in pair.asker.answers if since < it < drained]
    assert before[-1] > since + 1.8
    taken_over(pair, since, 0.9, "after a drain")


@pytest.mark.long
@measured
def test_gateways_that_lost_sight_of_each_other_agree_again(pair):
    """Both have the address while neither hears the other; then one lets go, and neighbours know whom it is left to."""
    pair = pair()
    pair.switch.isolate(GATEWAYS, True)
    pair.wait(lambda: len(pair.owners()) == 2, "both have it")
    pair.asker.goes_on()
    pair.switch.isolate(GATEWAYS, False)
    healed = time.monotonic()

    def is_agreed():
        owners = pair.owners()
        return len(owners) == 1 and pair.client_goes_to(owners[0])

    pair.wait(is_agreed, "one has it, and its neighbours know")
    took = time.monotonic() - healed
    print(f"A10.3: one owner that its neighbours know {took * 1000:.0f} ms after they hear each other")
    in_time(took, 1, "until one has it, and its neighbours know")
    # It is the one with the higher priority.
    assert pair.owners() == [pair.first]
    pair.owner, pair.other = pair.first, pair.second
    pair.stays(2)
    pair.asker.goes_on()


@pytest.mark.long
@measured
def test_a_check_of_its_own_stands_by_when_nobody_keeps_the_file(pair):
    """What keeps the file has died, so that it says 0 for ever."""
    pair = pair()
    for node in (pair.first, pair.second):
        node.watcher.kill()
    pair.owner.gateway.signal(signal.SIGKILL)
    since = time.monotonic()
    taken_over(pair, since, 8, "without what asks often")
