"""Publish and subscribe through the gateway: real servers, a real client library."""

import itertools
import threading
import time

import pytest
import redis

from harness import HOST, PATIENCE, Conn, resp, server_lines, wait_until, worker_processes

PROTOCOLS = [2, 3]


def pool(servers, **options):
    # By another hash names that are much alike would have the same server.
    named = {"redis": True, "servers": server_lines(servers), "hash": "md5", "timeout": 2000}
    return {**named, **options}


def gateway_of(place, count, workers=1, redis_options=(), **options):
    servers = [place.redis(*redis_options) for _ in range(count)]
    gateway = place.cashew({"alpha": pool(servers, **options)}, {"worker_processes": workers})
    gateway.wait_serving()
    return gateway, servers


def client(place, gateway, protocol=2, **options):
    return place.keep(redis.Redis(host=HOST, port=gateway.address, protocol=protocol, **options))


def keep(place, pubsub):
    place.keep(pubsub)
    return pubsub


def subscriber(place, gateway, channels=(), patterns=(), protocol=2, **options):
    """A subscription that the gateway has confirmed."""
    made = keep(place, client(place, gateway, protocol, **options).pubsub())
    if channels:
        made.subscribe(*channels)
    if patterns:
        made.psubscribe(*patterns)
    for _ in itertools.chain(channels, patterns):
        assert next_of(made)["type"] in ("subscribe", "psubscribe")
    return made


def next_of(pubsub, seconds=10.0):
    message = pubsub.get_message(timeout=seconds)
    assert message is not None, f"nothing within {seconds} s"
    return message


def data_of(pubsub, seconds=10.0):
    return next_of(pubsub, seconds)["data"]


def up_to(pubsub, last):
    """What comes up to a message with that text, without it."""
    heard = []
    while (data := data_of(pubsub)) != last:
        heard.append(data)
    return heard


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("count", [1, 3])
def test_many_clients_hear_what_is_published(place, count, workers, protocol):
    gateway, _ = gateway_of(place, count, workers)
    publisher = client(place, gateway, protocol)
    channels = [f"channel:{n}" for n in range(8)]
    hearers = [subscriber(place, gateway, channels, protocol=protocol) for _ in range(30)]
    watchers = [subscriber(place, gateway, patterns=["chan*"], protocol=protocol) for _ in range(5)]
    for number, channel in itertools.product(range(5), channels):
        assert publisher.publish(channel, f"{channel} {number}") == 35
    for channel in channels:
        publisher.publish(channel, "end")
    for hearer in hearers:
        rounds = {channel: itertools.count() for channel in channels}
        ended = set()
        while len(ended) < len(channels):
            message = next_of(hearer)
            channel = message["channel"].decode()
            if message["data"] == b"end":
                assert next(rounds[channel]) == 5
                ended.add(channel)
            else:
                assert message["data"].decode() == f"{channel} {next(rounds[channel])}"
    for watcher in watchers:
        heard = [data_of(watcher) for _ in range(6 * len(channels))]
        assert heard.count(b"end") == len(channels)
        assert len(set(heard)) == 5 * len(channels) + 1
    assert publisher.pubsub_numsub(*channels) == [(channel.encode(), 30) for channel in channels]
    assert publisher.pubsub_numpat() == 1
    stats = gateway.stats()["alpha"]
    assert stats["subscriptions"] == 30 * 8 + 5
    assert stats["messages_delivered"] == 35 * 48
    hearers[0].unsubscribe()
    for _ in channels:
        assert next_of(hearers[0])["type"] == "unsubscribe"
    wait_until(lambda: gateway.stats()["alpha"]["subscriptions"] == 29 * 8 + 5, "they are counted")
    for one in hearers + watchers:
        one.close()
    wait_until(lambda: gateway.stats()["alpha"]["subscriptions"] == 0, "they are gone")


def test_shard_channels(place):
    gateway, _ = gateway_of(place, 3)
    with gateway.connect() as hearer, gateway.connect() as publisher:
        assert hearer.call("SSUBSCRIBE", "one") == [b"ssubscribe", b"one", 1]
        assert hearer.call("SUBSCRIBE", "one") == [b"subscribe", b"one", 1]
        assert publisher.call("SPUBLISH", "one", "hi") == 1
        assert hearer.reply() == [b"smessage", b"one", b"hi"]
        assert publisher.call("PUBLISH", "one", "ho") == 1
        assert hearer.reply() == [b"message", b"one", b"ho"]
        assert hearer.call("SUNSUBSCRIBE") == [b"sunsubscribe", b"one", 0]
        assert publisher.call("SPUBLISH", "one", "hi") == 0


STEPS = [
    ("a", 2, "SUBSCRIBE", "x", "y"),
    ("b", 1, "PUBLISH", "x", "1"),
    ("a", 2, "PSUBSCRIBE", "x*", "[x-z]?"),
    ("c", 1, "SUBSCRIBE", "x"),
    ("b", 1, "PUBLISH", "x", "2"),
    ("b", 1, "PUBLISH", "xx", "2"),
    ("c", 1, "PSUBSCRIBE", "*"),
    ("b", 1, "PUBLISH", "nobody", "3"),
    ("a", 1, "UNSUBSCRIBE", "x"),
    ("b", 1, "PUBLISH", "x", "4"),
    ("a", 1, "GET", "x"),
    ("a", 1, "HELLO", "2"),
    ("a", 1, "PING", "hello"),
    ("a", 2, "PUNSUBSCRIBE", "x*", "[x-z]?"),
    ("c", 1, "UNSUBSCRIBE"),
    ("b", 1, "PUBLISH", "x", "5"),
    ("a", 1, "UNSUBSCRIBE", "none"),
    ("a", 1, "PING"),
    ("a", 1, "UNSUBSCRIBE"),
    ("a", 1, "UNSUBSCRIBE"),
    ("c", 1, "PUNSUBSCRIBE"),
    ("c", 1, "SUBSCRIBE"),
    ("a", 1, "PING"),
    ("a", 1, "GET", "x"),
    ("c", 3, "SSUBSCRIBE", "s", "s", "t"),
    ("b", 1, "SPUBLISH", "s", "6"),
    ("c", 1, "SUNSUBSCRIBE", "s"),
    ("c", 1, "RESET"),
    ("c", 1, "PING"),
    ("b", 1, "SPUBLISH", "t", "7"),
    ("b", 1, "PUBLISH", "x", "8"),
]


def transcript(address):
    """What three clients are told, step by step; messages are waited for."""
    conns = {name: Conn(address) for name in "abc"}
    said = []
    for name, replies, *words in STEPS:
        conns[name].send(resp(*words))
        answers = [conns[name].raw_reply() for _ in range(replies)]
        said.append((words, answers))
        if words[0].endswith("PUBLISH"):
            count = int(answers[0][1:])
            said.append(messages(conns, count))
    for conn in conns.values():
        conn.expect_silence(0.05)
        conn.close()
    return said


def messages(conns, count):
    """So many messages, by client; those of one client in any order, as patterns are."""
    found = []
    deadline = time.monotonic() + PATIENCE
    while len(found) < count:
        assert time.monotonic() < deadline, f"{len(found)} of {count} messages"
        for name in "ac":
            if conns[name].buffer or conns[name]._poll(1, 0.01):
                found.append((name, conns[name].raw_reply()))
    return sorted(found)


def test_a_gateway_tells_what_a_server_tells(place):
    gateway, servers = gateway_of(place, 1)
    assert transcript(gateway.address) == transcript(servers[0].port)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_keyspace_notifications_come_from_all_servers(place, protocol):
    gateway, _ = gateway_of(place, 3, redis_options=["--notify-keyspace-events", "KEA"])
    by_pattern = subscriber(place, gateway, patterns=["__keyspace@0__:*"], protocol=protocol)
    by_event = subscriber(place, gateway, ["__keyevent@0__:set"], protocol=protocol)
    writer = client(place, gateway, protocol)
    keys = [f"key:{n}" for n in range(30)]
    for key in keys:
        writer.set(key, "x")
    assert {data_of(by_event).decode() for _ in keys} == set(keys)
    heard = [next_of(by_pattern) for _ in keys]
    assert {message["channel"].decode() for message in heard} == {f"__keyspace@0__:{key}" for key in keys}
    assert {message["data"] for message in heard} == {b"set"}


def test_resp3_clients_do_both(place):
    """Messages come between replies, and never inside one that is long on its way."""
    gateway, servers = gateway_of(place, 1, pubsub_output_max="64mb")
    publisher = client(place, gateway)
    publisher.set("large", b"v" * (20 << 20))
    with gateway.connect(timeout=30) as conn:
        conn.send(resp("HELLO", "3"))
        conn.read_until(b"modules\r\n*0\r\n")
        conn.send(resp("SUBSCRIBE", "news"))
        conn.expect(b">3\r\n$9\r\nsubscribe\r\n$4\r\nnews\r\n:1\r\n")
        conn.send(resp("GET", "none"))
        conn.expect(b"_\r\n")
        conn.send(resp("PING"))
        conn.expect(b"+PONG\r\n")
        # It is sent as long as it is not read.
        conn.send(resp("GET", "large"))
        conn.expect(b"$20971520\r\n")
        for number in range(100):
            assert publisher.publish("news", f"{number:03}") == 1
        conn.expect(b"v" * (20 << 20) + b"\r\n")
        for number in range(100):
            conn.expect(b">3\r\n$7\r\nmessage\r\n$4\r\nnews\r\n$3\r\n%03d\r\n" % number)
        conn.send(resp("UNSUBSCRIBE"))
        conn.expect(b">3\r\n$11\r\nunsubscribe\r\n$4\r\nnews\r\n:0\r\n")
        conn.send(resp("PUNSUBSCRIBE"))
        conn.expect(b">3\r\n$12\r\npunsubscribe\r\n_\r\n:0\r\n")


def test_who_does_not_read_is_closed_and_others_hear_all(place):
    gateway, _ = gateway_of(place, 1, pubsub_output_max="1mb", pubsub_output_soft_max="512kb")
    good = subscriber(place, gateway, ["news"])
    publisher = client(place, gateway)
    with gateway.connect() as slow:
        assert slow.call("SUBSCRIBE", "news") == [b"subscribe", b"news", 1]
        count = 0
        while gateway.stats()["alpha"]["clients_overflowed"] == 0:
            for _ in range(50):
                publisher.publish("news", b"x" * 20_000)
                count += 1
                assert len(data_of(good)) == 20_000
            assert count < 5000
        publisher.publish("news", "end")
        assert data_of(good) == b"end"
        slow.read_to_end()
    wait_until(lambda: gateway.stats()["alpha"]["subscriptions"] == 1, "its subscription is gone")


@pytest.mark.parametrize("workers", [1, 2])
def test_a_server_that_comes_back_has_its_subscriptions(place, workers):
    gateway, servers = gateway_of(place, 3, workers)
    channels = [f"channel:{n}" for n in range(24)]
    hearers = [subscriber(place, gateway, channels) for _ in range(4)]
    watcher = subscriber(place, gateway, patterns=["*"])
    victim = max(servers, key=lambda server: len(server.call("PUBSUB", "CHANNELS")))
    subscriptions = [victim.call("PUBSUB", *words) for words in (["NUMPAT"], ["NUMSUB", *channels])]
    victim.stop()
    publisher = client(place, gateway, retry=None)

    def try_to_publish(channel, text):
        try:
            return publisher.publish(channel, text)
        except redis.RedisError:
            return None

    counts = [try_to_publish(channel, "down") for channel in channels]
    assert None in counts and any(counts)
    # A client that comes now is told of what cannot be had.
    with gateway.connect() as late:
        late.send(resp("SUBSCRIBE", *channels))
        answers = [late.reply() for _ in channels]
        assert sum(isinstance(answer, list) for answer in answers) == sum(count is not None for count in counts)
    victim.start()
    wait_until(
        lambda: subscriptions
        == [victim.call("PUBSUB", *words) for words in (["NUMPAT"], ["NUMSUB", *channels])],
        "all is back",
    )
    wait_until(lambda: all(try_to_publish(channel, "again") for channel in channels), "so it is here")
    for channel in channels:
        publisher.publish(channel, f"{channel} end")
    for hearer in [*hearers, watcher]:
        waited = {f"{channel} end" for channel in channels}
        while waited:
            text = data_of(hearer).decode()
            assert text in ("down", "again") or text in waited, text
            waited.discard(text)


class Publisher(threading.Thread):
    """Publishes numbers, channel by channel, one after the other."""

    def __init__(self, gateway, channels):
        super().__init__(daemon=True)
        self.redis = redis.Redis(host=HOST, port=gateway.address, protocol=2)
        self.channels = channels
        self.published = 0
        self.unheard = []
        self.stopping = threading.Event()
        self.error = None

    def run(self):
        try:
            while not self.stopping.is_set():
                for channel in self.channels:
                    if not self.redis.publish(channel, self.published):
                        self.unheard.append((channel, self.published))
                self.published += 1
        except Exception as error:
            self.error = error

    def stop(self):
        self.stopping.set()
        self.join(30)
        assert self.error is None, self.error
        self.redis.close()


class Hearer(threading.Thread):
    """Checks that a channel's numbers come in order, none of them twice or not at all."""

    def __init__(self, pubsub):
        super().__init__(daemon=True)
        self.pubsub = pubsub
        self.last = {}
        self.wrong = []
        self.stopping = threading.Event()

    def run(self):
        while not self.stopping.is_set():
            message = self.pubsub.get_message(timeout=0.2)
            if message is None or message["type"] not in ("message", "pmessage"):
                continue
            channel, number = message["channel"], int(message["data"])
            if channel in self.last and number != self.last[channel] + 1:
                self.wrong.append((channel, self.last[channel], number))
            self.last[channel] = number

    def has_heard(self, channels, last):
        return all(self.last.get(channel.encode()) == last for channel in channels)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_reload_that_moves_channels_loses_and_doubles_nothing(place, workers):
    servers = [place.redis() for _ in range(4)]
    gateway = place.cashew({"alpha": pool(servers[:2])}, {"worker_processes": workers})
    gateway.wait_serving()
    channels = [f"channel:{n}" for n in range(10)]
    hearers = [Hearer(subscriber(place, gateway, channels)) for _ in range(6)]
    hearers += [Hearer(subscriber(place, gateway, patterns=["channel:*"])) for _ in range(2)]
    publishers = [Publisher(gateway, channels[half::2]) for half in range(2)]
    for thread in [*hearers, *publishers]:
        thread.start()
    for count in (3, 4, 2, 1, 4):
        before = [publisher.published for publisher in publishers]
        gateway.configure({"alpha": pool(servers[:count])})
        gateway.reload()
        wait_until(
            lambda: all(p.published > b + 20 for p, b in zip(publishers, before)),
            "publishing goes on",
        )
    for publisher in publishers:
        publisher.stop()
    for half, publisher in enumerate(publishers):
        last = publisher.published - 1
        for hearer in hearers:
            wait_until(lambda: hearer.has_heard(channels[half::2], last), "all has come")
    for hearer in hearers:
        hearer.stopping.set()
        hearer.join(10)
        assert hearer.wrong == []
    assert [publisher.unheard for publisher in publishers] == [[], []]


def test_subscribers_of_a_worker_that_retires_are_closed_in_time(place):
    """Others of its clients move; subscribers stay as long as `worker_shutdown_timeout` lets them."""
    servers = [place.redis()]
    settings = {"worker_processes": 2, "worker_shutdown_timeout": 5}
    gateway = place.cashew({"alpha": pool(servers)}, settings)
    gateway.wait_serving()
    plain = [place.keep(gateway.connect()) for _ in range(8)]
    subscribed = [place.keep(gateway.connect()) for _ in range(8)]
    for conn in subscribed:
        conn.call("SUBSCRIBE", "news")
    gateway.configure(worker_processes=1)
    gateway.reload()
    # Those that stay with their worker until then hear all the same.
    with gateway.connect() as publisher:
        publisher.call("PUBLISH", "news", "hi")
        for conn in subscribed:
            assert conn.reply() == [b"message", b"news", b"hi"]
    wait_until(lambda: len(worker_processes(gateway.pid)) == 1, "it has gone")
    for conn in plain:
        assert conn.call("PING") == "PONG"
    with gateway.connect() as publisher:
        left = publisher.call("PUBLISH", "news", "ho")
    wait_until(lambda: left == gateway.stats()["alpha"]["subscriptions"], "they are counted")
    open_still = 0
    for conn in subscribed:
        try:
            assert conn.reply(seconds=5) == [b"message", b"news", b"ho"]
            open_still += 1
        except (EOFError, ConnectionError):
            pass
    assert open_still == left


@pytest.mark.parametrize("options", [{}, {"redis_db": 2}], ids=["plain", "another database"])
@pytest.mark.parametrize("dialect", [2, 3])
def test_servers_with_a_password_are_subscribed_to(place, options, dialect):
    server = place.redis("--requirepass", "secret")
    gateway = place.cashew({"alpha": {"redis": True, "redis_auth": "secret", **options,
                                      "servers": server_lines([server])}})
    with gateway.connect() as conn, gateway.connect() as other:
        conn.call("HELLO", str(dialect), "AUTH", "default", "secret")
        other.call("AUTH", "secret")
        conn.send(resp("SUBSCRIBE", "news"))
        kind = b">" if dialect == 3 else b"*"
        conn.expect(kind + b"3\r\n$9\r\nsubscribe\r\n$4\r\nnews\r\n:1\r\n")
        assert other.call("PUBLISH", "news", "hi") == 1
        conn.expect(kind + b"3\r\n$7\r\nmessage\r\n$4\r\nnews\r\n$2\r\nhi\r\n")
