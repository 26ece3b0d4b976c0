"""Redis's own command-line client through the gateway: as a filter, at a terminal, and its tools."""

import json
import os
import pty
import select
import signal
import subprocess
import time

import pytest

from harness import HOST, resp, server_lines, wait_until


@pytest.fixture(scope="module")
def gateway(module_place):
    servers = [module_place.redis("--enable-protected-configs", "yes") for _ in range(3)]
    pool = {"redis": True, "hash_tag": '"{}"', "servers": server_lines(servers)}
    gateway = module_place.cashew({"alpha": pool}, {"worker_processes": 2})
    gateway.servers = servers
    return gateway


@pytest.fixture
def empty(gateway):
    for server in gateway.servers:
        server.reset()
    return gateway


def command(gateway, *words):
    return ["redis-cli", "-h", HOST, "-p", str(gateway.address), *map(str, words)]


def cli(gateway, *words, given="", seconds=60):
    """What it prints when it is no terminal; it must end well."""
    done = subprocess.run(command(gateway, *words), input=given, capture_output=True, timeout=seconds,
                          text=not isinstance(given, bytes))
    assert done.returncode == 0, (done.stdout, done.stderr)
    return done.stdout


class Terminal:
    """redis-cli at a terminal, as a person has it."""

    def __init__(self, gateway, *words):
        self.child, self.terminal = pty.fork()
        if self.child == 0:
            os.environ["TERM"] = "dumb"
            os.execvp("redis-cli", command(gateway, *words))
        self.text = ""

    def type(self, line):
        self.text = ""
        os.write(self.terminal, line.encode() + b"\n")

    def read_until(self, wanted, seconds=20):
        deadline = time.monotonic() + seconds
        while wanted not in self.text:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self.terminal], [], [], left)[0]:
                raise AssertionError(f"{wanted!r} is not within {seconds} s in {self.text!r}")
            self.text += os.read(self.terminal, 65536).decode(errors="replace")
        return self.text

    def ended(self):
        wait_until(lambda: os.waitpid(self.child, os.WNOHANG)[0], "redis-cli ends")
        self.child = None

    def close(self):
        os.close(self.terminal)
        if self.child:
            os.kill(self.child, signal.SIGKILL)
            os.waitpid(self.child, 0)


@pytest.fixture
def terminal(empty, place):
    """Opens terminals, which are closed with the test."""
    def open_terminal(*words):
        opened = Terminal(empty, *words)
        place.keep(opened)
        return opened
    return open_terminal


@pytest.mark.parametrize("protocol", ["-2", "-3"])
def test_commands_as_words_and_as_lines(empty, protocol):
    assert cli(empty, protocol, "set", "a", "1") == "OK\n"
    assert cli(empty, protocol, "-e", "incrby", "a", "41") == "42\n"
    assert cli(empty, protocol, "-x", "set", "piped", given="from a file") == "OK\n"
    lines = "rpush l a b c\nlrange l 0 -1\nhset h f v\nhgetall h\nget piped\n"
    pair = "f v" if protocol == "-3" else "f\nv"
    assert cli(empty, protocol, given=lines) == f"3\na\nb\nc\n1\n{pair}\nfrom a file\n"
    failed = subprocess.run(command(empty, protocol, "-e", "incr", "l"), capture_output=True, text=True)
    assert failed.returncode == 1 and "WRONGTYPE" in failed.stdout + failed.stderr


def test_resp3_has_its_own_shapes(empty):
    cli(empty, "hset", "h", "f", "1.5")
    cli(empty, "zadd", "z", "1.5", "m")
    assert json.loads(cli(empty, "--json", "hgetall", "h")) == {"f": "1.5"}
    assert json.loads(cli(empty, "--json", "zscore", "z", "m")) == 1.5
    assert json.loads(cli(empty, "-2", "--json", "hgetall", "h")) == ["f", "1.5"]
    assert "proto" in cli(empty, "-3", "hello")


def test_a_repeated_command_and_a_database(empty):
    assert cli(empty, "-r", "5", "incr", "n") == "1\n2\n3\n4\n5\n"
    assert cli(empty, "-n", "3", "set", "n", "of three") == "OK\n"
    assert cli(empty, "get", "n") == "5\n"
    assert cli(empty, "-n", "3", "get", "n") == "of three\n"


def test_pipe_takes_raw_requests(empty):
    requests = b"".join(resp("SET", f"pipe:{n}", "v" * 100) for n in range(20_000))
    said = cli(empty, "--pipe", "--pipe-timeout", "30", given=requests).decode()
    assert "errors: 0, replies: 20000" in said
    assert sum(server.call("DBSIZE") for server in empty.servers) == 20_000
    assert all(server.call("DBSIZE") > 0 for server in empty.servers)
    said = subprocess.run(command(empty, "--pipe"), capture_output=True, timeout=60,
                          input=resp("SET", "a", 1) + resp("LPUSH", "a", 1) + resp("SET", "b", 1))
    assert b"errors: 1, replies: 3" in said.stdout


def test_scan_lists_every_key_once(empty):
    keys = {f"scan:{n}" for n in range(2000)}
    for each in keys:
        empty.call("SET", each, "v")
    empty.call("SADD", "a-set", "m")
    listed = cli(empty, "--scan").split()
    assert sorted(listed) == sorted(keys | {"a-set"})
    assert cli(empty, "--scan", "--pattern", "a-*").split() == ["a-set"]
    assert int(cli(empty, "dbsize")) == 2001


def test_tools_that_walk_the_keys(empty):
    for n in range(200):
        empty.call("SET", f"small:{n}", "v")
    empty.call("SET", "the-big-one", "v" * 5000)
    empty.call("RPUSH", "the-long-one", *range(50))
    said = cli(empty, "--bigkeys")
    assert "'\"the-big-one\"' has 5000 bytes" in said
    assert "'\"the-long-one\"' has 50 items" in said
    assert "Sampled 202 keys" in said
    said = cli(empty, "--memkeys")
    assert "Sampled 202 keys" in said and "the-big-one" in said


def test_latency_and_rolling_statistics(empty):
    low, _high, average, samples = map(float, cli(empty, "--latency").split())
    assert samples > 10 and low <= average < 1000
    stat = subprocess.Popen(command(empty, "--stat", "-i", "0.1"), stdout=subprocess.PIPE, text=True)
    try:
        lines = [stat.stdout.readline() for _ in range(4)]
    finally:
        stat.kill()
        stat.wait()
    assert "keys" in lines[1] and lines[2].split()[0].isdigit()


def test_eval_of_a_file(empty, place):
    script = place.directory / "script.lua"
    script.write_text("return {KEYS[1], ARGV[1]}")
    assert cli(empty, "--eval", script, "k", ",", "v") == "k\nv\n"


@pytest.mark.parametrize("protocol", ["-2", "-3"])
def test_at_a_terminal(terminal, protocol):
    session = terminal(protocol)
    session.read_until("> ")
    session.type("set a 1")
    session.read_until("OK")
    session.type("multi")
    session.read_until("(TX)>")
    session.type("incr a")
    session.read_until("QUEUED")
    session.type("get {a}none")
    session.read_until("QUEUED")
    session.type("exec")
    assert "1) (integer) 2" in session.read_until("2) (nil)")
    session.type("blpop {a}queue 0.05")
    session.read_until("(nil)")
    session.type("select 2")
    session.read_until("[2]> ")
    session.type("get a")
    session.read_until("(nil)")
    session.type("help set")
    session.read_until("Set the string value of a key")
    session.type("quit")
    session.ended()


@pytest.mark.parametrize("protocol", ["-2", "-3"])
def test_subscribes_at_a_terminal(empty, terminal, protocol):
    session = terminal(protocol, "subscribe", "news", "other")
    session.read_until('2) "other"')
    assert empty.call("PUBLISH", "news", "it rains") == 1
    session.read_until('3) "it rains"')
    pattern = terminal(protocol, "psubscribe", "n*")
    pattern.read_until('2) "n*"')
    assert empty.call("PUBLISH", "news", "it pours") == 2
    session.read_until('3) "it pours"')
    pattern.read_until('4) "it pours"')


def test_monitors(empty, terminal):
    session = terminal("monitor")
    session.read_until("OK")
    empty.call("SET", "watched", "value")
    session.read_until('"SET" "watched" "value"')
