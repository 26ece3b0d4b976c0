"""Groups of memcached: servers that are copies of each other, since the gateway writes to all."""

import base64
import random
import re
import signal
import struct
import threading
import time

import pytest

import test_memcached_binary as binary
import test_memcached_meta as meta
import test_memcached_raw as raw
from harness import HOST, Talker, cut, server_lines, wait_until

KEYS = [b"%d:key" % n for n in range(60)]


def group(name, primary, *replicas, weight=1):
    replicas = ", ".join(f"{HOST}:{replica.port}" for replica in replicas)
    return (f"{{name: {name}, weight: {weight}, primary: {HOST}:{primary.port}, "
            f"replicas: [{replicas}]}}")


def items(server):
    """What a server has: by key, its flags and value."""
    with server.connect() as conn:
        conn.send(b"lru_crawler metadump all\r\n")
        lines = conn.read_until(b"END\r\n").split(b"\n")
        keys = sorted(re.search(rb"key=(\S+)", line)[1] for line in lines if b"key=" in line)
        found = {}
        for key in keys:
            text = bytearray()
            for part in re.split(rb"(%[0-9A-F]{2})", key):
                text += bytes([int(part[1:], 16)]) if part[:1] == b"%" else part
            conn.send(b"mg %b b v f\r\nmn\r\n" % base64.b64encode(text))
            item = conn.read_until(b"MN\r\n")
            # What has expired since is not there. Who is to refresh a stale item each server says once.
            if not item.startswith(b"EN"):
                found[bytes(text)] = re.sub(rb" [WZX]", b"", item.split(b"\r\n")[0]), item
        # Whether memcached pads a number that has become shorter is up to other replies.
        return {key: re.sub(rb"VA \d+", b"VA", head) + b" " + item.split(b"\r\n", 1)[1].replace(b" \r", b"\r")
                for key, (head, item) in found.items()}


class Stack:
    """A group of two and one of three with the gateway in front, and one more server to compare with."""

    def __init__(self, place, **options):
        servers = [place.memcached() for _ in range(5)]
        self.groups = [servers[:2], servers[2:]]
        self.servers = servers
        self.plain = place.memcached()
        groups = [group("s1", *self.groups[0]), group("s2", *self.groups[1])]
        options = {"hash": "murmur", "command_policy": "admin", "servers": groups, **options}
        self.gateway = place.cashew({"beta": options}, {"worker_processes": 2})

    def reset(self):
        for server in (*self.servers, self.plain):
            server.reset()

    def invalidated(self):
        """How many keys copies have been told to forget, all of them together."""
        return sum(numbers.get("invalidated", 0) for numbers in self.gateway.stats()["beta"].values()
                   if isinstance(numbers, dict))

    def check_copies(self):
        """The servers of each group have the same, but for what copies were told to forget, as writes to it
        were under way at once. Nobody waits for a touch."""
        for copies in self.groups:
            last = []

            def are_alike(copies=copies, last=last):
                last[:] = map(items, copies)
                leader, *others = ({*it.items()} for it in last)
                missed = sum(len(leader - it) for it in others)
                return all(it <= leader for it in others) and (missed == 0 or missed <= self.invalidated())

            try:
                wait_until(are_alike, "all copies are the same", seconds=10)
            except AssertionError:
                differing = set.union(*({*it.items()} for it in last)) - set.intersection(
                    *({*it.items()} for it in last))
                raise AssertionError(f"copies differ: {sorted(differing)[:20]}") from None


@pytest.mark.parametrize("form", [raw, meta, binary], ids=lambda form: form.__name__[15:])
def test_a_group_answers_as_one_memcached_does(stack, form):
    """Byte for byte, the whole catalogue of odd requests; and then all copies are the same."""
    for name, data in form.CASES.items():
        for kind in ("whole", "random"):
            stack.reset()
            expected = form.answer(stack.plain.port, data)
            given = form.answer(stack.gateway.address, data, cut(kind, len(data)))
            assert given == expected, (name, kind)
            try:
                stack.check_copies()
            except AssertionError as error:
                raise AssertionError(f"{name}, {kind}: {error}") from None


def test_long_streams_of_everything_are_answered_as_by_one_memcached(stack):
    raw.test_pipeline_of_everything_in_pieces(stack)
    stack.check_copies()
    meta.test_random_streams(stack)
    stack.check_copies()
    binary.test_random_streams(stack)
    stack.check_copies()


def commands(server, name):
    with server.connect() as conn:
        return int(meta.stats(conn)[name])


def missed(gateway, pool="alpha"):
    """By server: how many writes it did not get."""
    servers = gateway.stats()[pool]
    return {name: numbers["writes_missed"] for name, numbers in servers.items()
            if isinstance(numbers, dict) and "writes_missed" in numbers}


def held(server):
    """Which of the keys a server has. A dump may leave out what is being moved."""
    with server.connect() as conn:
        return [key for key in KEYS if got(conn, key) is not None]


def three(place):
    return [place.memcached() for _ in range(3)]


def one_group(place, servers, settings=None, **options):
    return place.cashew({"alpha": {"servers": [group("s1", *servers)], **options}},
                        {"worker_processes": 1, **(settings or {})})


def put(conn, key, value):
    conn.send(b"set %b 0 0 %d\r\n%b\r\n" % (key, len(value), value))
    conn.expect(b"STORED\r\n")


def got(conn, key):
    conn.send(b"get %b\r\n" % key)
    said = conn.read_until(b"END\r\n")
    return said.split(b"\r\n")[1] if said != b"END\r\n" else None


@pytest.mark.parametrize("distribution", ["ketama", "modula"])
def test_lines_become_groups_and_no_key_moves_and_no_request_fails(place, distribution):
    lines = three(place)
    copies = three(place)
    texts = server_lines(lines, names=["s0", "s1", "s2"], weights=[1, 2, 1])
    options = {"distribution": distribution}
    gateway = place.cashew({"alpha": {"servers": texts, **options}}, {"worker_processes": 2})
    with gateway.connect() as conn:
        for key in KEYS:
            put(conn, key, b"old")
        before = [held(server) for server in lines]
        assert all(before)
        with Reader(gateway, KEYS, b"old") as reader:
            for servers in (
                [texts[0], group("s1", lines[1], *copies[:2], weight=2), texts[2]],
                [texts[0], group("s1", lines[1], copies[1], weight=2), group("s2", lines[2], copies[2])],
                texts,
            ):
                gateway.configure({"alpha": {"servers": servers, **options}})
                told = gateway.reload()
                assert "keys go to another server" not in told, told
                reader.go_on()
                for key in KEYS:
                    assert got(conn, key) == b"old"
                    put(conn, key, b"old")
        assert reader.bad == []
    assert [held(server) for server in lines] == before
    # They were copies for a while.
    assert [held(copies[at]) for at in (1, 2)] == before[1:]


class Reader(Talker):
    """Reads keys whose values are known all the time, and keeps whatever else comes back."""

    def __init__(self, gateway, keys, value, misses=False, noise=b""):
        super().__init__(gateway)
        self.keys, self.value, self.misses, self.noise = keys, value, misses, noise
        self.bad, self.foreign = [], []

    def expected(self, key):
        return self.value or b"value of %b" % key

    def run(self):
        with self.gateway.connect() as conn:
            while not self.stopped.is_set():
                key = self.keys[self.count % len(self.keys)]
                conn.send(self.noise + b"mn\r\nget %b\r\n" % key)
                # Of what is quiet, errors are told.
                while (line := conn.read_line()) != b"MN":
                    (self.bad if line.startswith(b"SERVER_ERROR") else self.foreign).append(line)
                line = conn.read_line()
                if line.startswith(b"VALUE"):
                    said = line, conn.read_line(), conn.read_line()
                    value = self.expected(key)
                    if said != (b"VALUE %b 0 %d" % (key, len(value)), value, b"END"):
                        self.foreign.append((key, said))
                elif line.startswith(b"SERVER_ERROR"):
                    self.bad.append(line)
                elif line != b"END":
                    self.foreign.append((key, line))
                elif not self.misses:
                    self.bad.append(b"a miss of " + key)
                self.count += 1


READERS = {
    # Who answers: by the place in the group, the primary first.
    "primary": {0}, "prefer_primary": {0}, "replica": {1, 2}, "prefer_replica": {1, 2},
    "any": {0, 1, 2}, "nearest": {0, 1, 2}, "zone": {2},
}


@pytest.mark.parametrize("reads", READERS)
def test_reads_go_where_the_policy_says_and_what_has_a_unique_to_the_one_that_leads(place, reads):
    servers = three(place)
    text = (f"{{name: s1, primary: {HOST}:{servers[0].port}, replicas: [{HOST}:{servers[1].port}, "
            f"{{address: {HOST}:{servers[2].port}, zone: here}}]}}")
    gateway = place.cashew({"alpha": {"servers": [text], "reads": reads, "zone": "here"}},
                           {"worker_processes": 1})

    def asked():
        return [commands(server, "cmd_get") for server in servers]

    def readers(requests, reply):
        before = asked()
        with gateway.connect() as conn:
            for _ in range(60):
                conn.send(requests)
                conn.read_until(reply)
        return {at for at, (old, new) in enumerate(zip(before, asked())) if old != new}

    with gateway.connect() as conn:
        put(conn, b"a", b"1")
        put(conn, b"b", b"2")
    assert [items(server) for server in servers[1:]] == [items(servers[0])] * 2
    for requests, reply in ((b"get a\r\n", b"END\r\n"), (b"get a b\r\n", b"END\r\n"),
                            (b"mg a v\r\n", b"1\r\n")):
        asked_now = readers(requests, reply)
        # Which of them is nearer is not known.
        assert asked_now and asked_now <= READERS[reads] if reads == "nearest" else asked_now == READERS[reads]
    for requests, reply in ((b"gets a\r\n", b"END\r\n"), (b"gets a b\r\n", b"END\r\n"),
                            (b"mg a c v\r\n", b"1\r\n"), (b"mg a R1\r\n", b"\r\n"),
                            (binary.packet(0x00, b"a"), b"1")):
        assert readers(requests, reply) == {0}, requests


def test_a_condition_is_judged_once_and_the_outcome_is_everywhere(place):
    """Copies that differ agree again, whatever `add`, `replace` and `cas` would have done at each."""
    servers = three(place)
    gateway = one_group(place, servers, command_policy="admin")

    def alone(server, key, value):
        with server.connect() as conn:
            put(conn, key, value)

    def value_at(key):
        found = []
        for server in servers:
            with server.connect() as conn:
                found.append(got(conn, key))
        return found

    with gateway.connect() as conn:
        alone(servers[1], b"a", b"theirs")
        conn.send(b"add a 0 0 4\r\nours\r\n")
        conn.expect(b"STORED\r\n")
        assert value_at(b"a") == [b"ours"] * 3
        alone(servers[0], b"b", b"held")
        conn.send(b"add b 0 0 4 noreply\r\nours\r\nadd b 0 0 4\r\nours\r\n")
        conn.expect(b"NOT_STORED\r\n")
        assert value_at(b"b") == [b"held", None, None]
        conn.send(b"replace b 0 0 4\r\nnew!\r\nms b 3 MA\r\n+++\r\n")
        conn.expect(b"STORED\r\nHD\r\n")
        assert value_at(b"b") == [b"new!+++"] * 3
        conn.send(b"gets a\r\n")
        unique = conn.read_until(b"END\r\n").split(b"\r\n")[0].split(b" ")[4]
        conn.send(b"cas a 0 0 3 %b\r\none\r\ncas a 0 0 3 %b\r\ntwo\r\nget a\r\n" % (unique, unique))
        conn.expect(b"STORED\r\nEXISTS\r\nVALUE a 0 3\r\none\r\nEND\r\n")
        assert value_at(b"a") == [b"one"] * 3
        conn.send(b"mg a c\r\n")
        unique = conn.read_line()[len(b"HD c"):]
        conn.send(b"ms a 3 q C%b\r\ntwo\r\nmd a C%b q\r\nmd a C%b\r\nmn\r\n" % ((unique,) * 3))
        conn.expect(b"EX\r\nEX\r\nMN\r\n")
        assert value_at(b"a") == [b"two"] * 3
        conn.send(b"ms a 3 E5\r\nxxx\r\nget a\r\n")
        conn.expect(b"CLIENT_ERROR ms with E cannot be written to all servers of a group\r\n"
                    b"VALUE a 0 3\r\ntwo\r\nEND\r\n")
    with gateway.connect() as conn:
        conn.send(binary.packet(0x00, b"a"))
        header = conn.read(24)
        conn.read(struct.unpack(">I", header[8:12])[0])
        unique = struct.unpack(">Q", header[16:])[0]
        conn.send(binary.stored(0x11, b"a", b"3", cas=unique) + binary.stored(0x12, b"c", b"4")
                  + binary.stored(0x01, b"a", b"5", cas=unique) + binary.packet(0x14, b"a", cas=unique)
                  + binary.packet(0x0a))
        replies = [(opcode, status) for opcode, status in binary_replies(conn, 3)]
        assert replies == [(0x01, 2), (0x14, 2), (0x0a, 0)]
        assert value_at(b"a") == [b"3"] * 3 and value_at(b"c") == [b"4"] * 3


def binary_replies(conn, count):
    for _ in range(count):
        header = conn.read(24)
        conn.read(struct.unpack(">I", header[8:12])[0])
        yield header[1], struct.unpack(">H", header[6:8])[0]


def test_a_copy_dies_under_load_and_nobody_reads_anything_wrong_and_it_returns(place):
    """Clients in two processes that share connections read from any copy while others write in every way,
    quiet ones too. An error is for what was on its way, once for each connection to the dead one."""
    servers = three(place)
    gateway = place.cashew(
        {"alpha": {"servers": [group("s1", *servers)], "reads": "any", "timeout": 5000}},
        {"worker_processes": 2})
    with gateway.connect() as conn:
        for key in KEYS:
            put(conn, key, b"value of " + key)
    noise = (b"set n 0 0 1 noreply\r\n1\r\nappend n 0 0 1 noreply\r\n2\r\nincr m 1 noreply\r\n"
             b"touch n 100 noreply\r\nmg nothing q v\r\nms o 1 q\r\nx\r\nmd o q\r\n"
             b"delete n noreply\r\n")
    readers = [Reader(gateway, KEYS, None, misses=True, noise=noise * (at % 2)) for at in range(6)]
    for reader in readers:
        reader.start()
    try:
        for reader in readers:
            reader.go_on()
        for victim in (servers[1], servers[0]):
            victim.stop()
            wait_until(lambda: any(missed(gateway).values()), "somebody has noticed")
            for reader in readers:
                reader.go_on(200)
            with gateway.connect() as conn:
                # The first that is left answers for all.
                put(conn, b"while-dead", b"1")
                assert got(conn, b"while-dead") == b"1"
                conn.send(b"gets while\r\ncas while 0 0 1 1\r\nx\r\n")
                conn.expect(b"END\r\nNOT_FOUND\r\n")
            victim.start()
            before = commands(victim, "cmd_get")
            wait_until(lambda: commands(victim, "cmd_get") > before + 20, "it is read from again")
            wait_until(lambda: commands(victim, "cmd_set") > 0, "it is written to again")
            for reader in readers:
                reader.go_on()
    finally:
        for reader in readers:
            reader.stopped.set()
        for reader in readers:
            reader.join()
    assert [it for reader in readers for it in reader.foreign] == []
    for reader in readers:
        # What it read when a server died, one or two retrievals. Writes are done by the others.
        assert len(reader.bad) <= (4 if reader.noise else 2), reader.bad
    assert all(it.startswith(b"SERVER_ERROR") for reader in readers for it in reader.bad)


def test_writes_to_the_first_only(place):
    servers = three(place)
    gateway = one_group(place, servers, writes="first", reads="prefer_primary", server_retry_timeout=100)
    with gateway.connect() as conn:
        put(conn, b"a", b"1")
        assert [bool(items(server)) for server in servers] == [True, False, False]
        assert got(conn, b"a") == b"1"
        servers[0].stop()
        # The others answer reads, and nobody takes writes.
        wait_until(lambda: got_or_error(conn, b"a") is None, "a copy is asked")
        conn.send(b"set a 0 0 1\r\n2\r\ngets a\r\n")
        assert b"SERVER_ERROR" in conn.read_line() and b"SERVER_ERROR" in conn.read_line()
        assert not items(servers[1]) and not items(servers[2])
    assert set(missed(gateway).values()) == {0}


def got_or_error(conn, key):
    conn.send(b"get %b\r\n" % key)
    line = conn.read_line()
    if line.startswith(b"VALUE"):
        conn.read_until(b"END\r\n")
    return None if line == b"END" else line


def test_a_group_is_ejected_when_all_of_it_has_failed(place):
    servers = [place.memcached() for _ in range(4)]
    groups = [group("s1", *servers[:2]), group("s2", *servers[2:])]
    gateway = place.cashew(
        {"alpha": {"servers": groups, "auto_eject_hosts": True, "server_failure_limit": 1,
                   "server_retry_timeout": 500, "timeout": 2000, "hash": "murmur"}}, {"worker_processes": 2})

    def ejected():
        return [numbers["ejected"] for name, numbers in sorted(gateway.stats()["alpha"].items())
                if isinstance(numbers, dict) and "ejected" in numbers]

    with gateway.connect() as conn:
        for key in KEYS:
            put(conn, key, b"old")
        here = held(servers[0])
        assert 0 < len(here) < len(KEYS)
        servers[0].stop()
        wait_until(lambda: (stored(conn, here[0]), sum(ejected()))[1] == 1, "it is ejected")
        # The other has its keys, all of them.
        assert [got(conn, key) for key in KEYS] == [b"1" if key == here[0] else b"old" for key in KEYS]
        assert not set(held(servers[2])) & set(here)
        servers[1].stop()
        wait_until(lambda: (stored(conn, here[0]), sum(ejected()))[1] == 2, "both are ejected")
        wait_until(lambda: stored(conn, here[0]) == b"STORED", "its keys are elsewhere")
        assert here[0] in held(servers[2]) and here[0] in held(servers[3])
        servers[1].start()
        wait_until(lambda: sum(ejected()) == 1, "one is back")
        assert got(conn, here[1]) is None
        assert stored(conn, here[1]) == b"STORED" and here[1] in held(servers[1])


def stored(conn, key):
    conn.send(b"set %b 0 0 1\r\n1\r\n" % key)
    return conn.read_line()


def test_operators_see_groups_and_what_copies_missed(place):
    servers = three(place)
    gateway = one_group(place, servers, hash="murmur")
    names = [f"s1/{HOST}:{server.port}" for server in servers]
    with gateway.connect() as conn:
        put(conn, b"a", b"1")
        assert missed(gateway) == dict.fromkeys(names, 0)
        route = gateway.order("route", "a", "--as-if", f"{names[0]}=down").stdout
        status = gateway.order("status").stdout
        assert names[1] in route and "all of the group" in route, route
        assert all(name in status for name in names), status
        servers[2].stop()
        wait_until(lambda: (put(conn, b"a", b"2"), missed(gateway))[1][names[2]] > 0, "it has missed some")
        assert [missed(gateway)[name] for name in names[:2]] == [0, 0]
        status = wait_until(lambda: re.search(rf"{names[2]}.*missed \d+ write", gateway.order("status").stdout),
                            "the status says so")
        assert status


def test_large_values_go_to_all_and_come_back_whole(place):
    """Larger than what is passed on while it arrives; what follows does not overtake it anywhere."""
    servers = [place.memcached("-I", "8m", "-m", "256") for _ in range(2)]
    gateway = one_group(place, servers, reads="any")
    value = random.Random(3).randbytes(3 << 20)
    with gateway.connect(timeout=60) as conn:
        for turn in range(3):
            data = bytes([turn]) + value
            conn.send(b"set big 0 0 %d noreply\r\n%b\r\n" % (len(data), data) + b"get big\r\n" * 2)
            conn.expect((b"VALUE big 0 %d\r\n%b\r\nEND\r\n" % (len(data), data)) * 2)
        conn.send(b"set big 0 0 9000000\r\n" + b"x" * 9_000_000 + b"\r\n")
        assert conn.read_line().startswith(b"SERVER_ERROR")
        # As a server does, all forget what the client takes to be overwritten.
        conn.send(b"get big\r\n" * 2)
        conn.expect(b"END\r\n" * 2)


class Rival(threading.Thread):
    """Writes keys that others write, too, at the same time, and reads what has become of it."""

    def __init__(self, gateway, number, how, keys):
        super().__init__()
        self.gateway, self.number, self.how, self.keys = gateway, number, how, keys
        self.stopped, self.done, self.won = threading.Event(), 0, 0

    def run(self):
        with self.gateway.connect(timeout=60) as conn:
            while not self.stopped.is_set():
                key = self.keys[self.done % len(self.keys)]
                self.won += self.how(conn, key, b"%d-%d" % (self.number, self.done))
                self.done += 1


def by_cas(conn, key, value):
    conn.send(b"gets %b\r\n" % key)
    said = conn.read_until(b"END\r\n")
    if said == b"END\r\n":
        conn.send(b"add %b 0 0 %d\r\n%b\r\n" % (key, len(value), value))
    else:
        unique = said.split(b"\r\n")[0].split(b" ")[4]
        conn.send(b"cas %b 0 0 %d %b\r\n%b\r\n" % (key, len(value), unique, value))
    return conn.read_line() == b"STORED"


def by_set(conn, key, value):
    put(conn, key, value)
    return True


def by_anything(conn, key, value):
    what = random.randrange(6)
    if what < 2:
        return by_cas(conn, key, value)
    if what == 2:
        conn.send(b"delete %b\r\n" % key)
        conn.read_line()
        return False
    if what == 3:
        conn.send(b"append %b 0 0 1\r\n+\r\n" % key)
        return conn.read_line() == b"STORED"
    if what == 4:
        conn.send(b"ms %b %d q\r\n%b\r\nmn\r\n" % (key, len(value), value))
        conn.expect(b"MN\r\n")
        return True
    return by_set(conn, key, value)


def values_at(servers, keys):
    """By server: what it has of each key."""
    found = []
    for server in servers:
        with server.connect() as conn:
            found.append([got(conn, key) for key in keys])
    return found


def differing(servers, keys):
    """Keys that some copy has otherwise than the first server. That it has not got one is no harm."""
    first, *others = values_at(servers, keys)
    return [(key, mine, theirs) for other in others for key, mine, theirs in zip(keys, first, other)
            if theirs is not None and theirs != mine]


@pytest.mark.parametrize("stops", [False, True], ids=["", "stopped"])
@pytest.mark.parametrize("how", [by_cas, by_set, by_anything], ids=lambda how: how.__name__)
def test_copies_agree_after_clients_of_two_workers_have_written_the_same_keys_at_once(place, how, stops):
    """Also where requests pile up at a copy that stands still for a moment, and reach it in any order."""
    servers = three(place)
    gateway = place.cashew({"alpha": {"servers": [group("s1", *servers)], "timeout": 5000}},
                           {"worker_processes": 2})
    keys = KEYS[:8]
    for _ in range(4):
        rivals = [Rival(gateway, number, how, keys) for number in range(8)]
        for rival in rivals:
            rival.start()
        try:
            for victim in (servers[1], servers[2]):
                if stops:
                    victim.process.signal(signal.SIGSTOP)
                    time.sleep(0.1)
                    victim.process.signal(signal.SIGCONT)
                before = [rival.done for rival in rivals]
                wait_until(lambda: all(it.done > count + 20 for it, count in zip(rivals, before)), "they go on")
        finally:
            for rival in rivals:
                rival.stopped.set()
            for rival in rivals:
                rival.join()
        assert all(rival.won for rival in rivals)
        wait_until(lambda: differing(servers, keys) == [], "copies agree", seconds=15)
    assert set(missed(gateway).values()) == {0}
    # What nobody else writes at the same time is everywhere, when all is over.
    time.sleep(1)
    before = told_to_forget(gateway)
    with gateway.connect() as conn:
        for key in keys:
            put(conn, key, b"last")
    time.sleep(0.5)
    assert values_at(servers, keys) == [[b"last"] * len(keys)] * 3
    assert told_to_forget(gateway) == before


def told_to_forget(gateway):
    return sum(numbers["invalidated"] for numbers in gateway.stats()["alpha"].values()
               if isinstance(numbers, dict) and "invalidated" in numbers)


@pytest.mark.parametrize("victim", [0, 1], ids=["first", "second"])
def test_a_copy_that_was_away_forgets_what_it_has_missed(place, victim):
    """One that stood still still has what it had, and what was on its way there it may yet do, later than what came
    after it."""
    servers = three(place)
    gateway = place.cashew({"alpha": {"servers": [group("s1", *servers)], "timeout": 300, "reads": "any"}},
                           {"worker_processes": 2})
    rivals = [Rival(gateway, number, by_set, KEYS[:20]) for number in range(4)]
    with gateway.connect() as conn:
        for key in KEYS:
            put(conn, key, b"old")
        for rival in rivals:
            rival.start()
        try:
            servers[victim].process.signal(signal.SIGSTOP)
            wait_until(lambda: sum(missed(gateway).values()) > 20, "it misses writes")
            for key in KEYS[20:]:
                put(conn, key, b"new")
            conn.send(b"delete %b\r\n" % KEYS[-1])
            conn.expect(b"DELETED\r\n")
        finally:
            for rival in rivals:
                rival.stopped.set()
            for rival in rivals:
                rival.join()
            servers[victim].process.signal(signal.SIGCONT)
        rest = [server for server in servers if server is not servers[victim]]
        wait_until(lambda: differing([*rest, servers[victim]], KEYS) == [], "they agree", seconds=15)
        assert KEYS[-1] not in held(servers[victim])
        assert values_at(rest, KEYS[20:-1]) == [[b"new"] * 39] * 2


class Adder(threading.Thread):
    """Adds to a number by `cas`, and finds out whether what somebody was told to be stored is lost. A number that
    is not there begins anew under another name."""

    def __init__(self, gateway, key, shared):
        super().__init__()
        self.gateway, self.key, self.shared = gateway, key, shared
        self.stopped, self.lost, self.done, self.others = threading.Event(), [], 0, []

    def run(self):
        with self.gateway.connect(timeout=60) as conn:
            while not self.stopped.is_set():
                told = dict(self.shared)
                conn.send(b"gets %b\r\n" % self.key)
                line = conn.read_line()
                if line == b"END":
                    value = b"%d 1" % random.getrandbits(60)
                    conn.send(b"add %b 0 0 %d\r\n%b\r\n" % (self.key, len(value), value))
                elif line.startswith(b"VALUE"):
                    unique = line.split(b" ")[4]
                    name, number = conn.read_line().split(b" ")
                    conn.expect(b"END\r\n")
                    if int(number) < told.get(name, 0):
                        self.lost.append((name, int(number), told[name]))
                    value = b"%b %d" % (name, int(number) + 1)
                    conn.send(b"cas %b 0 0 %d %b\r\n%b\r\n" % (self.key, len(value), unique, value))
                else:
                    self.others.append(line)
                    continue
                line = conn.read_line()
                if line == b"STORED":
                    self.done += 1
                    name, number = value.split(b" ")
                    with LOCK:
                        self.shared[name] = max(self.shared.get(name, 0), int(number))
                elif line not in (b"EXISTS", b"NOT_FOUND", b"NOT_STORED"):
                    self.others.append(line)


LOCK = threading.Lock()


def test_no_cas_is_lost_when_a_reload_has_another_copy_lead(place):
    servers = three(place)
    gateway = place.cashew({"alpha": {"servers": [group("s1", *servers)], "timeout": 5000}}, {"worker_processes": 2})
    with gateway.connect() as conn:
        put(conn, b"unique", b"old")
        conn.send(b"gets unique\r\n")
        unique = conn.read_until(b"END\r\n").split(b"\r\n")[0].split(b" ")[4]
    keys = [b"sum:%d" % n for n in range(3)]
    shared = {key: {} for key in keys}
    adders = [Adder(gateway, key, shared[key]) for key in keys * 3]
    for adder in adders:
        adder.start()
    try:
        for turn in range(1, 7):
            before = [adder.done for adder in adders]
            wait_until(lambda: all(it.done > count + 5 for it, count in zip(adders, before)), "they add")
            turned = servers[turn % 3:] + servers[:turn % 3]
            gateway.configure({"alpha": {"servers": [group("s1", *turned)], "timeout": 5000}})
            gateway.reload()
            with gateway.connect() as conn:
                conn.send(b"cas unique 0 0 3 %b\r\nnew\r\n" % unique)
                conn.expect(b"EXISTS\r\n" if turn % 3 else b"STORED\r\n")
                if turn % 3 == 0:
                    conn.send(b"gets unique\r\n")
                    unique = conn.read_until(b"END\r\n").split(b"\r\n")[0].split(b" ")[4]
    finally:
        for adder in adders:
            adder.stopped.set()
        for adder in adders:
            adder.join()
    assert [adder.lost[:3] for adder in adders] == [[]] * len(adders)
    assert [adder.others[:3] for adder in adders] == [[]] * len(adders)
