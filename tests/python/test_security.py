"""The unit's sandbox, core dumps, and that no secret is told anywhere."""

import base64
import os
import re
import shutil
import subprocess
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from certificates import Authority
from harness import HOST, ROOT, Conn, free_port, read_raw_stats, server_lines, wait_until

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


#: Of all that strace shows of a gateway that serves with both engines, is resized and upgraded, those that are not in
#: every program.
CALLS = {
    "accept4", "bind", "clone3", "epoll_pwait2", "execve", "fchmod", "io_uring_enter", "io_uring_register", "io_uring_setup",
    "kill", "listen", "memfd_create", "mlock", "pidfd_open", "prctl", "prlimit64", "recvmsg", "sched_setaffinity", "seccomp",
    "sendmsg", "setsockopt", "shutdown", "timerfd_create", "umask", "unlink", "wait4", "waitid",
}


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd-analyze")
def test_the_unit_lets_all_system_calls_through_that_are_made():
    def calls(*groups):
        done = subprocess.run(["systemd-analyze", "syscall-filter", *groups], capture_output=True, text=True, check=True)
        words = {line.strip() for line in done.stdout.splitlines() if line.startswith("    ")}
        for group in [word for word in words if word.startswith("@")]:
            words |= calls(group)
        return words

    filters = re.findall(r"^SystemCallFilter=(~?)(.*)$", UNIT.read_text(), re.MULTILINE)
    assert [sign for sign, _ in filters] == ["", "~"]
    wanted = filters[0][1].split()
    groups = [word for word in wanted if word.startswith("@")]
    allowed = (calls(*groups) | set(wanted) | calls("@default")) - calls(*filters[1][1].split())
    assert CALLS <= allowed, CALLS - allowed


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


def test_the_statistics_want_their_token(place):
    pools = {"alpha": {"redis": True, "servers": server_lines([place.redis()])}}
    secret = place.directory / "token"
    secret.write_text("SecretOfStats\n")
    secret.chmod(0o600)
    gateway = place.cashew(pools, {"worker_processes": 1, "stats_token": f"{{file: {secret}}}"})
    gateway.wait_serving()

    def ask(path, shown=None):
        headers = {"Authorization": shown} if shown else {}
        request = urllib.request.Request(f"http://{HOST}:{gateway.stats_port}{path}", headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=10) as answer:
                return answer.status, answer.headers, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.headers, error.read().decode()

    assert ask("/healthz")[0] == ask("/readyz")[0] == 200
    basic = "Basic " + base64.b64encode(b"ann:SecretOfStats").decode()
    for path in ("/", "/stats", "/metrics", "/state.json", "/hot.json", "/slow.json", "/events.json", "/nothing"):
        status, headers, text = ask(path)
        assert (status, headers["WWW-Authenticate"]) == (401, 'Basic realm="cashew"') and "alpha" not in text
        assert ask(path, "Bearer SecretOfOther")[0] == 401
        assert ask(path, "Bearer SecretOfStats")[0] == ask(path, basic)[0] == (404 if path == "/nothing" else 200)
    # As nutcracker's.
    assert read_raw_stats(gateway.stats_port)["alpha"]["client_connections"] == 0
    words = [gateway.process.command[0], "hot", "-c", str(gateway.config_path)]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    words = [gateway.process.command[0], "top", "--once", "--url", f"http://{HOST}:{gateway.stats_port}"]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode != 0 and "CASHEW_STATS_TOKEN" in done.stderr
    done = subprocess.run(words, capture_output=True, text=True, env={**os.environ, "CASHEW_STATS_TOKEN": "SecretOfStats"})
    assert done.returncode == 0, done.stderr
    secret.write_text("SecretOfLater\n")
    told = gateway.reload()
    wait_until(lambda: ask("/stats", "Bearer SecretOfLater")[0] == 200, "the new one is wanted")
    assert ask("/stats", "Bearer SecretOfStats")[0] == 401
    assert "SecretOf" not in gateway.log() + str(told)


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
    for path in ("/stats", "/metrics", "/state.json", "/events.json", "/slow.json", "/hot.json", "/history.json?pool=alpha", "/"):
        with urllib.request.urlopen(f"http://{HOST}:{gateway.stats_port}{path}", timeout=10) as answer:
            told.append(answer.read().decode(errors="replace"))
    told.append(gateway.log())
    for process in Path(f"/proc/{gateway.process.pid}/task/{gateway.process.pid}/children").read_text().split():
        told.append(Path(f"/proc/{process}/cmdline").read_bytes())
        told.append(Path(f"/proc/{process}/environ").read_bytes())
    assert len(told) > 25
    for text in map(str, told):
        assert "SecretOf" not in text and key not in text, text
