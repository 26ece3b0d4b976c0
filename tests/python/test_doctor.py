"""`cashew doctor` finds what is wrong with real servers and instances, and nothing where all is well."""

import contextlib
import json
import os
import random
import re
import socket
import subprocess
import threading
import time

import pytest

from certificates import Authority
from harness import CASHEW, HOST, PATIENCE, free_port, resp, server_lines, wait_until
from test_groups import group, pool, replica_of

#: Bounds that fit any machine, so that none of its findings are of the machine.
LIMITS = {"request_size_max": "1mb", "client_output_max": "2mb", "timeout": 2000, "backlog": 100}
SETTINGS = {"worker_processes": 1, "memory_max": "64mb"}


def doctor(config, *arguments, env=None):
    command = [CASHEW, "doctor", "-c", str(config), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60,
                          env={**os.environ, **(env or {})})


def diagnosis(config, *arguments):
    """The exit status, the findings by check, and what was looked at."""
    done = doctor(config, "--json", *arguments)
    assert done.stdout, done.stderr
    told = json.loads(done.stdout)
    findings = {}
    for finding in told["findings"]:
        # What memory there is, is the machine's.
        if finding["check"] != "memory":
            findings.setdefault(finding["check"], []).append(finding)
    return done.returncode, findings, told["looked_at"]


def written(place, options, name="doctor.yml"):
    """A file of a pool whose instance does not run."""
    path = place.directory / name
    lines = "".join(f"  {key}: {value}\n" for key, value in options.items() if key != "servers")
    servers = "".join(f"   - {line}\n" for line in options["servers"])
    path.write_text(f"alpha:\n  listen: {HOST}:{free_port()}\n{lines}  servers:\n{servers}")
    return path


def test_nothing_is_found_where_all_is_well(place):
    redis, memcached = place.redis(), place.memcached()
    primary = place.redis()
    replica = replica_of(place, primary)
    gateway = place.cashew({
        "alpha": {"redis": True, "servers": server_lines([redis]), **LIMITS},
        "beta": {"servers": server_lines([memcached]), **LIMITS},
        "gamma": {"redis": True, "servers": [group("s1", primary, replica)], **LIMITS},
    }, SETTINGS)
    gateway.wait_serving()
    for _ in range(10):
        assert gateway.call("SET", "key", "value") == "OK"
    status, findings, looked_at = diagnosis(gateway.config_path)
    assert (status, findings) == (0, {})
    assert (looked_at["pools"], looked_at["servers"]) == (3, 4)
    assert looked_at["instance"] == gateway.pid and looked_at["not_looked_at"] == []
    assert {"configuration", "backlog", "role", "maxconns", "workers"} <= set(looked_at["checks"])
    text = doctor(gateway.config_path)
    assert text.returncode == 0 and f"(pid {gateway.pid})" in text.stdout, text.stdout
    assert "3 pools, 4 servers" in text.stdout.splitlines()[-1]


def test_servers_that_are_not_as_they_should_be(place):
    locked = place.redis("--requirepass", "secret-of-the-server")
    primary = place.redis()
    replica = replica_of(place, primary)
    few = place.redis("--maxclients", "64")
    full = place.redis()
    used = re.search(rb"used_memory:(\d+)", full.call("INFO", "memory"))
    full.call("CONFIG", "SET", "maxmemory", str(int(used.group(1)) * 104 // 100))
    node = place.redis("--cluster-enabled", "yes")
    absent = free_port()
    servers = [locked, replica, few, full, node]
    names = ["locked", "replica", "few", "full", "node"]
    path = written(place, {
        "redis": "true", "distribution": "modula", **LIMITS,
        "servers": [*server_lines(servers, names=names), f"{HOST}:{absent}:1 absent"],
    })
    status, findings, looked_at = diagnosis(path)
    assert status == 2 and looked_at["instance"] is None

    def of(check):
        return [finding["place"].split("'")[3] for finding in findings[check]]

    assert of("login") == ["locked"] and of("role") == ["replica"] and of("cluster") == ["node"]
    assert of("maxclients") == ["few"] and of("maxmemory") == ["full"]
    assert of("reachable") == ["absent"] and "refused" in findings["reachable"][0]["what"]
    assert set(findings) == {"login", "role", "cluster", "maxclients", "maxmemory", "reachable"}
    # One line each, the worst first.
    text = doctor(path)
    lines = text.stdout.splitlines()
    severities = [line.split(":")[0] for line in lines if line.endswith("]")]
    order = {"error": 0, "warning": 1, "note": 2}
    assert severities == sorted(severities, key=order.get) and text.returncode == 2
    assert "not looked at: a running instance" in text.stdout


def test_wrong_passwords_and_memcached(place):
    locked = place.redis("--requirepass", "right-password")
    path = written(place, {"redis": "true", "redis_auth": "wrong-password", **LIMITS,
                           "servers": server_lines([locked])})
    status, findings, _ = diagnosis(path)
    assert status == 2 and "WRONGPASS" in findings["login"][0]["what"], findings
    said = doctor(path)
    assert "wrong-password" not in said.stdout + said.stderr
    right = written(place, {"redis": "true", "redis_auth": "right-password", **LIMITS,
                            "servers": server_lines([locked])}, "right.yml")
    assert diagnosis(right)[:2] == (0, {})
    # This one repeats what came with a command that it does not know.
    other = place.redis("--rename-command", "AUTH", "LOGIN")
    path = written(place, {"redis": "true", "redis_auth": "secret-word", **LIMITS,
                           "servers": server_lines([other])}, "other.yml")
    said = doctor(path)
    assert said.returncode == 2 and "unknown command" in said.stdout
    assert "secret-word" not in said.stdout + said.stderr
    small = place.memcached("-c", "100")
    path = written(place, {**LIMITS, "server_connections": 200, "servers": server_lines([small])},
                   "memcached.yml")
    status, findings, _ = diagnosis(path)
    assert (status, list(findings)) == (1, ["maxconns"])


def test_replicas_and_primaries_of_a_group(place):
    primary, other = place.redis(), place.redis()
    lost = replica_of(place, primary)
    gateway = place.cashew({"alpha": {"redis": True, **LIMITS,
                                      "servers": [group("s1", primary, other, lost)]}}, SETTINGS)
    gateway.wait_serving()
    lost.call("CONFIG", "SET", "masterauth", "x")
    lost.call("REPLICAOF", HOST, str(free_port()))
    wait_until(lambda: b"master_link_status:down" in lost.call("INFO", "replication"), "it is lost")
    status, findings, _ = diagnosis(gateway.config_path)
    assert status == 1
    [role] = findings["role"]
    assert str(other.port) in role["place"] and "says it is a primary" in role["what"]
    [link] = findings["replication"]
    assert str(lost.port) in link["place"] and "no connection to its primary" in link["what"]
    # After a failover the former primary is one that ought to follow.
    assert gateway.order("failover", "alpha", f"{HOST}:{other.port}").returncode == 0
    _, findings, _ = diagnosis(gateway.config_path)
    [role] = [it for it in findings["role"] if "says it is a primary" in it["what"]]
    assert str(primary.port) in role["place"]


def test_primaries_that_take_no_writes_without_replicas(place):
    alone = place.redis("--min-replicas-to-write", "1")
    path = written(place, {"redis": "true", **LIMITS, "servers": server_lines([alone])})
    status, findings, _ = diagnosis(path)
    assert status == 2 and "-NOREPLICAS" in findings["replication"][0]["why"]


def test_what_the_file_and_the_machine_say(place):
    redis = place.redis()
    twice = [f"{HOST}:{redis.port}:1 a", f"{HOST}:{redis.port}:1000 b"]
    path = written(place, {"redis": "true", **LIMITS, "backlog": 100_000, "client_connections": 10**7,
                           "failover_wait": 60_000, "distribution": "ketama", "servers": twice})
    status, findings, _ = diagnosis(path)
    assert status == 1
    remarks = findings["configuration"]
    assert all(finding["place"].startswith(f"{path}:") for finding in remarks)
    said = " ".join(finding["what"] for finding in remarks)
    for words in ['"b" is the same server as "a"', '"a" gets 0.0% of the keys', "60000 ms"]:
        assert words in said, said
    assert "somaxconn" in findings["backlog"][0]["what"] and "descriptors" in findings
    checked = subprocess.run([CASHEW, "-t", "-c", path], capture_output=True, text=True, timeout=30)
    assert checked.returncode == 0 and '"a" gets 0.0% of the keys' in checked.stderr


def test_what_the_instance_says(place):
    redis, down = place.redis(), place.redis()
    gateway = place.cashew(pool(*server_lines([redis, down]), **{**LIMITS, "client_connections": 2}),
                           SETTINGS)
    gateway.wait_serving()
    gateway.wait_empty()
    conns = [gateway.connect() for _ in range(2)]
    for conn in conns:
        assert conn.call("PING") == "PONG"
    refused = gateway.connect()
    wait_until(lambda: gateway.stats()["alpha"]["clients_refused"], "a client is refused")
    refused.close()
    down.stop()

    def is_out():
        key = str(random.random())
        conns[0].send(resp("GET", key))
        conns[0].reply()
        [told] = json.loads(gateway.order("status", "--json").stdout)["pools"]
        return any(server["state"] == "out" for server in told["server_states"])

    wait_until(is_out, "the server is out")
    worker = gateway.stats()["cashew"]["workers"][0]["pid"]
    status, findings, _ = diagnosis(gateway.config_path)
    assert status == 2 and {"servers", "reachable", "clients"} <= set(findings), findings
    assert str(down.port) in findings["servers"][0]["place"]
    os.kill(worker, 9)
    wait_until(lambda: any(it["restarts"] for it in json.loads(
        gateway.order("status", "--json").stdout)["workers"]), "it is started again")
    # Times are in whole seconds.
    time.sleep(4)
    gateway.configure()
    _, findings, _ = diagnosis(gateway.config_path)
    assert "workers" in findings and "was changed since" in findings["reload"][0]["what"]
    gateway.reload()
    assert "reload" not in diagnosis(gateway.config_path)[1]


def test_servers_are_asked_as_the_pool_does_it(place):
    """With TLS, at Unix sockets, as a user who may not do all, at a place that nobody has named yet."""
    authority = Authority(place.directory)
    pair = authority.sign(f"DNS:localhost,IP:{HOST}")
    port = free_port()
    secured = place.redis("--tls-port", port, "--tls-cert-file", pair.certificate, "--tls-key-file",
                          pair.key, "--tls-ca-cert-file", authority.ca, "--tls-auth-clients", "no")
    trusted = {"redis": "true", "server_tls": f"{{ca: {authority.ca}}}", **LIMITS}
    path = written(place, {**trusted, "servers": [f"localhost:{port}:1 s0"]})
    assert diagnosis(path)[:2] == (0, {})
    path = written(place, {**trusted, "servers": [f"localhost:{secured.port}:1 s0"]})
    status, findings, _ = diagnosis(path)
    assert (status, list(findings)) == (2, ["reachable"])

    path = written(place, {"redis": "true", **LIMITS, "servers": [f"{secured.path}:1 s0"]})
    assert diagnosis(path)[:2] == (0, {})
    secured.call("ACL", "SETUSER", "app", "on", ">word", "~*", "+@all", "-info")
    path = written(place, {"redis": "true", "server_auth": "app:word", **LIMITS,
                           "servers": server_lines([secured])})
    status, findings, _ = diagnosis(path)
    assert (status, list(findings)) == (0, ["questions"])
    assert "NOPERM" in findings["questions"][0]["what"]

    path = written(place, {"redis": "true", "sentinels": f"[{HOST}:{free_port()}]", **LIMITS,
                           "servers": ["{name: s1, sentinel: mymaster}"]})
    status, findings, looked_at = diagnosis(path)
    assert status == 2 and "unknown_address" in findings and looked_at["servers"] == 0


def test_a_server_that_is_nearly_too_slow(place):
    redis = place.redis()
    gateway = place.cashew(pool(*server_lines([redis]), **LIMITS), SETTINGS)
    gateway.wait_serving()

    def slow():
        redis.call("CLIENT", "PAUSE", "1000")
        gateway.call("GET", "key")
        return diagnosis(gateway.config_path)[1].get("latency")

    [finding] = wait_until(slow, "it is seen")
    assert "timeout is 2000" in finding["what"] and str(redis.port) in finding["place"]


@pytest.mark.parametrize("text, status", [(None, 3), ("alpha: [", 2), ("alpha:\n  listen: x\n", 2)],
                         ids=["missing", "no YAML", "invalid"])
def test_files_that_cannot_be_used(place, text, status):
    path = place.directory / "bad.yml"
    if text is not None:
        path.write_text(text)
    done = doctor(path)
    assert done.returncode == status and "not looked at: " in done.stdout, done.stdout
    assert ("error: " in done.stdout) == (status == 2)


def hang_up_on_all(listener):
    with contextlib.suppress(OSError):
        while True:
            listener.accept()[0].close()


def test_an_instance_that_is_named_must_answer(place):
    path = written(place, {"redis": "true", **LIMITS, "servers": server_lines([place.redis()])})
    assert diagnosis(path)[0] == 0
    assert diagnosis(path, "--control", str(place.directory / "none.sock"))[0] == 3
    # One that runs and does not answer; a socket that nobody listens at is none.
    silent = place.directory / "silent.sock"
    path.write_text(f"global: {{control_socket: {silent}}}\npools:\n" + "".join(
        f"  {line}\n" for line in path.read_text().splitlines()))
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(silent))
        assert diagnosis(path)[0] == 0
        listener.listen()
        listener.settimeout(PATIENCE)
        threading.Thread(target=hang_up_on_all, args=(listener,), daemon=True).start()
        status, _, looked_at = diagnosis(path)
    assert status == 3 and "silent.sock" in looked_at["not_looked_at"][0]
