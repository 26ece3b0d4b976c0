"""The README's first command: what it prints can be typed, and Ctrl-C ends all that it started."""

import contextlib
import os
import re
import signal
import subprocess
import time

import pytest

from harness import CASHEW, ROOT, alive, wait_until


def descendants(session_leader):
    """Processes started by the demo: its children, and theirs, in whatever session they are."""
    found = []
    for line in subprocess.run(["ps", "-eo", "pid=,ppid="], capture_output=True, text=True,
                               check=True).stdout.splitlines():
        pid, parent = map(int, line.split())
        if parent == session_leader or parent in found:
            found.append(pid)
    return found


def shell(line):
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=20,
                          stdin=subprocess.DEVNULL)
    return done.stdout + done.stderr


@pytest.mark.alone
def test_the_demo_does_what_it_says(place):
    output = place.directory / "demo.out"
    with open(output, "wb") as out:
        demo = subprocess.Popen(
            [ROOT / "scripts" / "demo"], stdin=subprocess.DEVNULL, stdout=out, stderr=out,
            env={**os.environ, "CASHEW": CASHEW}, start_new_session=True,
            # A shell that runs this in the background has it ignored, and a script cannot undo that.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))
    started = []
    try:
        wait_until(lambda: "Ctrl-C" in output.read_text() or demo.poll() is not None,
                   "the demo is up", 60)
        text = output.read_text()
        assert demo.poll() is None, text
        started = descendants(demo.pid)
        assert len(started) >= 7
        lines = [line.strip() for line in text.splitlines() if line.startswith("    ")]
        names = next(line for line in lines if line.startswith("cashew="))

        def type_in(start, which=0):
            """What the line that starts so prints, typed where the names are known."""
            return shell(f"{names}\n{[line for line in lines if line.startswith(start)][which]}")

        assert type_in("redis-cli") == "OK\n"
        assert type_in("redis-cli", 1).split() == ["4", "3", "2", "1"]
        assert [line.split(": ")[1] for line in type_in("for p in").splitlines()] == [
            "apple", "cherry", "grape", "walnut"]
        said = type_in("printf")
        assert "STORED" in said and "VALUE colour 0 3" in said and "red" in said
        said = type_in("$cashew status")
        assert "redis" in said and "memcached" in said, said
        assert "cashew_request_duration_seconds_count" in type_in("curl")
        said = type_in("sed")
        assert "timeout" in said, said
        assert "cashew" in type_in("tail").lower()
        said = type_in("redis-benchmark")
        assert "Error" not in said and said.count("requests per second") == 2, said

        kill = next(line for line in lines if line.startswith("kill "))
        shell(kill)
        wait_until(lambda: not alive(int(kill.split()[-1])), "the server ends")
        replies = type_in("for key").split("\n")
        assert "Connection refused" in replies[0]
        assert [line for line in replies if line.isdigit()] == ["3", "4", "5"], replies
        type_in("$cashew status", 1)
        port = re.search(r"--port (\d+)", next(
            line for line in lines if line.startswith("redis-server")))[1]
        type_in("redis-server")
        wait_until(lambda: shell(f"redis-cli -p {port} PING") == "PONG\n", "the server is back")
        wait_until(lambda: "refused" not in type_in("for key", 1), "its keys are served")
        directory = re.search(r"its configuration is (.*)/cashew.yml", text)[1]
    finally:
        # As the terminal does it: to the whole group in the foreground.
        os.killpg(demo.pid, signal.SIGINT)
        try:
            status = demo.wait(30)
        except subprocess.TimeoutExpired:
            demo.kill()
            for pid in started:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            raise
    assert status == 0, output.read_text()
    for pid in started:
        assert not alive(pid), f"{pid} is left behind"
    assert not os.path.exists(directory)
