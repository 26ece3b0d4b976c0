"""What the processes that serve have given up."""

import contextlib
import os
import re
import signal
from pathlib import Path

import pytest

from harness import server_lines, wait_until


def status(process):
    text = Path(f"/proc/{process}/status").read_text()
    return dict(re.findall(r"^(\w+):\s*(.*)$", text, re.MULTILINE))


def children(gateway):
    found = [int(it) for it in Path(f"/proc/{gateway.process.pid}/task/{gateway.process.pid}/children").read_text().split()]
    lines = {it: Path(f"/proc/{it}/cmdline").read_bytes().split(b"\0") for it in found}
    # One that has ended has none until the master asks for it.
    return {words[1].decode(): it for it, words in lines.items() if len(words) > 1}


@pytest.mark.parametrize("user", ["", "nobody"])
def test_processes_that_serve_have_given_up_what_they_do_not_need(place, user):
    master, replica = place.redis(), place.redis()
    pool = {"redis": True, "reads": "any",
            "servers": [f"{{name: g, primary: 127.0.0.1:{master.port}, replicas: [127.0.0.1:{replica.port}]}}"]}
    settings = {"worker_processes": 2, **({"user": user} if user else {})}
    gateway = place.cashew({"alpha": pool}, settings)
    gateway.wait_serving()
    assert gateway.call("SET", "a", "1") == "OK"

    def are_begun():
        found = children(gateway)
        return {"worker", "admin", "discovery"} <= set(found) and all(status(it)["Seccomp"] == "2" for it in found.values())

    wait_until(are_begun, "all are there")
    is_root = status(gateway.process.pid)["Uid"].split()[0] == "0"
    if is_root and user:
        wait_until(lambda: all(status(it)["Uid"].split()[0] != "0" for it in children(gateway).values()), "they are nobody")
    for role, process in children(gateway).items():
        for thread in Path(f"/proc/{process}/task").iterdir():
            it = status(f"{process}/task/{thread.name}")
            assert (it["NoNewPrivs"], it["Seccomp"]) == ("1", "2"), (role, it["Name"])
            if is_root:
                assert int(it["CapBnd"], 16) == 0, role
                # CAP_DAC_OVERRIDE, and threads from before the user was known may have CAP_SETUID and CAP_SETGID, which
                # are of no use any more.
                assert int(it["CapEff"], 16) & ~0b1100_0010 == 0, (role, it["CapEff"])
                if user:
                    assert int(it["CapPrm"], 16) == 0 and it["Uid"].split()[0] != "0", role
    assert "could not give up" not in gateway.log()
    # A worker that comes back is the same, and the master can start it.
    worker = children(gateway)["worker"]
    os.kill(worker, signal.SIGKILL)

    def is_served():
        with contextlib.suppress(OSError, EOFError):
            return worker not in children(gateway).values() and gateway.call("GET", "a") == b"1"

    wait_until(is_served, "it is served")


@pytest.mark.certain
def test_threads_of_one_process_become_another_user_once(place):
    server = place.redis()
    for _ in range(5):
        gateway = place.cashew({"alpha": {"redis": True, "servers": server_lines([server])}},
                               {"worker_processes": 0, "user": "nobody"})
        assert gateway.call("SET", "a", "1") == "OK"
        assert status(gateway.process.pid)["Uid"].split()[0] != "0" or os.geteuid() != 0
        gateway.stop()
