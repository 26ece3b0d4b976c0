"""Who did what, in a file: of clients, and of operators."""

import json
import os
import re
import signal
from datetime import datetime

import pytest

from harness import HOST, ReplyError, said_to, server_lines, wait_until

SECRET = "hunter2"
USERS = f"{{ann: 'on >{SECRET} ~a* &* +@all -@dangerous', default: 'on nopass ~* &* +@all'}}"


def start(place, options="", pool=None, protocol="redis", **settings):
    server = place.redis() if protocol == "redis" else place.memcached()
    path = place.directory / "audit.log"
    gateway = place.cashew(
        {"alpha": {"redis": protocol == "redis", "servers": server_lines([server]), **(pool or {})}},
        {"worker_processes": 2, "audit_log": f"{{file: {path}{options}}}", **settings},
    )
    gateway.wait_serving()
    gateway.audit_path = path
    return gateway


def records(gateway, **wanted):
    text = gateway.audit_path.read_text() if gateway.audit_path.exists() else ""
    found = [json.loads(line) for line in text.splitlines()]
    return [it for it in found if all(it.get(name) == value for name, value in wanted.items())]


def admin_of(gateway):
    status = gateway.order("status").stdout
    return int(re.search(r"^admin +(\d+) ", status, re.MULTILINE)[1])


def call(conn, *words):
    """The reply, also if it is an error."""
    try:
        return conn.call(*words)
    except ReplyError as error:
        return str(error)


def metric(gateway, name):
    text = said_to(gateway.stats_address, b"GET /metrics HTTP/1.0\r\n\r\n").decode()
    found = re.search(rf"^{name} (\d+)$", text, re.MULTILINE)
    return int(found[1]) if found else None


def test_clients_and_operators_are_told_with_who_they_are(place):
    gateway = start(place, ", commands: [write, admin, dangerous]", {"users": USERS})
    with gateway.connect() as conn:
        peer = "%s:%d" % conn.socket.getsockname()
        conn.call("CLIENT", "SETNAME", "the-app")
        assert conn.call("AUTH", "ann", SECRET) == "OK"
        assert conn.call("SET", "a1", SECRET) == "OK"
        assert conn.call("GET", "a1") == SECRET.encode()
        assert "NOPERM" in call(conn, "SET", "b", SECRET)
        assert "NOPERM" in call(conn, "KEYS", "*")
    with gateway.connect() as conn:
        # It is closed before anybody could ask where it came from.
        conn.send(b"*3\r\n$4\r\nAUTH\r\n$3\r\nann\r\n$5\r\nwrong\r\n")
        conn.half_close()
    failed = wait_until(lambda: records(gateway, event="login", outcome="failed"), "a failed login")
    assert failed[0]["user"] == "ann" and failed[0]["client"].startswith(f"{HOST}:")
    assert failed[0]["reason"] == "password"
    logins = records(gateway, event="login", outcome="ok")
    assert [it["user"] for it in logins] == ["ann"]
    told = records(gateway, event="command", client=peer)
    shown = [(it["outcome"], it["command"], it.get("key"), it.get("reason")) for it in told]
    assert shown == [
        ("allowed", "SET", "a1", None),
        ("denied", "SET", "b", "key"),
        ("denied", "KEYS", None, "command"),
    ]
    for it in told:
        assert it["user"] == "ann" and it["client_name"] == "the-app" and it["pool"] == "alpha"
        assert datetime.fromisoformat(it["time"]).tzinfo and it["client_id"] > 0

    gateway.configure(worker_processes=1)
    gateway.reload()
    gateway.order("log-level", "7")
    gateway.configure(worker_processes="x")
    assert gateway.order("reload").returncode != 0
    gateway.configure(worker_processes=1)
    os.kill(gateway.pid, signal.SIGHUP)
    wait_until(lambda: len(records(gateway, command="reload", outcome="done")) == 2, "two reloads")
    told = records(gateway, event="operator")
    shown = [(it["command"], it["outcome"]) for it in told]
    assert shown == [
        ("reload", "asked"), ("reload", "done"), ("log level 7", "asked"), ("log level 7", "done"),
        ("reload", "asked"), ("reload", "failed"), ("reload", "asked"), ("reload", "done"),
    ]
    assert told[0]["user"] == f"uid {os.getuid()}" and re.match(r"pid \d+$", told[0]["client"])
    assert told[6]["client"] == "signal SIGHUP" and told[5]["reason"]
    os.kill(gateway.pid, signal.SIGTTOU)
    by_signal = wait_until(lambda: records(gateway, client="signal SIGTTOU", outcome="done"), "a level by a signal")
    assert [it["command"] for it in by_signal] == ["log level 6"]
    assert len(records(gateway, client="signal SIGTTOU", outcome="asked")) == 1
    count = len(records(gateway))
    wait_until(lambda: metric(gateway, "cashew_audit_log_lines_total") == count, "count")
    assert metric(gateway, "cashew_audit_log_lines_lost_total") == 0
    status = gateway.order("status").stdout
    assert f"audit log: {gateway.audit_path}, {count} lines written" in status
    gateway.stop()
    stop = records(gateway, command="stop")
    assert [it["client"] for it in stop] == ["signal SIGTERM"]


def test_secrets_are_never_in_it(place):
    gateway = start(place, ", commands: all", {"command_policy": "admin"})
    calls = [
        ("AUTH", SECRET), ("AUTH", "default", SECRET), ("HELLO", "2", "AUTH", "default", SECRET),
        ("CONFIG", "SET", "masterauth", SECRET), ("ACL", "SETUSER", "joe", f">{SECRET}"),
        ("MIGRATE", HOST, "1", "k", "0", "1", "AUTH2", "joe", SECRET),
        ("SET", "k", SECRET), ("EVAL", f"return '{SECRET}'", "0"), ("ECHO", SECRET),
        ("CLIENT", "SETINFO", "LIB-NAME", SECRET), ("NOSUCH", SECRET), ("PUBLISH", "c", SECRET),
    ]
    with gateway.connect() as conn:
        for words in calls:
            call(conn, *words)
        conn.call("SET", "last", "1")
    wait_until(lambda: records(gateway, key="last"), "the last command")
    assert len(records(gateway)) >= 8
    assert SECRET not in gateway.audit_path.read_text()


def test_memcached_has_lines_too(place):
    users = {"users": f"{{ann: 'on >{SECRET} ~a* +@all', default: 'off'}}"}
    gateway = start(place, ", commands: [write]", users, protocol="memcached")
    login = f"ann {SECRET}"
    with gateway.connect() as conn:
        conn.send(f"set auth 0 0 {len(login)}\r\n{login}\r\n".encode())
        conn.send(b"set a1 0 0 1\r\nx\r\nget a1\r\nset b1 0 0 1\r\nx\r\n")
        wait_until(lambda: records(gateway, outcome="denied"), "a denied command")
    assert [it["user"] for it in records(gateway, event="login")] == ["ann"]
    shown = [(it["outcome"], it["command"], it["key"]) for it in records(gateway, event="command")]
    assert shown == [("allowed", "SET", "a1"), ("denied", "SET", "b1")]
    assert SECRET not in gateway.audit_path.read_text()


@pytest.mark.parametrize("crash", [True, False])
def test_nothing_is_lost_while_the_admin_process_is_away(place, crash):
    gateway = start(place, ", commands: [write]", worker_heartbeat_timeout=0)
    gateway.call("SET", "before", "1")
    wait_until(lambda: records(gateway, key="before"), "a line")
    admin = admin_of(gateway)
    os.kill(admin, signal.SIGSTOP)
    count = 500
    with gateway.connect() as conn:
        for number in range(count):
            conn.call("SET", f"k{number}", "1")
    os.kill(admin, signal.SIGKILL if crash else signal.SIGCONT)
    wait_until(lambda: len(records(gateway)) >= count + 1, "all lines")
    keys = [it["key"] for it in records(gateway, command="SET")]
    assert keys == ["before", *(f"k{number}" for number in range(count))]
    assert metric(gateway, "cashew_audit_log_lines_lost_total") == 0


def test_what_finds_no_room_is_counted(place):
    # It is not to be replaced for being stopped.
    gateway = start(place, ", commands: [write]", worker_heartbeat_timeout=0)
    admin = admin_of(gateway)
    gateway.call("SET", "before", "1")
    wait_until(lambda: records(gateway, key="before"), "a line")
    os.kill(admin, signal.SIGSTOP)
    batch = b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$1\r\n1\r\n" * 100
    with gateway.connect() as conn:
        for _ in range(100):
            conn.send(batch)
            assert conn.read(len(b"+OK\r\n") * 100) == b"+OK\r\n" * 100
    os.kill(admin, signal.SIGCONT)
    gateway.wait_serving()
    lost = wait_until(lambda: metric(gateway, "cashew_audit_log_lines_lost_total"), "lost lines")
    wait_until(lambda: len(records(gateway)) + lost >= 10_001, "all lines, written and lost")
    assert len(records(gateway)) + lost == 10_001
    assert f", {lost} lost" in gateway.order("status").stdout


def test_the_file_is_opened_anew_and_reloads_switch_it(place):
    gateway = start(place, ", commands: [write]")
    gateway.call("SET", "a", "1")
    wait_until(lambda: records(gateway, key="a"), "a line")
    gateway.audit_path.rename(place.directory / "old")
    os.kill(gateway.pid, signal.SIGUSR1)

    def in_new():
        gateway.call("SET", "b", "1")
        return records(gateway, key="b")
    wait_until(in_new, "a line in the new file")
    gateway.configure(audit_log="{file: /nowhere/audit.log}")
    refused = gateway.order("reload")
    assert refused.returncode != 0 and "no directory /nowhere" in refused.stdout + refused.stderr
    gateway.configure(audit_log=f"{{file: {place.directory / 'other'}, commands: none}}")
    gateway.reload()
    count = len(records(gateway))
    gateway.call("SET", "c", "1")
    gateway.audit_path = place.directory / "other"

    def in_other():
        # How a reload ended is in the file before if the admin process was late to hear of the new one.
        gateway.order("reload")
        return records(gateway, event="operator")
    wait_until(in_other, "a line in the other file")
    # What was on its way before may still come.
    assert not records(gateway, key="c") and count > 0
