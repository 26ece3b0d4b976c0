"""`cashew top` in a terminal, by tmux."""

import os
import re
import shutil
import signal
import subprocess
import time

import pytest

from harness import CASHEW, HOST, server_lines, wait_until

pytestmark = pytest.mark.skipif(not shutil.which("tmux"), reason="tmux is not there")


class Screen:
    """A terminal of 80 columns and 24 rows in which a command runs."""

    def __init__(self, directory, command, environment=(), size=(80, 24)):
        self.socket = directory / f"tmux-{time.monotonic_ns()}"
        self.marker = "top has ended"
        settings = " ".join(f"'{item}'" for item in ("LANG=C.UTF-8", "LC_ALL=C.UTF-8", *environment))
        words = " ".join(f"'{word}'" for word in command)
        script = f"env -u NO_COLOR {settings} {words}; echo {self.marker} with $?; exec sleep 1000"
        self.tmux("-f", "/dev/null", "new-session", "-d", "-x", size[0], "-y", size[1], "sh", "-c", script)

    def tmux(self, *words):
        done = subprocess.run(["tmux", "-S", str(self.socket), *map(str, words)], stdin=subprocess.DEVNULL,
                              capture_output=True, text=True, timeout=20)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def text(self, *options):
        return self.tmux("capture-pane", "-p", *options)

    def press(self, *keys):
        self.tmux("send-keys", *keys)

    def resize(self, width, height):
        self.tmux("resize-window", "-x", width, "-y", height)

    def shows(self, *parts):
        """Waits until all of that is there; returns the screen."""
        def all_there():
            text = self.text()
            return text if all(part in text for part in parts) else None

        try:
            return wait_until(all_there, f"{parts} on the screen")
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.text()}") from None

    def ends(self, status=0):
        """Top is over, and the terminal is as it was before."""
        text = self.shows(f"{self.marker} with {status}")
        assert "REQ/S" not in text
        # What is typed is seen again, so that the terminal is not raw any more.
        self.press("-l", "typed")
        self.shows("typed")

    def close(self):
        subprocess.run(["tmux", "-S", str(self.socket), "kill-server"], capture_output=True, timeout=20)


@pytest.fixture
def world(place):
    servers = [place.redis() for _ in range(2)]
    pools = {
        "alpha": {"redis": True, "servers": server_lines(servers, ["one", "two"])},
        "beta": {"redis": True, "servers": server_lines([place.redis()], ["three"])},
    }
    gateway = place.cashew(pools, {"worker_processes": 2})
    gateway.servers = servers
    return gateway


def top(place, gateway, *arguments, environment=(), **named):
    command = [CASHEW, "top", "-c", str(gateway.config_path), *arguments]
    return place.keep(Screen(place.directory, command, environment, **named))


def write(gateway, pool="alpha", count=30):
    with gateway.connect(pool) as conn:
        for n in range(count):
            conn.send(b"*3\r\n$3\r\nSET\r\n$%d\r\nk%d\r\n$1\r\nv\r\n" % (1 + len(str(n)), n))
            conn.reply()


def once(gateway, *arguments, environment=None):
    words = [CASHEW, "top", "--once", *(arguments or ("-c", str(gateway.config_path)))]
    return subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=30,
                          env={**os.environ, "COLUMNS": "120", **(environment or {})})


def line_of(text, name):
    return next(line for line in text.splitlines() if line.split()[:1] == [name] or line.startswith(f"> {name} "))


# --------------------------------------------------------------------------------------- a terminal


def test_pools_workers_and_latencies_are_shown_and_keys_do_their_work(place, world):
    write(world)
    write(world, "beta")
    screen = top(place, world)
    text = screen.shows("cashew ", "POOL", "alpha", "beta", "2 of 2 up", "WORKER", "q: quit")
    assert text.splitlines()[1].split()[:3] == ["POOL", "REQ/S", "ERR/S"]
    assert all(str(pid) in text for pid in world.workers())
    # It is there live: bars come as time goes on.
    wait_until(lambda: write(world) or re.search(r"p99 .*[um]s.*[▁▂▃▄▅▆▇█]", screen.text()), "bars")
    assert re.search(r"^> beta", screen.text(), re.M), screen.text()
    screen.press("j")
    screen.shows("> alpha")
    screen.press("Up")
    screen.shows("> beta")
    screen.press("Down", "Enter")
    text = screen.shows("SERVER", "> one", "two", "well", f"{HOST}:{world.servers[0].port}")
    assert "POOL" not in text and f"one at {HOST}" in text
    screen.press("k", "j", "j")
    screen.shows("> two")
    screen.press("Escape")
    screen.shows("> alpha", "POOL")
    for order in ("requests", "errors", "p99", "state", "the file"):
        screen.press("s")
        screen.shows(f"s: by {order}", "> alpha")
    screen.press("?")
    screen.shows("Any key goes back.", "Esc, Left")
    screen.press("x")
    screen.shows("POOL")
    screen.press("q")
    screen.ends()


def test_a_killed_server_is_seen_in_both_views(place, world):
    write(world)
    screen = top(place, world)
    screen.shows("2 of 2 up")
    world.servers[1].stop()
    write(world)
    text = screen.shows("1 of 2 up, 1 DOWN", "NOT WELL", "alpha/two", "out: Connection refused")
    assert line_of(text, "alpha/two")
    screen.press("j", "Enter", "j")
    screen.shows("> two", f"two at {HOST}:{world.servers[1].port}: out: Connection refused", "last error")
    world.servers[1].start()
    wait_until(lambda: write(world) or re.search(r"> two +well", screen.text()), "it is back")
    screen.press("Escape")
    text = screen.shows("POOL")
    wait_until(lambda: "DOWN" not in screen.text(), "nothing is down")


def test_a_failover_is_seen(place):
    master, replica = place.redis(), place.redis()
    replica.call("REPLICAOF", HOST, master.port)
    servers = server_lines([master, replica], ["master", "r1"])
    gateway = place.cashew({"alpha": {"redis": True, "failover_wait": 30000, "servers": servers}}, {"worker_processes": 1})
    write(gateway)
    screen = top(place, gateway)
    # Reads go to the replica once it is known to have everything.
    wait_until(lambda: gateway.call("GET", "k1") and "2 of 2 up" in screen.text(), "both are up")
    screen.press("Enter")
    wait_until(lambda: re.search(r"master +primary +well", screen.text())
               and re.search(r"r1 +replica +well", screen.text()), "their roles")
    master.stop()
    conn = place.keep(gateway.connect())
    conn.send(b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$1\r\nv\r\n")
    wait_until(lambda: re.search(r"master .*(out|suspect)", screen.text()), "the primary is down")
    replica.call("REPLICAOF", "NO", "ONE")
    done = gateway.order("failover", "alpha", "r1")
    assert done.returncode == 0, done.stderr
    wait_until(lambda: re.search(r"r1 +primary +well", screen.text()), "the other one is it")
    assert conn.reply() == "OK"
    screen.press("C-c")
    screen.ends()


def test_any_size_will_do(place, world):
    screen = top(place, world)
    screen.shows("WORKER")
    screen.resize(40, 10)
    text = screen.shows("> beta")
    assert len(text.splitlines()) <= 10 and max(map(len, text.splitlines())) <= 40
    screen.resize(130, 40)
    screen.shows("s: by the file", "WORKER")
    screen.resize(10, 3)
    screen.resize(80, 24)
    screen.shows("WORKER", "q: quit")


#: Escape sequences that choose a colour.
COLOUR = re.compile(r"\x1b\[(?:[0-9;]*;)?(?:3[0-7]|9[0-7]|38)[;m]")


@pytest.mark.parametrize("environment", [("NO_COLOR=1",), ("TERM=vt100",), ("TERM=screen", "NO_COLOR=yes", "LC_ALL=C")])
def test_without_colours_words_say_it_all(place, world, environment):
    world.servers[1].stop()
    write(world)
    screen = top(place, world, environment=environment)
    screen.shows("1 DOWN", "out: Connection refused", "> beta")
    assert not COLOUR.search(screen.text("-e"))
    if "LC_ALL=C" in environment:
        assert screen.text().isascii()


def test_colours_are_there_otherwise(place, world):
    world.servers[1].stop()
    write(world)
    screen = top(place, world, environment=("TERM=screen-256color",))
    screen.shows("1 DOWN")
    assert COLOUR.search(screen.text("-e"))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_signals_leave_the_terminal_as_it_was(place, world, number):
    screen = top(place, world)
    screen.shows("WORKER")
    pane = int(screen.tmux("display-message", "-p", "#{pane_pid}"))
    [child] = [int(pid) for pid in open(f"/proc/{pane}/task/{pane}/children").read().split()]
    os.kill(child, number)
    screen.ends()


def test_it_ends_with_its_terminal(place, world):
    screen = top(place, world)
    screen.shows("WORKER")
    pane = int(screen.tmux("display-message", "-p", "#{pane_pid}"))
    [child] = [int(pid) for pid in open(f"/proc/{pane}/task/{pane}/children").read().split()]
    screen.close()
    wait_until(lambda: not os.path.exists(f"/proc/{child}"), "it has ended")


def test_a_gateway_that_is_gone_is_told_of_until_it_is_back(place, world):
    screen = top(place, world)
    screen.shows("WORKER")
    world.process.stop()
    screen.shows("no answer for", "Connection refused", "WORKER")
    world.process.start()
    wait_until(lambda: "no answer" not in screen.text(), "it is back")


# --------------------------------------------------------------------------------------- for scripts


def test_once_prints_a_frame_of_plain_text(world):
    world.servers[1].stop()
    write(world)
    done = once(world)
    assert done.returncode == 0 and not done.stderr, done.stderr
    text = done.stdout
    assert "\x1b" not in text and {char for char in text if not char.isascii()} <= set("…×‰"), text
    assert text.startswith("cashew ") and "1 of 2 up, 1 DOWN" in text
    for name in ("one", "two", "three", "alpha", "beta"):
        assert line_of(text, name)
    assert "out: Connection refused" in line_of(text, "two")
    assert "WORKER" in text
    narrow = once(world, environment={"COLUMNS": "60"}).stdout
    assert "out" in line_of(narrow, "two")
    by_url = once(world, "--url", f"http://{HOST}:{world.stats_port}/")
    assert by_url.returncode == 0 and "alpha" in by_url.stdout


def test_what_cannot_be_shown_is_told(place, world):
    for arguments in (["--url", "http://127.0.0.1:1/"], ["--url", "https://x/"], ["-c", "/none.yml"]):
        done = once(world, *arguments)
        assert done.returncode == 1 and done.stderr.startswith("cashew: ") and not done.stdout, done
    done = subprocess.run([CASHEW, "top", "-c", str(world.config_path)], stdin=subprocess.DEVNULL,
                          capture_output=True, text=True, timeout=30)
    assert done.returncode == 1 and "--once" in done.stderr
    # Another server than Cashew's.
    redis = place.redis()
    done = once(world, "--url", f"http://{HOST}:{redis.port}")
    assert done.returncode == 1 and "is it the stats port?" in done.stderr, done.stderr


def test_the_stats_port_is_found_where_the_instance_has_it(place):
    """On the command line as well as in the file."""
    server = place.redis()
    for flags in (True, False):
        gateway = place.cashew({"alpha": {"redis": True, "servers": server_lines([server])}}, {"worker_processes": 1},
                               flags=flags)
        done = once(gateway)
        assert done.returncode == 0 and "alpha" in done.stdout, done.stderr
        gateway.stop()
