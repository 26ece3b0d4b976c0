"""Clients that are users by their certificates."""

import contextlib
import socket
import ssl

import pymemcache
import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from certificates import Authority
from harness import HOST, PATIENCE, free_port, server_lines, wait_until

USERS = {
    "default": "off",
    "ann": "on nopass ~ann:* +@all -@admin",
    "bob@example.org": "on >other ~* +@read +ping +acl|whoami +client",
    "urn:app:web": "on nopass ~* +@all",
    "off": "off nopass ~* +@all",
}


@pytest.fixture(scope="module")
def authority(module_place):
    return Authority(module_place.directory)


class Gateway:
    def __init__(self, place, authority, client_user, **tls):
        self.authority = authority
        pair = authority.sign(f"DNS:localhost,IP:{HOST}")
        words = {"certificate": pair.certificate, "key": pair.key, "client_ca": authority.ca,
                 "client_auth": "optional", "client_user": client_user, **tls}
        self.ports = {pool: free_port() for pool in ("alpha", "beta")}
        users = "{" + ", ".join(f'"{name}": "{rules}"' for name, rules in USERS.items()) + "}"
        shared = {"users": users, "tls": "{" + ", ".join(f"{key}: {value}" for key, value in words.items()) + "}"}
        servers = {"alpha": place.redis(), "beta": place.memcached()}
        self.pools = {pool: {"servers": server_lines([server]), "tls_listen": f"{HOST}:{self.ports[pool]}", **shared}
                      for pool, server in servers.items()}
        self.pools["alpha"]["redis"] = "true"
        self.gateway = place.cashew(self.pools, {"worker_processes": 2})
        self.gateway.wait_serving()

    def client(self, pair=None, **more):
        if pair:
            more |= {"ssl_certfile": str(pair.certificate), "ssl_keyfile": str(pair.key)}
        return redis.Redis("localhost", self.ports["alpha"], ssl=True, ssl_ca_certs=str(self.authority.ca),
                           single_connection_client=True, retry=Retry(NoBackoff(), 0), **more)


@pytest.fixture(scope="module", params=["TLSv1_2", "TLSv1_3"])
def version(request):
    return ssl.TLSVersion[request.param]


@pytest.fixture(scope="module")
def by_cn(module_place, authority):
    return Gateway(module_place, authority, "cn")


def test_the_common_name_names_the_user(by_cn, authority, version):
    ann = authority.sign("DNS:web", subject="/O=ours/CN=someone/CN=ann")
    client = by_cn.client(ann, ssl_min_version=version)
    assert client.acl_whoami() == "ann"
    client.set("ann:key", "value")
    assert client.get("ann:key") == b"value"
    with pytest.raises(redis.exceptions.NoPermissionError, match="no permissions"):
        client.get("other")
    assert client.client_info()["user"] == "ann"
    # Whoever knows a password may still be another.
    client.execute_command("AUTH", "bob@example.org", "other")
    assert client.acl_whoami() == "bob@example.org"
    client.close()


def test_who_is_no_user_must_log_in(by_cn, authority):
    nobody = authority.sign("DNS:ann", subject="/CN=nobody")
    off = authority.sign("DNS:ann", subject="/CN=off")
    empty = authority.sign("DNS:ann", subject="/O=ours")
    for pair in (None, nobody, off, empty):
        with pytest.raises(redis.exceptions.AuthenticationError, match="already authenticated"):
            by_cn.client(pair)
        with pytest.raises(redis.exceptions.AuthenticationError, match="Authentication required"):
            by_cn.client(pair, protocol=2, driver_info=None).get("ann:key")
    client = by_cn.client(nobody, username="bob@example.org", password="other")
    assert client.acl_whoami() == "bob@example.org"
    client.close()


def test_a_certificate_of_others_is_refused(by_cn, module_place):
    stranger = Authority(module_place.directory).sign("DNS:ann", subject="/CN=ann")
    with pytest.raises((redis.exceptions.ConnectionError, OSError)):
        by_cn.client(stranger).get("ann:key")


def test_a_resumed_session_is_the_same_user(by_cn, authority, version):
    ann = authority.sign("DNS:web", subject="/CN=ann")
    made = ssl.create_default_context(cafile=str(authority.ca))
    made.load_cert_chain(ann.certificate, ann.key)
    made.minimum_version = made.maximum_version = version
    session, resumed = None, by_cn.gateway.stats()["alpha"]["tls_resumed"]
    for _ in range(3):
        raw = socket.create_connection((HOST, by_cn.ports["alpha"]), PATIENCE)
        with made.wrap_socket(raw, server_hostname="localhost", session=session) as conn:
            conn.sendall(b"ACL WHOAMI\r\n")
            assert conn.recv(100) == b"$3\r\nann\r\n"
            session = conn.session
    assert by_cn.gateway.stats()["alpha"]["tls_resumed"] > resumed


def test_it_moves_with_the_session(place, authority):
    made = Gateway(place, authority, "cn")
    ann = authority.sign("DNS:web", subject="/CN=ann")
    clients = [made.client(ann) for _ in range(6)]
    for client in clients:
        assert client.acl_whoami() == "ann"
    made.gateway.configure(worker_processes=1)
    made.gateway.reload()
    made.gateway.order("upgrade")
    for client in clients:
        own = client.connection._sock
        assert client.acl_whoami() == "ann" and client.connection._sock is own
        with pytest.raises(redis.exceptions.NoPermissionError):
            client.get("other")
        client.close()
    # Another user's rules, another choice of names.
    tls = made.pools["alpha"]["tls"].replace("client_user: cn", "client_user: san_dns")
    made.gateway.configure({pool: {**it, "tls": tls} for pool, it in made.pools.items()})
    made.gateway.reload()
    assert "tls client_user: cn -> san_dns" in made.gateway.log()
    client = made.client(authority.sign("DNS:first,DNS:ann", subject="/CN=nobody"))
    assert client.acl_whoami() == "ann"


def test_names_stand_for_users_by_a_map(place, authority):
    mapped = "{from: san_uri, map: {'urn:app:one': ann, 'urn:app:two': 'off'}, default: 'urn:app:web'}"
    made = Gateway(place, authority, mapped)

    def user(names):
        client = made.client(authority.sign(names, subject="/CN=ann"))
        try:
            return client.acl_whoami()
        finally:
            client.close()
    assert user("URI:urn:app:one") == "ann"
    # Who is off, and who stands for nobody, is the default, also where there is a user of that name.
    assert user("URI:urn:app:two") == "urn:app:web"
    assert user("URI:ann") == "urn:app:web"
    with pytest.raises(redis.exceptions.AuthenticationError):
        user("DNS:ann")
    tls = made.pools["alpha"]["tls"].replace("default: 'urn:app:web'", "default: nobody")
    made.gateway.configure({pool: {**it, "tls": tls} for pool, it in made.pools.items()})
    assert 'there is no user "nobody"' in made.gateway.refused_reload()


@pytest.mark.parametrize(("kind", "names", "user"), [
    ("san_email", "DNS:ann,email:bob@example.org", "bob@example.org"),
    ("san_uri", "URI:urn:app:unknown,URI:urn:app:web,email:bob@example.org", "urn:app:web"),
    ("san_dns", "DNS:off,DNS:ann,URI:urn:app:web", "ann"),
])
def test_alternative_names(place, authority, kind, names, user):
    made = Gateway(place, authority, kind, client_auth="required")
    client = made.client(authority.sign(names, subject="/CN=off"))
    assert client.acl_whoami() == user
    client.close()
    with contextlib.suppress(OSError, redis.exceptions.ConnectionError):
        made.client().ping()
        pytest.fail("no certificate was shown")


def test_memcached_too(by_cn, authority):
    def client(subject):
        made = ssl.create_default_context(cafile=str(authority.ca))
        pair = authority.sign("DNS:web", subject=subject)
        made.load_cert_chain(pair.certificate, pair.key)
        return pymemcache.Client(("localhost", by_cn.ports["beta"]), tls_context=made, default_noreply=False)

    ann = client("/CN=ann")
    assert ann.set("ann:key", "value") and ann.get("ann:key") == b"value"
    with pytest.raises(pymemcache.exceptions.MemcacheError):
        ann.set("other", "value")
    with pytest.raises(pymemcache.exceptions.MemcacheError):
        client("/CN=nobody").get("ann:key")


@pytest.mark.parametrize(("tls", "words"), [
    ("client_user: cn", '"client_user" needs "client_ca"'),
    ("client_ca: {ca}, client_user: name", 'expected one of off, cn, san_dns, san_uri, san_email'),
])
def test_what_cannot_be_is_refused(by_cn, authority, tls, words):
    pools = {name: dict(pool) for name, pool in by_cn.pools.items()}
    pair = authority.sign("DNS:localhost")
    pools["alpha"]["tls"] = f"{{certificate: {pair.certificate}, key: {pair.key}, {tls.format(ca=authority.ca)}}}"
    by_cn.gateway.configure(pools)
    try:
        assert words in by_cn.gateway.refused_reload()
    finally:
        by_cn.gateway.configure(by_cn.pools)


def test_a_ticket_is_good_where_the_same_is_asked_of_clients(place, authority, version):
    """Whoever resumes shows no certificate."""
    directory = place.directory / "others"
    directory.mkdir()
    others = Authority(directory)
    pair = authority.sign(f"DNS:localhost,IP:{HOST}")
    server = server_lines([place.redis()])
    ports = {name: free_port() for name in ("alpha", "beta", "gamma")}

    def pool(name, asked):
        tls = f"{{certificate: {pair.certificate}, key: {pair.key}{asked}}}"
        return {"redis": "true", "servers": server, "tls_listen": f"{HOST}:{ports[name]}", "tls": tls}
    named = f", client_user: cn, client_ca: {authority.ca}"
    pools = {"alpha": pool("alpha", ""), "beta": pool("beta", f", client_ca: {others.ca}"),
             "gamma": {**pool("gamma", named), "users": "{ann: on nopass ~* +@all}"}}
    gateway = place.cashew(pools, {"worker_processes": 1})
    gateway.wait_serving()

    def visit(made, name, session=None):
        raw = socket.create_connection((HOST, ports[name]), PATIENCE)
        with made.wrap_socket(raw, server_hostname="localhost", session=session) as conn:
            conn.sendall(b"ACL WHOAMI\r\n")
            answer = conn.recv(100)
            assert answer.startswith(b"$"), answer
            return conn.session, conn.session_reused

    def context(pair=None):
        made = ssl.create_default_context(cafile=str(authority.ca))
        made.minimum_version = made.maximum_version = version
        if pair:
            made.load_cert_chain(pair.certificate, pair.key)
        return made

    stranger = context()
    session, _ = visit(stranger, "alpha")
    session, is_reused = visit(stranger, "alpha", session)
    assert is_reused
    for name in ("beta", "gamma"):
        with pytest.raises((OSError, AssertionError)):
            visit(stranger, name, session)
    ann = context(authority.sign("DNS:web", subject="/CN=ann"))
    session, _ = visit(ann, "gamma")
    session, is_reused = visit(ann, "gamma", session)
    assert is_reused
    with pytest.raises((OSError, AssertionError)):
        visit(ann, "beta", session)
    # Nor where others are trusted now.
    gateway.configure({**gateway.pools, "gamma": {**pools["gamma"], "tls": pools["gamma"]["tls"].replace(
        str(authority.ca), str(others.ca)), "listen": gateway.pools["gamma"]["listen"]}})
    gateway.reload()
    with pytest.raises((OSError, AssertionError)):
        visit(ann, "gamma", session)


def test_a_certificate_gets_no_connection_beyond_its_users_limit(place, authority):
    users = {**USERS, "ann": '{rules: "on nopass ~* +@all", connections_max: 2}'}
    made = Gateway(place, authority, "cn")
    listed = "{" + ", ".join(f'"{name}": {rules if rules.startswith("{") else repr(rules)}'
                             for name, rules in users.items()) + "}"
    made.gateway.configure({name: {**options, "users": listed} for name, options in made.gateway.pools.items()})
    made.gateway.reload()
    ann = authority.sign("DNS:web", subject="/CN=ann")
    clients = [made.client(ann, protocol=2, driver_info=None) for _ in range(2)]
    assert [client.acl_whoami() for client in clients] == ["ann", "ann"]
    third = made.client(ann, protocol=2, driver_info=None)
    with pytest.raises(redis.exceptions.AuthenticationError, match="Authentication required"):
        third.acl_whoami()
    clients[0].close()

    def is_let_in():
        try:
            return made.client(ann, protocol=2, driver_info=None).acl_whoami() == "ann"
        except redis.exceptions.AuthenticationError:
            return False
    wait_until(is_let_in, "there is room again")
