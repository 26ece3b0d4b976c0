"""Servers that say when they go, as Redis Software does: the gateway follows, and loses no request.

No server of the distribution says so. In front of a real one stands what answers CLIENT MAINT_NOTIFICATIONS itself and
sends the frames that redis-py and go-redis read, as their tests have them.
"""

import contextlib
import json
import os
import re
import select
import signal
import socket
import ssl
import threading
import time

import pytest

from certificates import Authority
from discovery import status as status_of
from harness import HOST, ReplyError, children, free_port, resp, wait_until
from load import Load, fill
from test_drain import frame
from test_stats import metrics

OK = b"+OK\r\n"


def moving(seq, seconds, to=None, simple=False):
    """As servers send it; redis-py's tests have simple strings."""
    name = b"+MOVING\r\n" if simple else b"$6\r\nMOVING\r\n"
    text = b"_\r\n" if to is None else b"$%d\r\n%s\r\n" % (len(to), to.encode())
    return b">4\r\n" + name + b":%d\r\n:%d\r\n" % (seq, seconds) + text


def operation(name, seq, seconds=None):
    count, time_left = (3, b"") if seconds is None else (4, b":%d\r\n" % seconds)
    return (b">%d\r\n$%d\r\n%s\r\n:%d\r\n%s*1\r\n$1\r\n3\r\n"
            % (count, len(name), name.encode(), seq, time_left))


class Telling:
    """A server's address, behind which is a real server. Connections that have asked are told."""

    def __init__(self, server, port=None):
        self.server = server
        self.port = port or free_port()
        self.asked, self.told, self.delay = [], [], 0.0
        self.accepted, self.open = 0, 0
        self.lock, self.is_over = threading.Lock(), threading.Event()
        self.listener = socket.create_server((HOST, self.port))
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            try:
                near, _ = self.listener.accept()
            except OSError:
                return
            try:
                far = socket.create_connection((HOST, self.server.port))
            except OSError:
                near.close()
                continue
            near.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self.lock:
                self.accepted += 1
                self.open += 1
            for serve in (self._requests, self._replies):
                threading.Thread(target=serve, args=(near, far), daemon=True).start()

    def _requests(self, near, far):
        try:
            while data := near.recv(1 << 16):
                # It comes alone: it is asked when all else is answered.
                if b"MAINT_NOTIFICATIONS" in data:
                    self.asked.append(data)
                    near.sendall(OK)
                    self.told.append(near)
                else:
                    far.sendall(data)
        except OSError:
            pass
        finally:
            with self.lock:
                self.open -= 1
            if near in self.told:
                self.told.remove(near)
            for sock in (near, far):
                try:
                    sock.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass

    def _replies(self, near, far):
        try:
            while data := far.recv(1 << 16):
                time.sleep(self.delay)
                near.sendall(data)
        except OSError:
            pass
        finally:
            near.close()
            far.close()

    def tell(self, frame):
        """Whoever wants to know. What was told before may have ended the connection, unseen so far: then the next one."""
        def told():
            heard = 0
            for near in list(self.told):
                with contextlib.suppress(OSError):
                    near.sendall(frame)
                    heard += 1
            return heard

        wait_until(told, "somebody hears it")

    def close(self):
        """No connection is accepted any more; those that stand go on."""
        try:
            self.listener.shutdown(socket.SHUT_RDWR)
        except OSError:
            # It was closed before.
            return
        self.listener.close()


class Secured:
    """TLS in front of a `Telling`. One thread for each connection: Python's TLS is not for two."""

    def __init__(self, telling, pair):
        self.telling = telling
        self.port = free_port()
        self.refused = 0
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.load_cert_chain(pair.certificate, pair.key)
        self.listener = socket.create_server((HOST, self.port))
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            try:
                near, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self._pass_on, args=(near,), daemon=True).start()

    def _pass_on(self, bare):
        bare.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            near = self.context.wrap_socket(bare, server_side=True)
        except OSError:
            self.refused += 1
            bare.close()
            return
        try:
            with near, socket.create_connection((HOST, self.telling.port)) as far:
                while True:
                    ready = [near] if near.pending() else select.select([near, far], [], [])[0]
                    for source, target in ((near, far), (far, near)):
                        if source in ready:
                            data = source.recv(1 << 16)
                            if not data:
                                return
                            target.sendall(data)
        except OSError:
            pass

    def close(self):
        self.listener.close()


def start(place, *servers, host=HOST, settings=None, **options):
    lines = [f"{host}:{it.port}:1 s{n}" for n, it in enumerate(servers)]
    pool = {"redis": True, "server_maintenance": "true", "servers": lines, **options}
    gateway = place.cashew({"alpha": pool}, {"worker_processes": 2, **(settings or {})})
    gateway.wait_serving()
    return gateway


def status(gateway, server="s0"):
    servers = status_of(gateway)["pools"][0]["server_maintenance"]
    return next(it for it in servers if it["server"] == server)


def wait_at(gateway, address, moved_from=None):
    """It is said a moment after it is so."""
    def place():
        it = status(gateway)
        return it["address"], it["moved_from"]
    wait_until(lambda: place() == (address, moved_from), f"it is told to be at {address}, from {moved_from}")


def wait_told(gateway, server="s0"):
    wait_until(lambda: status(gateway, server)["state"] == "tells", "it is asked to tell")


def events(gateway, kind):
    lines = gateway.order("events", "--json", "--kind", kind).stdout.splitlines()
    return [json.loads(line)["message"] for line in lines]


@pytest.fixture
def server(place):
    server = place.redis()
    fill(server)
    return server


@pytest.fixture
def old(place, server):
    return place.keep(Telling(server))


@pytest.fixture
def new(place, server):
    return place.keep(Telling(server))


def test_servers_are_asked_once_each_and_say_what_they_do(place, old):
    gateway = start(place, old)
    wait_told(gateway)
    words = ["CLIENT", "MAINT_NOTIFICATIONS", "ON", "moving-endpoint-type", "internal-ip"]
    assert old.asked == [resp(*words)], "one connection, however many workers there are"
    for frame, text in [
        (operation("MIGRATING", 1, 5), "MIGRATING 1: replies may take longer, 5 s from now"),
        (operation("MIGRATED", 2), "MIGRATED 2: it is over"),
        (operation("FAILING_OVER", 3, 5), "FAILING_OVER 3: replies may take longer, 5 s from now"),
        (operation("FAILED_OVER", 4), "FAILED_OVER 4: it is over"),
        (b">2\r\n$9\r\nSMIGRATED\r\n:5\r\n", "SMIGRATED, which means nothing here"),
        (b">2\r\n+MOVING\r\n:6\r\n", "MOVING in a form that is not understood"),
    ]:
        old.tell(frame)
        wait_until(lambda text=text: status(gateway)["last"] == text, text)
        is_relaxed = "longer" in text
        assert status(gateway)["is_relaxed"] is is_relaxed
        numbers = metrics(gateway)
        key = (("pool", "alpha"), ("server", "s0"))
        assert numbers[("cashew_server_maintenance_relaxed", *key)] == is_relaxed
        assert numbers[("cashew_server_maintenance_tells", *key)] == 1
    assert metrics(gateway)[("cashew_server_maintenance_notices_total", *key)] == 6
    assert any("FAILED_OVER 4" in it for it in events(gateway, "server_maintenance"))
    assert "tells" in gateway.order("status").stdout
    told = gateway.stats()["cashew"]["server_maintenance"][0]
    assert (told["server"], told["tells"], told["notices"]) == ("s0", 1, 6)


@pytest.mark.parametrize("simple", [False, True], ids=["bulk", "simple"])
def test_a_server_that_moves_is_followed_and_no_request_is_lost(place, server, old, new, simple):
    other = place.keep(Telling(place.redis()))
    fill(other.server)
    state = place.directory / "state"
    gateway = start(place, old, other, settings={"discovery_state": str(state)})
    wait_told(gateway)
    wait_told(gateway, "s1")
    with Load(gateway.address) as load:
        load.turn()
        old.tell(moving(1, 10, f"{HOST}:{new.port}", simple))
        wait_until(lambda: new.told and old.open == 0, "all connections are at the new address")
        old.close()
        load.turn()
        assert load.failures == []
        wait_at(gateway, f"{HOST}:{new.port}", f"{HOST}:{old.port}")
        # A reload of the same file takes it nowhere.
        assert "nothing changes" in gateway.reload()
        # It moves on, and back.
        third = place.keep(Telling(server))
        new.tell(moving(2, 10, f"{HOST}:{third.port}"))
        wait_until(lambda: third.told and new.open == 0, "it is followed again")
        load.turn()
    assert any("from now on" in it for it in events(gateway, "server_relocated"))
    accepted = other.accepted
    assert gateway.call("SET", "a", "1") == "OK"
    # After a start it is where it was: nobody says so again.
    gateway.stop()
    gateway.process.start()
    gateway.wait_serving()
    assert gateway.call("GET", "a") == b"1"
    wait_told(gateway)
    assert status(gateway)["address"] == f"{HOST}:{third.port}"
    assert other.accepted > accepted


def test_a_move_outlives_an_upgrade_and_the_death_of_discovery(place, old, new):
    gateway = start(place, old)
    wait_told(gateway)
    with Load(gateway.address) as load:
        old.tell(moving(1, 10, f"{HOST}:{new.port}"))
        wait_until(lambda: new.told and old.open == 0, "it is followed")
        done = gateway.order("upgrade", seconds=60)
        assert done.returncode == 0, done
        wait_told(gateway)
        wait_at(gateway, f"{HOST}:{new.port}", f"{HOST}:{old.port}")
        discovery = next(pid for pid in children(gateway.pid) if is_discovery(pid))
        os.kill(discovery, signal.SIGKILL)
        wait_until(lambda: "discovery (process %d) was killed" % discovery in gateway.log(), "it is known")
        wait_told(gateway)
        # It hears the next one, and goes back.
        new.tell(moving(2, 10, f"{HOST}:{old.port}"))
        wait_until(lambda: old.told and new.open == 0, "it is followed again")
        load.turn()
    wait_at(gateway, f"{HOST}:{old.port}")


def is_discovery(pid):
    with open(f"/proc/{pid}/cmdline") as command, open(f"/proc/{pid}/comm") as name:
        return "discover" in command.read() + name.read()


def test_what_takes_long_or_waits_goes_on_at_the_new_address(place, old, new):
    gateway = start(place, old)
    wait_told(gateway)
    with (gateway.connect() as slow, gateway.connect() as waiting, gateway.connect() as hearing,
          gateway.connect() as other, gateway.connect() as watching):
        waiting.send(resp("BLPOP", "list", "0"))
        assert hearing.call("SUBSCRIBE", "news") == [b"subscribe", b"news", 1]
        assert watching.call("WATCH", "w") == "OK"
        assert slow.call("SET", "a", "1") == "OK"
        old.delay = 1.5
        slow.send(resp("GET", "a"))
        time.sleep(0.2)
        old.tell(moving(1, 10, f"{HOST}:{new.port}"))
        assert slow.reply() == b"1"
        old.delay = 0.0
        wait_until(lambda: new.told and old.open == 0, "it is followed")
        assert other.call("RPUSH", "list", "x") == 1
        assert waiting.reply() == [b"list", b"x"]
        other.call("PUBLISH", "news", "hello")
        assert hearing.reply() == [b"message", b"news", b"hello"]
        assert watching.call("MULTI") == "OK" and watching.call("GET", "a") == "QUEUED"
        # What was watched there may have changed meanwhile.
        assert watching.call("EXEC") is None


def test_an_address_that_nobody_answers_at_is_not_gone_to_before(place, server, old):
    gateway = start(place, old)
    wait_told(gateway)
    port = free_port()
    with Load(gateway.address) as load:
        old.tell(moving(1, 2, f"{HOST}:{port}"))
        time.sleep(2.5)
        load.turn()
        assert status(gateway)["address"] == f"{HOST}:{old.port}"
        late = place.keep(Telling(server, port))
        wait_until(lambda: late.told and old.open == 0, "it is followed when it is there")
        load.turn()


def test_a_server_that_names_no_address_is_connected_anew_half_its_time_later(place, old):
    gateway = start(place, old)
    wait_told(gateway)
    with Load(gateway.address) as load:
        load.turn()
        before, begun = old.accepted, time.monotonic()
        old.tell(moving(1, 4))
        wait_until(lambda: old.accepted > before, "connections are made anew")
        assert 1.8 < time.monotonic() - begun < 4
        wait_told(gateway)
        load.turn()
    assert status(gateway)["moved_from"] is None


def test_a_server_by_name_is_connected_anew_to_where_that_leads(place, old):
    gateway = start(place, old, host="localhost")
    wait_told(gateway)
    with Load(gateway.address) as load:
        before = old.accepted
        # The name leads to the same address all the time: it is given a second less than said to change.
        old.tell(moving(1, 3))
        wait_until(lambda: old.accepted > before, "connections are made anew")
        load.turn()


def test_clients_that_ask_are_told_to_wait_longer_too(place, old):
    gateway = start(place, old)
    wait_told(gateway)
    with gateway.connect() as conn:
        conn.send(resp("HELLO", "3"))
        conn.raw_reply()
        assert conn.call("CLIENT", "MAINT_NOTIFICATIONS", "ON") == "OK"
        old.tell(operation("MIGRATING", 1, 5))
        begun = re.fullmatch(rb">4\r\n\$12\r\nFAILING_OVER\r\n:(\d+)\r\n:10\r\n\$2\r\ns0\r\n", frame(conn, 4))
        old.tell(operation("MIGRATED", 2))
        ended = re.fullmatch(rb">3\r\n\$11\r\nFAILED_OVER\r\n:(\d+)\r\n\$2\r\ns0\r\n", frame(conn, 3))
        assert int(begun[1]) < int(ended[1])
        assert conn.call("PING") == "PONG"


def test_timeouts_are_longer_while_a_server_says_so(place, old):
    gateway = start(place, old, timeout=400)
    wait_told(gateway)
    with gateway.connect() as conn:
        assert conn.call("SET", "a", "1") == "OK"

        def slow():
            old.delay = 1.5
            try:
                return conn.call("GET", "a")
            except ReplyError as error:
                return str(error)
            finally:
                old.delay = 0.0

        assert "timed out" in slow()
        wait_until(lambda: conn.call("GET", "a") == b"1", "it answers again")
        old.tell(operation("MIGRATING", 1, 5))
        wait_until(lambda: status(gateway)["is_relaxed"], "it is known")
        assert slow() == b"1"
        old.tell(operation("MIGRATED", 2))
        wait_until(lambda: not status(gateway)["is_relaxed"], "it is over")
        assert "timed out" in slow()


def test_a_server_that_does_not_know_it_is_served_all_the_same(place, server):
    gateway = start(place, server)
    wait_until(lambda: "unknown subcommand" in status(gateway)["state"].lower(), "it is told")
    assert gateway.call("SET", "a", "1") == "OK"
    assert len(events(gateway, "server_maintenance")) == 1


def test_nobody_is_asked_unless_it_is_wanted(place, old):
    gateway = start(place, old, server_maintenance="false")
    assert gateway.call("SET", "a", "1") == "OK"
    time.sleep(0.5)
    assert old.asked == [] and status_of(gateway)["pools"][0]["server_maintenance"] == []
    # It can be switched on and off.
    gateway.pools["alpha"]["server_maintenance"] = "external-fqdn"
    gateway.write_config()
    gateway.reload()
    wait_told(gateway)
    assert old.asked[0].endswith(b"$13\r\nexternal-fqdn\r\n")
    gateway.pools["alpha"]["server_maintenance"] = "false"
    gateway.write_config()
    gateway.reload()
    wait_until(lambda: not old.told, "nobody wants to know any more")


def test_a_server_with_a_password_tells_as_well(place):
    server = place.redis("--requirepass", "secret")
    old, new = place.keep(Telling(server)), place.keep(Telling(server))
    gateway = start(place, old, server_auth="secret")
    wait_told(gateway)
    old.tell(moving(1, 10, f"{HOST}:{new.port}"))
    wait_until(lambda: new.told and old.open == 0, "it is followed")
    assert gateway.call("SET", "a", "1") == "OK"


def test_what_a_hostile_server_tells_does_no_harm(place, old):
    gateway = start(place, old)
    wait_told(gateway)
    frames = [
        b">1\r\n:1\r\n",
        b">0\r\n",
        b">4\r\n+MOVING\r\n:1\r\n:5\r\n$1\r\n:\r\n",
        moving(1, 10**9, "256.0.0.1:99999"),
        b"+PONG\r\n" * 3,
        operation("MIGRATING", 2**63, 2**62),
        b">100000\r\n" + b"+x\r\n" * 40_000,
        b"garbage\r\n",
    ]
    for frame in frames:
        old.tell(frame)
        assert gateway.call("SET", "a", "1") == "OK"
    wait_told(gateway)
    log = gateway.log()
    assert "panick" not in log and "died" not in log


@pytest.fixture
def authority(place):
    return Authority(place.directory)


@pytest.fixture
def pair(authority):
    """For the name alone, as names are what is asked for with TLS."""
    return authority.sign("DNS:localhost")


def start_secured(place, authority, *servers, **options):
    return start(place, *servers, host="localhost", server_tls=f"{{ca: {authority.ca}}}", **options)


def test_a_server_tells_over_tls_and_is_followed_by_its_name(place, authority, pair, old, new):
    first, second = place.keep(Secured(old, pair)), place.keep(Secured(new, pair))
    gateway = start_secured(place, authority, first)
    wait_told(gateway)
    assert old.asked == [resp("CLIENT", "MAINT_NOTIFICATIONS", "ON", "moving-endpoint-type", "internal-fqdn")]
    with Load(gateway.address) as load:
        load.turn()
        old.tell(operation("MIGRATING", 1, 5))
        wait_until(lambda: status(gateway)["is_relaxed"], "it is known")
        old.tell(operation("MIGRATED", 2))
        wait_until(lambda: not status(gateway)["is_relaxed"], "it is over")
        old.tell(moving(3, 10, f"localhost:{second.port}"))
        wait_until(lambda: new.told and old.open == 0, "all connections are at the new address")
        load.turn()
        wait_at(gateway, f"localhost:{second.port}", f"localhost:{first.port}")
        # Another one tells there: it goes back.
        new.tell(moving(4, 10, f"localhost:{first.port}"))
        wait_until(lambda: old.told and new.open == 0, "it is followed again")
        load.turn()
    wait_at(gateway, f"localhost:{first.port}")
    assert gateway.stats()["alpha"]["s0"]["tls_failures"] == 0


@pytest.mark.parametrize("what", ["untrusted", "address", "plain"])
def test_an_address_that_is_not_to_be_trusted_is_not_gone_to(place, authority, pair, old, new, what):
    first = place.keep(Secured(old, pair))
    directory = place.directory / "stranger"
    directory.mkdir()
    stranger = Authority(directory).sign("DNS:localhost")
    second = new if what == "plain" else place.keep(Secured(new, stranger if what == "untrusted" else pair))
    # The certificate is for the name.
    host = HOST if what == "address" else "localhost"
    gateway = start_secured(place, authority, first)
    wait_told(gateway)
    with Load(gateway.address) as load:
        old.tell(moving(1, 2, f"{host}:{second.port}"))
        was_tried = (lambda: new.accepted) if what == "plain" else (lambda: second.refused)
        wait_until(was_tried, "the new address is tried")
        time.sleep(2.5)
        load.turn()
        it = status(gateway)
        assert (it["address"], it["moved_from"]) == (f"localhost:{first.port}", None)
        assert new.asked == [] and new.told == []
