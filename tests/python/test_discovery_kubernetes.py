"""Pools whose servers are the endpoints of a Service of Kubernetes, as a fake API server tells. Its messages are written
after the API's description, not recorded from a real one."""

import json
import time
import urllib.parse

import pytest

from discovery import HttpServer, in_use, pool_status, source, wait_in_use
from harness import HOST, wait_until
from load import Load, fill

PATH = "/apis/discovery.k8s.io/v1/namespaces/shop/endpointslices"


class ApiServer(HttpServer):
    """Has EndpointSlices of one Service, and what has changed of them since a version."""

    def __init__(self):
        self.slices = {}
        self.version = 100
        self.events = []
        self.oldest = 0
        self.watch_seconds = 60
        self.token = "token-1"
        self.expired_by_status = False
        self.lists = 0
        self.watches = []
        super().__init__()

    def set(self, name, pods, port=6379, kind="IPv4"):
        """`pods` has (name, address, port of nobody, conditions)."""
        with self.lock:
            self.version += 1
            event = "MODIFIED" if name in self.slices else "ADDED"
            self.slices[name] = slice_of(name, self.version, pods, port, kind)
            self.events.append((self.version, event, self.slices[name]))
            self.lock.notify_all()

    def remove(self, name):
        with self.lock:
            self.version += 1
            gone = self.slices.pop(name)
            gone["metadata"]["resourceVersion"] = str(self.version)
            self.events.append((self.version, "DELETED", gone))
            self.lock.notify_all()

    def bookmark(self):
        with self.lock:
            self.version += 1
            mark = {"kind": "EndpointSlice", "apiVersion": "discovery.k8s.io/v1",
                    "metadata": {"resourceVersion": str(self.version), "creationTimestamp": None},
                    "addressType": "", "endpoints": None, "ports": None}
            self.events.append((self.version, "BOOKMARK", mark))
            self.lock.notify_all()

    def compact(self):
        """What has been is forgotten, and watches end."""
        with self.lock:
            self.version += 1
            self.oldest = self.version
            self.events = []
            self.lock.notify_all()

    def answer(self, handler):
        url = urllib.parse.urlsplit(handler.path)
        query = dict(urllib.parse.parse_qsl(url.query))
        assert url.path == PATH and query["labelSelector"] == "kubernetes.io/service-name=cache"
        if handler.headers["Authorization"] != f"Bearer {self.token}":
            return say_status(handler, 401, "Unauthorized")
        if query.get("watch") != "1":
            return self._list(handler)
        return self._watch(handler, int(query["resourceVersion"]), query)

    def _list(self, handler):
        with self.lock:
            self.lists += 1
            body = {"kind": "EndpointSliceList", "apiVersion": "discovery.k8s.io/v1",
                    "metadata": {"resourceVersion": str(self.version)},
                    "items": list(self.slices.values())}
        handler.say(200, json.dumps(body).encode(), [("Content-Type", "application/json")])

    def _watch(self, handler, version, query):
        assert query["allowWatchBookmarks"] == "true" and int(query["timeoutSeconds"]) > 0
        with self.lock:
            self.watches.append(version)
        if version < self.oldest and self.expired_by_status:
            return say_status(handler, 410, "too old resource version")
        handler.begin_stream()
        end = time.monotonic() + self.watch_seconds
        while time.monotonic() < end:
            with self.lock:
                if self.over:
                    break
                if version < self.oldest:
                    gone = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "code": 410,
                            "status": "Failure", "reason": "Expired",
                            "message": f"too old resource version: {version} ({self.version})"}
                    handler.chunk(json.dumps({"type": "ERROR", "object": gone}).encode() + b"\n")
                    break
                news = [it for it in self.events if it[0] > version]
                if not news:
                    self.lock.wait(0.05)
                    continue
            for version, event, slice_ in news:
                text = json.dumps({"type": event, "object": slice_}).encode() + b"\n"
                # As they come, in pieces.
                handler.chunk(text[:20])
                handler.chunk(text[20:])
        handler.chunk(b"")


def say_status(handler, code, message):
    body = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": message,
            "code": code}
    return handler.say(code, json.dumps(body).encode(), [("Content-Type", "application/json")])


def slice_of(name, version, pods, port, kind):
    def endpoint(pod, address, **conditions):
        state = {"ready": True, "serving": True, "terminating": False, **conditions}
        return {"addresses": [address], "conditions": state, "nodeName": "node-1", "zone": "zone-1",
                "targetRef": {"kind": "Pod", "namespace": "shop", "name": pod, "uid": f"u-{pod}"}}

    return {"kind": "EndpointSlice", "apiVersion": "discovery.k8s.io/v1",
            "metadata": {"name": name, "namespace": "shop", "resourceVersion": str(version),
                         "labels": {"kubernetes.io/service-name": "cache"}},
            "addressType": kind, "ports": [{"name": "redis", "port": port, "protocol": "TCP"}],
            "endpoints": [endpoint(pod, address, **more) for pod, address, more in pods]}


@pytest.fixture
def api(place):
    return place.keep(ApiServer())


@pytest.fixture
def pods(place):
    """On one port, as pods have it, each with an address of its own."""
    port = place.redis().port
    servers = {f"cache-{last}": place.redis(port=port, bind=f"127.0.0.{last + 2}")
               for last in range(6)}
    return port, servers


def ready(numbers, **more):
    return [(f"cache-{number}", f"127.0.0.{number + 2}", more) for number in numbers]


def pools(place, api, port="redis"):
    token = place.directory / "token"
    token.write_text(api.token + "\n")
    options = f"service: cache, namespace: shop, port: {port}, server: '{api.url}', token_file: {token}"
    return {"alpha": {"redis": True, "servers_from": f"{{kubernetes: {{{options}}}}}"}}


def names(numbers):
    return {f"cache-{number}" for number in numbers}


def test_slices_are_listed_and_watched(place, api, pods):
    port, servers = pods
    fill(*servers.values())
    api.set("cache-a", ready([0, 1]), port)
    api.set("cache-b", ready([2, 3]), port)
    gateway = place.cashew(pools(place, api), {"worker_processes": 2})
    assert set(in_use(gateway)) == names(range(4))
    with Load(gateway.address) as load:
        api.set("cache-b", ready([2, 3, 4]), port)
        wait_in_use(gateway, names(range(5)), "one has joined")
        api.set("cache-c", ready([5]), port)
        wait_in_use(gateway, names(range(6)), "a slice has joined")
        load.turn()
        # One of six is being ended.
        api.set("cache-c", ready([5], ready=False, terminating=True), port)
        wait_in_use(gateway, names(range(5)), "it has left")
        load.turn()
        api.remove("cache-c")
        api.bookmark()
        api.set("cache-a", [*ready([0]), ("cache-1", "127.0.0.7", {})], port)
        wait_until(lambda: in_use(gateway)["cache-1"] == f"127.0.0.7:{port}", "a pod has moved")
        load.turn()
    assert api.lists == 2, "at the start of the gateway and of its discovery"
    assert pool_status(gateway)["source"]["kind"] == "kubernetes"


def test_a_version_that_has_expired_is_listed_again(place, api, pods):
    port, servers = pods
    api.set("cache-a", ready(range(4)), port)
    gateway = place.cashew(pools(place, api), {"worker_processes": 1})
    wait_until(lambda: api.watches, "a watch")
    for by_status in (False, True):
        api.expired_by_status = by_status
        lists = api.lists
        with api.lock:
            # Unseen, as it comes with what is forgotten.
            api.slices["cache-a"] = slice_of("cache-a", api.version + 1, ready(range(5 + by_status)),
                                             port, "IPv4")
        api.compact()
        wait_in_use(gateway, names(range(5 + by_status)), "it is listed again")
        assert api.lists > lists
    assert source(gateway)["is_answering"]


def test_watches_that_end_go_on_where_they_ended(place, api, pods):
    port, _ = pods
    api.watch_seconds = 0.3
    api.set("cache-a", ready(range(4)), port)
    gateway = place.cashew(pools(place, api), {"worker_processes": 1})
    api.bookmark()
    wait_until(lambda: len(api.watches) >= 5, "several watches")
    assert api.watches[-1] == api.version
    api.set("cache-a", ready(range(5)), port)
    wait_in_use(gateway, names(range(5)), "it is followed")


def test_an_outage_changes_nothing_and_a_new_token_is_used(place, api, pods):
    port, servers = pods
    api.set("cache-a", ready(range(4)), port)
    gateway = place.cashew(pools(place, api), {"worker_processes": 1})
    assert set(in_use(gateway)) == names(range(4))
    wait_until(lambda: api.watches, "a watch")
    api.token = "token-2"
    api.watch_seconds = 0.2
    api.compact()
    wait_until(lambda: source(gateway)["is_answering"] is False, "it is told")
    assert "401" in source(gateway)["failure"] and "token-1" not in gateway.log()
    assert set(in_use(gateway)) == names(range(4))
    assert gateway.call("SET", "key", "value") == "OK"
    api.set("cache-a", ready(range(5)), port)
    (place.directory / "token").write_text("token-2")
    wait_in_use(gateway, names(range(5)), "the new token is used")


@pytest.mark.long
def test_a_service_without_endpoints_keeps_its_servers_for_half_a_minute(place, api, pods):
    port, _ = pods
    api.set("cache-a", ready(range(3)), port)
    gateway = place.cashew(pools(place, api), {"worker_processes": 1})
    start = time.monotonic()
    api.remove("cache-a")
    wait_until(lambda: source(gateway)["held"], "they are held back")
    assert set(in_use(gateway)) == names(range(3))
    # It is asked again, as a watch says nothing of what does not change.
    wait_until(lambda: pool_status(gateway)["servers"] == 0, "they are gone", seconds=60)
    took = time.monotonic() - start
    print(f"A7.4: nothing is removed for {took:.0f} s")
    assert 30 <= took <= 50
    assert api.lists >= 4


def test_ports_have_names_or_numbers(place, api, pods):
    port, _ = pods
    api.set("cache-a", ready(range(3)), port)
    gateway = place.cashew(pools(place, api, port), {"worker_processes": 1})
    assert in_use(gateway)["cache-2"] == f"127.0.0.4:{port}"
    gateway.configure(pools(place, api, "metrics"))
    assert "has no port metrics" in gateway.refused_reload()
    assert HOST not in in_use(gateway)
