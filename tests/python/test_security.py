"""The unit's sandbox, core dumps, and that no secret is told anywhere."""

import os
import re
import shutil
import subprocess
import urllib.request
from pathlib import Path

import pytest

from certificates import Authority
from harness import HOST, ROOT, Conn, free_port, server_lines, wait_until

UNIT = ROOT / "contrib" / "cashew.service"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd-analyze")
def test_the_units_sandbox_is_good():
    done = subprocess.run(["systemd-analyze", "security", "--offline=true", "--threshold=20", str(UNIT)],
                          capture_output=True, text=True, env={**os.environ, "SYSTEMD_COLORS": "0"})
    if "offline" in done.stderr and "nrecognized" in done.stderr:
        pytest.skip("this systemd-analyze is too old")
    assert done.returncode == 0, done.stdout + done.stderr
    level = float(re.search(r"exposure level for cashew.service: ([\d.]+)", done.stdout).group(1))
    stated = float(re.search(r"`systemd-analyze security` gives that (\d+\.\d+)", (ROOT / "docs/security.md").read_text()).group(1))
    assert level <= stated + 0.2, "docs/security.md has another figure"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None or shutil.which("strace") is None,
                    reason="there is no systemd-analyze or no strace")
@pytest.mark.parametrize("io_engine", ["epoll", "uring"])
def test_the_unit_lets_all_system_calls_through_that_are_made(place, io_engine):
    def calls(*groups):
        done = subprocess.run(["systemd-analyze", "syscall-filter", *groups], capture_output=True, text=True, check=True)
        words = {line.strip() for line in done.stdout.splitlines() if line.startswith("    ")}
        for group in [word for word in words if word.startswith("@")]:
            words |= calls(group)
        return words

    filters = re.findall(r"^SystemCallFilter=(~?)(.*)$", UNIT.read_text(), re.MULTILINE)
    assert [sign for sign, _ in filters] == ["", "~"]
    allowed = (calls(*filters[0][1].split()) | calls("@default")) - calls(*filters[1][1].split())
    gateway = place.cashew({"alpha": {"redis": True, "servers": server_lines([place.redis()])}},
                           {"worker_processes": 2, "worker_cpu_affinity": "auto", "io_engine": io_engine})
    gateway.wait_serving()
    trace = place.directory / "calls"
    # What children do that start from here on.
    with subprocess.Popen(["strace", "-f", "-c", "-o", str(trace), "-p", str(gateway.process.pid)],
                          stderr=subprocess.PIPE, text=True) as tracer:
        if "ttach" not in tracer.stderr.readline():
            pytest.skip("strace cannot attach")
        gateway.configure(worker_processes=3)
        gateway.reload()
        assert gateway.call("SET", "a", "1") == "OK"
        gateway.order("upgrade")
        assert gateway.call("GET", "a") == b"1"
        tracer.terminate()
        tracer.communicate(timeout=30)
    made = set(re.findall(r"^ *[\d.]+ .* (\w+)$", trace.read_text(), re.MULTILINE)) - {"syscall", "total"}
    assert {"clone3", "execve"} & made and "recvmsg" in made, made
    # As root alone: becoming another user, and giving up capabilities.
    as_root = {"capset", "setuid", "setgid", "setgroups", "setresuid", "setresgid"}
    assert made - allowed <= as_root, made - allowed


@pytest.mark.skipif(not Path("/proc/self/coredump_filter").exists(), reason="the kernel has no such filter")
@pytest.mark.parametrize("workers", [0, 2])
def test_core_dumps_have_no_memory(place, workers):
    gateway = place.cashew({"alpha": {"redis": True, "servers": server_lines([place.redis()])}}, {"worker_processes": workers})
    if workers:
        gateway.wait_serving()

    def processes():
        pid = gateway.process.pid
        return [pid, *map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())]

    if workers:
        wait_until(lambda: len(processes()) >= 4, "all are there")
    for process in processes():
        assert int(Path(f"/proc/{process}/coredump_filter").read_text(), 16) == 0
    if workers:
        gateway.order("upgrade")
        assert int(Path(f"/proc/{gateway.pid}/coredump_filter").read_text(), 16) == 0


def test_no_secret_is_told(place):
    """Every secret that a configuration can have, and every place that tells something."""
    server = place.redis("--requirepass", "SecretOfServers")
    authority = Authority(place.directory)
    pair = authority.sign(f"DNS:localhost,IP:{HOST}")
    key = pair.key.read_text().splitlines()[1]
    pools = {
        "alpha": {"redis": True, "servers": server_lines([server]), "server_auth": "SecretOfServers",
                  "users": '{ann: "on >SecretOfAnn ~* +@all"}', "command_policy": "admin",
                  "tls": f"{{certificate: {pair.certificate}, key: {pair.key}}}", "tls_listen": f"{HOST}:{free_port()}"},
        "beta": {"servers": server_lines([place.memcached()]), "client_auth": "bob:SecretOfBob"},
        "gamma": {"redis": True, "servers": server_lines([server]), "redis_auth": "SecretOfServers"},
    }
    gateway = place.cashew(pools, {"worker_processes": 1, "log_level": 11})
    gateway.wait_serving()
    told = []
    with Conn(gateway.addresses["alpha"]) as conn:
        told.append(conn.error("AUTH", "ann", "SecretOfGuessing"))
        conn.call("AUTH", "ann", "SecretOfAnn")
        for words in (["ACL", "LIST"], ["ACL", "LOG"], ["ACL", "GETUSER", "ann"], ["CLIENT", "LIST"], ["SLOWLOG", "GET"], ["INFO"]):
            try:
                told.append(conn.call(*words))
            except Exception as error:
                told.append(error)
    with Conn(gateway.addresses["gamma"]) as conn:
        told.append(conn.error("AUTH", "SecretOfGuessing"))
        told.append(conn.error("HELLO", "3", "AUTH", "default", "SecretOfGuessing"))
    with Conn(gateway.addresses["beta"]) as conn:
        conn.send(b"set a 0 0 20\r\nbob SecretOfGuessing\r\n")
        told.append(conn.read_line())
    changed = {**pools, "gamma": {**pools["gamma"], "redis_auth": "SecretOfLater"}}
    gateway.configure(changed)
    told.append(gateway.reload("--dry-run"))
    told.append(gateway.reload())
    bad = {**changed, "gamma": {**changed["gamma"], "redis_auth": "SecretOfLater", "server_auth": "[SecretOf: Mistakes]"}}
    gateway.configure(bad)
    told.append(gateway.refused_reload())
    gateway.configure(changed)
    told.append(gateway.order("status"))
    for path in ("/stats", "/metrics", "/state.json", "/events.json", "/slow.json", "/hot.json", "/history.json", "/"):
        with urllib.request.urlopen(f"http://{HOST}:{gateway.stats_port}{path}", timeout=10) as answer:
            told.append(answer.read().decode(errors="replace"))
    told.append(gateway.log())
    for process in Path(f"/proc/{gateway.process.pid}/task/{gateway.process.pid}/children").read_text().split():
        told.append(Path(f"/proc/{process}/cmdline").read_bytes())
        told.append(Path(f"/proc/{process}/environ").read_bytes())
    assert len(told) > 25
    for text in map(str, told):
        assert "SecretOf" not in text and key not in text, text
