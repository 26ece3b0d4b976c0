"""Pools whose servers are the instances of a service in Consul, as a fake agent tells. Its messages are written after the
API's description, not recorded from a real one."""

import json
import time
import urllib.parse

import pytest

from discovery import HttpServer, in_use, pool_status, source, wait_in_use
from harness import HOST, wait_until
from load import Load, fill


class Agent(HttpServer):
    """Answers for the health of one service, by blocking queries."""

    def __init__(self):
        self.entries = {}
        self.index = 40
        self.failure = None
        self.token = None
        #: What queries had for an index, and when they came.
        self.queries = []
        super().__init__()

    def set(self, servers, weights=None, index=None):
        """All instances that pass, by their ids."""
        with self.lock:
            self.entries = {id_: (server, (weights or {}).get(id_, 1))
                            for id_, server in servers.items()}
            self.index = self.index + 1 if index is None else index
            self.lock.notify_all()

    def fail(self, failure):
        with self.lock:
            self.failure = failure
            self.lock.notify_all()

    def answer(self, handler):
        url = urllib.parse.urlsplit(handler.path)
        query = dict(urllib.parse.parse_qsl(url.query))
        assert url.path == "/v1/health/service/cache" and query["passing"] == "1"
        assert query.get("tag") == "blue"
        if self.token and handler.headers["X-Consul-Token"] != self.token:
            return handler.say(403, b"rpc error making call: Permission denied")
        index = int(query.get("index", 0))
        with self.lock:
            self.queries.append((index, time.monotonic()))
            if index:
                assert query["wait"] == "60s"
                end = time.monotonic() + 60
                # A lower one than was asked for is answered at once.
                while self.index == index and not self.failure and not self.over:
                    self.lock.wait(max(0, end - time.monotonic()))
            if self.failure:
                return handler.say(500, self.failure.encode())
            body = json.dumps([entry(*it) for it in self.entries.items()]).encode()
            headers = [("X-Consul-Index", str(self.index)), ("X-Consul-Knownleader", "true"),
                       ("Content-Type", "application/json")]
        return handler.say(200, body, headers)


def entry(id_, server):
    server, weight = server
    return {"Node": {"ID": "n", "Node": "node-1", "Address": HOST, "Datacenter": "dc1"},
            "Service": {"ID": id_, "Service": "cache", "Tags": ["blue"], "Address": "",
                        "Port": server.port, "Weights": {"Passing": weight, "Warning": 1}},
            "Checks": [{"CheckID": "service:" + id_, "Status": "passing"}]}


@pytest.fixture
def agent(place):
    return place.keep(Agent())


@pytest.fixture
def servers(place):
    return {f"cache-{number}": place.redis() for number in range(4)}


def pools(agent, **more):
    options = "".join(f", {key}: {value}" for key, value in more.items())
    options = f"address: '{agent.url}', service: cache, tag: blue{options}"
    return {"alpha": {"redis": True, "servers_from": f"{{consul: {{{options}}}}}"}}


@pytest.fixture
def gateway(place, agent, servers):
    agent.set(servers)
    return place.cashew(pools(agent), {"worker_processes": 2})


def test_instances_are_followed_by_blocking_queries(agent, servers, gateway):
    fill(*servers.values())
    assert set(in_use(gateway)) == set(servers)
    with Load(gateway.address) as load:
        three = {id_: servers[id_] for id_ in list(servers)[:3]}
        agent.set(three, {"cache-0": 3})
        wait_in_use(gateway, three, "one has left")
        load.turn()
        agent.set(servers)
        wait_in_use(gateway, servers, "it is back")
        load.turn()
    said = pool_status(gateway)
    assert "cache-3 joined; cache-0 changed weight" in said["source_change"]["what"]
    # One that waits, and none beside it.
    wait_until(lambda: agent.queries[-1][0] == agent.index, "it waits for what comes next")
    count = len(agent.queries)
    time.sleep(2)
    assert len(agent.queries) == count and agent.queries[-1][0] == agent.index


def test_an_index_that_goes_back_begins_anew(agent, servers, gateway):
    wait_until(lambda: agent.queries[-1][0] == agent.index, "a query that waits")
    three = {id_: servers[id_] for id_ in list(servers)[:3]}
    agent.set(three, index=5)
    wait_in_use(gateway, three, "one has left")
    # Without an index once, then with the new one.
    wait_until(lambda: [index for index, _ in agent.queries][-2:] == [0, 5], "it begins anew")
    agent.set(servers)
    wait_in_use(gateway, servers, "it is followed")


def test_an_index_of_zero_does_not_make_a_busy_loop(agent, servers, gateway):
    agent.set(servers, index=0)
    time.sleep(3)
    times = [at for _, at in agent.queries if at > time.monotonic() - 2]
    assert len(times) <= 2 * 2 + 2, times
    three = {id_: servers[id_] for id_ in list(servers)[:3]}
    agent.set(three, index=0)
    wait_in_use(gateway, three, "it is followed all the same")


def test_an_outage_changes_nothing(agent, servers, gateway):
    agent.fail("No cluster leader")
    wait_until(lambda: source(gateway)["is_answering"] is False, "it is told")
    assert "No cluster leader" in source(gateway)["failure"]
    time.sleep(1)
    assert set(in_use(gateway)) == set(servers)
    agent.fail(None)
    three = {id_: servers[id_] for id_ in list(servers)[:3]}
    agent.set(three)
    start = time.monotonic()
    wait_in_use(gateway, three, "it is caught up")
    assert time.monotonic() - start < 4


def test_changes_without_an_end_are_asked_for_at_a_pace(agent, servers, gateway):
    start = time.monotonic()
    number = 0
    while time.monotonic() < start + 3:
        number += 1
        agent.set(servers, {"cache-0": number + 1})
        time.sleep(0.01)
    count = len([at for _, at in agent.queries if at > start])
    assert count <= 2 + 3 * 2 + 2, count


def test_tokens_are_shown_to_the_agent_alone(place, agent, servers):
    agent.token = "secret-word"
    agent.set(servers)
    secret = place.directory / "token"
    secret.write_text("secret-word\n")
    secret.chmod(0o600)
    gateway = place.cashew(pools(agent, token=f"{{file: {secret}}}"), {"worker_processes": 1})
    assert set(in_use(gateway)) == set(servers)
    assert "secret-word" not in gateway.log() + gateway.order("status", "--json").stdout
    gateway.configure(pools(agent, token="wrong-word"))
    assert "403" in gateway.refused_reload()
