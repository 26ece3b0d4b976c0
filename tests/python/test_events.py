"""What has changed: events of all processes, by `cashew events`, /events.json, /metrics and the log."""

import json
import os
import re
import select
import signal
import subprocess
import time
import urllib.error
import urllib.request
from datetime import datetime

import pytest

from harness import (CASHEW, HOST, ROOT, FakeServer, ReplyError, free_port, in_time, measured, server_lines, silent,
                     wait_until)


def page(gateway, path):
    with urllib.request.urlopen(f"http://{HOST}:{gateway.stats_port}/{path}", timeout=20) as page:
        return page.read().decode()


def events(gateway, query=""):
    return json.loads(page(gateway, f"events.json{query}"))["events"]


def of_kind(gateway, kind, **fields):
    """Those of this kind that have these fields."""
    found = events(gateway, f"?kind={kind}")
    return [it for it in found if all(it.get(name) == value for name, value in fields.items())]


def wait_event(gateway, kind, seconds=15, **fields):
    try:
        return wait_until(lambda: of_kind(gateway, kind, **fields), f"{kind} {fields}", seconds)[-1]
    except AssertionError as error:
        raise AssertionError(f"{error}: {events(gateway)[-20:]}") from None


def count(gateway, kind):
    return int(re.search(rf'cashew_events_total{{kind="{kind}"}} (\d+)', page(gateway, "metrics"))[1])


def left_out(gateway, kind):
    text = page(gateway, "metrics")
    return int(re.search(rf'cashew_events_left_out_total{{kind="{kind}"}} (\d+)', text)[1])


def ask(gateway):
    """A request, whatever comes of it."""
    with gateway.connect() as conn:
        return attempt(conn, "GET", "a")


def attempt(conn, *words):
    try:
        return conn.call(*words)
    except ReplyError as error:
        return error


class Follower:
    """`cashew events --follow`, whose lines come as they are printed."""

    command = "events"

    def __init__(self, gateway, *arguments):
        words = [gateway.binary, self.command, "-c", str(gateway.config_path), "--follow", *arguments]
        self.child = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                      stderr=subprocess.PIPE)
        self.text = b""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.child.kill()
        self.child.communicate()

    def lines(self):
        while select.select([self.child.stdout], [], [], 0)[0]:
            chunk = os.read(self.child.stdout.fileno(), 65536)
            if not chunk:
                break
            self.text += chunk
        return self.text.decode().splitlines()


@measured
def test_a_server_that_dies_and_comes_back_is_told_of_within_a_second(place):
    server = place.redis()
    pool = {"redis": True, "server_retry_timeout": 200, "servers": server_lines([server], ["one"])}
    gateway = place.cashew({"alpha": pool}, {"worker_processes": 2})
    assert ask(gateway) is None
    assert not of_kind(gateway, "server_down")
    with Follower(gateway, "--json") as follower:
        wait_until(lambda: any('"instance_serves"' in line for line in follower.lines()), "what was")
        server.process.kill()
        began = time.monotonic()
        ask(gateway)
        down = wait_event(gateway, "server_down", pool="alpha", server="one")
        in_time(time.monotonic() - began, 1)
        assert down["level"] == "warn" and down["process"] == f"worker-{down['worker']}"
        assert "Connection refused" in down["message"]
        wait_until(lambda: any('"server_down"' in line for line in follower.lines()), "it is printed", 5)
        server.start()
        wait_until(lambda: ask(gateway) is None, "it answers")
        up = wait_event(gateway, "server_up", pool="alpha", server="one")
        assert up["number"] > down["number"]
        moment = datetime.fromisoformat(up["time"])
        assert moment.tzinfo and abs(moment.timestamp() - time.time()) < 60
        wait_until(lambda: any('"server_up"' in line for line in follower.lines()), "it is printed", 5)
        printed = [json.loads(line) for line in follower.lines()]
    numbers = [it["number"] for it in printed]
    assert len(set(numbers)) == len(numbers)
    assert [it for it in printed if it["kind"] == "server_down"][0] == down
    # One of the workers has told of each change.
    assert count(gateway, "server_down") == count(gateway, "server_up") == 1
    # In the log it is one line each, with nutcracker's time.
    shape = r"^\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}\] WARN worker-\d pool alpha: server one fails: "
    assert re.search(shape, gateway.log(), re.M), gateway.log()[-1500:]
    assert "::" not in re.sub(r"\[::\]|::1", "", gateway.log()), "no module paths"


def test_what_is_asked_for_is_listed(place):
    server = place.redis()
    gateway = place.cashew({"alpha": {"redis": True, "servers": server_lines([server], ["one"])}})
    wait_event(gateway, "instance_serves")
    listing = json.loads(page(gateway, "events.json"))
    numbers = [it["number"] for it in listing["events"]]
    assert numbers == sorted(numbers) and listing["newest"] == numbers[-1]
    assert events(gateway, f"?since={numbers[-2]}") == listing["events"][-1:]
    assert events(gateway, f"?since={listing['newest']}") == []
    assert {it["kind"] for it in events(gateway, "?kind=worker_started")} == {"worker_started"}
    for query in ["?since=x", "?kind=nothing"]:
        with pytest.raises(urllib.error.HTTPError, match="400"):
            events(gateway, query)
    opened = of_kind(gateway, "listener_opened", pool="alpha")
    assert str(gateway.address) in opened[0]["message"]
    # The master tells the same.
    said = gateway.order("events", "--json")
    assert [json.loads(line) for line in said.stdout.splitlines()] == listing["events"], said.stderr
    said = gateway.order("events", "--kind", "instance_serves").stdout
    assert re.fullmatch(r"\S+ INFO instance_serves master serving pools=1 workers=\d\n", said), said
    done = gateway.order("events", "--kind", "nothing")
    assert done.returncode == 1 and "no kind of events 'nothing'" in done.stderr + done.stdout


def test_reloads_are_told_of_and_what_they_changed(place):
    server = place.redis()
    servers = server_lines([server], ["one"])
    gateway = place.cashew({"alpha": {"redis": True, "servers": servers}}, {"worker_processes": 1})
    wait_event(gateway, "instance_serves")
    gateway.configure({"alpha": {"redis": True, "servers": servers, "timeout": 1234},
                       "beta": {"redis": True, "servers": servers}}, worker_processes=2)
    gateway.reload()
    done = wait_event(gateway, "reload_done", process="master")
    assert "epoch 2 is in effect: " in done["message"] and "1234" in done["message"], done
    assert "worker_processes: 1 -> 2" in done["message"]
    assert "2 workers" in wait_event(gateway, "workers_resized")["message"]
    wait_event(gateway, "worker_started", worker=1)
    wait_event(gateway, "listener_opened", pool="beta")
    gateway.reload()
    wait_event(gateway, "reload_needless")
    gateway.configure({"alpha": {"redis": True, "servers": servers}}, worker_processes=1)
    gateway.reload()
    wait_event(gateway, "listener_closed", pool="beta")
    assert wait_event(gateway, "worker_retires")["worker"] in (0, 1)
    wait_event(gateway, "worker_stopped")
    gateway.write_config("pools: {alpha: {listen: \"a\\n[2026-01-31 23:59:59.999] ERROR forged\"}}\n")
    gateway.refused_reload()
    refused = wait_event(gateway, "reload_refused")
    assert refused["level"] == "error" and "\n" in refused["message"]
    log = gateway.log()
    assert "forged" in log and not re.search(r"^.{0,30}ERROR forged", log, re.M), log[-1500:]
    said = gateway.order("events", "--kind", "reload_refused").stdout
    assert len(said.splitlines()) == 1 and "forged" in said


def test_a_killed_worker_is_told_of_and_what_it_told_is_still_there(place):
    server = place.redis()
    pool = {"redis": True, "server_check_interval": 500,
            "servers": server_lines([server, free_port()], ["one", "gone"])}
    gateway = place.cashew({"alpha": pool}, {"worker_processes": 2})
    before = wait_event(gateway, "server_down", server="gone")
    victims = gateway.workers()
    for pid in victims:
        os.kill(pid, signal.SIGKILL)
    for worker in range(2):
        crashed = wait_event(gateway, "worker_crashed", worker=worker)
        assert "killed by signal 9" in crashed["message"] and crashed["process"] == "master"
        wait_until(lambda: len(of_kind(gateway, "worker_started", worker=worker)) == 2, "a new one")
    wait_until(lambda: len(set(gateway.workers()) - set(victims)) == 2, "others serve")
    assert before in events(gateway)
    # The admin process, too, is one that may die; what is told is none of its own.
    admin = next(it for it in gateway.order("status").stdout.splitlines() if it.startswith("admin"))
    os.kill(int(admin.split()[1]), signal.SIGKILL)

    def is_back():
        try:
            return of_kind(gateway, "helper_crashed")
        except OSError:
            return []

    wait_until(is_back, "another admin process tells of it")
    assert before in events(gateway)
    # One that is stopped shows no life.
    victim = gateway.workers()[0]
    os.kill(victim, signal.SIGSTOP)
    assert f"process {victim}" in wait_event(gateway, "worker_hung", 30)["message"]


def test_an_upgrade_keeps_events_and_adds_its_own(place):
    server = place.redis()
    gateway = place.cashew({"alpha": {"redis": True, "servers": server_lines([server], ["one"])}},
                           {"worker_processes": 1})
    before = wait_event(gateway, "instance_serves")
    with Follower(gateway, "--json") as follower:
        wait_until(lambda: follower.lines(), "what was")
        done = gateway.order("upgrade", "--binary", CASHEW)
        assert done.returncode == 0, done.stderr
        wait_until(lambda: any('"upgrade_done"' in line for line in follower.lines()), "it goes on")
    begun, done = wait_event(gateway, "upgrade_begun"), wait_event(gateway, "upgrade_done")
    assert before in events(gateway) and before["number"] < begun["number"] < done["number"]
    done = gateway.order("upgrade", "--binary", "/nonexistent")
    assert done.returncode == 1
    assert "/nonexistent" in wait_event(gateway, "upgrade_failed")["message"]


def test_a_failover_is_told_of(place):
    master, replica = place.redis(), place.redis()
    replica.call("REPLICAOF", HOST, master.port)
    wait_until(lambda: b"master_link_status:up" in replica.call("INFO", "replication"), "it follows")
    servers = server_lines([master, replica], ["master", "r1"])
    gateway = place.cashew({"alpha": {"redis": True, "servers": servers}}, {"worker_processes": 2})
    replica.call("REPLICAOF", "NO", "ONE")
    done = gateway.order("failover", "alpha", "r1")
    assert done.returncode == 0, done.stderr
    changed = wait_event(gateway, "primary_changed", pool="alpha", server="r1")
    assert "'r1' is the primary now, no more 'master'" in changed["message"]


def test_a_flapping_server_floods_nothing(place):
    server, steady = place.redis(), place.redis()
    pool = {"redis": True, "server_retry_timeout": 1, "servers": server_lines([server], ["one"])}
    other = {"redis": True, "server_retry_timeout": 1, "servers": server_lines([steady], ["two"])}
    gateway = place.cashew({"alpha": pool, "beta": other}, {"worker_processes": 2})
    wait_event(gateway, "instance_serves")
    for _ in range(14):
        before = count(gateway, "server_down")
        server.process.kill()
        wait_until(lambda: ask(gateway) and count(gateway, "server_down") > before, "it is down")
        server.start()
        wait_until(lambda: ask(gateway) is None, "it is up")
    kept = len(of_kind(gateway, "server_down"))
    assert 10 <= kept <= 12, kept
    assert count(gateway, "server_down") - left_out(gateway, "server_down") == kept
    is_down = "pool alpha: server one fails: Connection refused"
    assert sum(is_down in line for line in gateway.log().splitlines()) == kept
    # Another server, and what is done to the instance, are told of all the same.
    steady.process.kill()
    with gateway.connect("beta") as conn:
        attempt(conn, "GET", "a")
    wait_event(gateway, "server_down", pool="beta", server="two")
    assert of_kind(gateway, "instance_serves")


def test_lines_of_json_have_the_fields(place):
    server = place.redis()
    pool = {"redis": True, "server_check_interval": 500,
            "servers": server_lines([server, free_port()], ["one", "gone"])}
    gateway = place.cashew({"alpha": pool}, {"worker_processes": 2, "log_format": "json", "log_level": 7},
                           flags=False)

    def lines():
        return [json.loads(line) for line in gateway.log().split("\n") if line]

    wait_until(lambda: any(it.get("kind") == "server_down" for it in lines()), "it is logged")
    for it in lines():
        assert datetime.fromisoformat(it["time"]).tzinfo, it
        assert it["level"] in ("error", "warn", "info", "debug") and it["process"] and it["message"], it
    down = next(it for it in lines() if it.get("kind") == "server_down")
    assert (down["pool"], down["server"], down["process"]) == ("alpha", "gone", f"worker-{down['worker']}")
    assert {"master", "worker-0", "worker-1", "admin"} >= {it["process"] for it in lines()}
    # An upgrade keeps it, and a worker that dies or a file that is refused does not break it.
    wait_event(gateway, "instance_serves")
    assert gateway.order("upgrade", "--binary", CASHEW).returncode == 0
    os.kill(gateway.workers()[-1], signal.SIGKILL)
    wait_event(gateway, "worker_crashed")
    good = gateway.config_path.read_text()
    gateway.write_config("a \"\\n\u2028\x85: [\n\n{\"forged\": true}\n")
    gateway.refused_reload()
    assert any(it.get("kind") == "reload_refused" for it in lines())
    gateway.write_config(good.replace("log_format: json", "log_format: plain"))
    assert "log_format: json -> plain" in gateway.reload()
    wait_until(lambda: re.search(r"^\[[-\d]+ [:.\d]+\] INFO master epoch \d+ is in effect", gateway.log(), re.M),
               "plain lines")
    size = len(gateway.log())
    gateway.write_config(good)
    gateway.reload()
    os.kill(gateway.workers()[-1], signal.SIGKILL)
    wait_until(lambda: '"kind":"worker_crashed"' in gateway.log()[size:], "JSON again")


def test_the_log_level_changes_for_all_processes(place):
    server = place.redis()
    pool = {"redis": True, "timeout": 300, "servers": server_lines([server], ["one"])}
    gateway = place.cashew({"alpha": pool}, {"worker_processes": 1})
    gateway.wait_serving()

    def log_level(level):
        done = gateway.order("log-level", level)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert log_level("debug") == "log level is 7\n"
    assert '"log_level": 7' in gateway.order("status", "--json").stdout

    server.process.kill()
    ask(gateway)
    # What comes in its place accepts connections and says nothing: that alone is told.
    mute = FakeServer(silent, port=server.port)

    def tells_more():
        ask(gateway)
        return re.search(r"DEBUG worker-0 .*accepts connections", gateway.log())

    wait_until(tells_more, "workers tell more")
    mute.close()
    server.start()
    wait_until(lambda: ask(gateway) is None, "it answers")
    wait_event(gateway, "server_down")
    assert "an operator's order: log level is 7" in wait_event(gateway, "log_level")["message"]
    # What is not logged is an event all the same.
    assert log_level("error") == "log level is 3\n"
    size, before = len(gateway.log()), count(gateway, "server_down")
    server.process.kill()
    ask(gateway)
    wait_until(lambda: count(gateway, "server_down") > before, "another event")
    assert " fails" not in gateway.log()[size:]
    done = gateway.order("log-level", "loud")
    assert done.returncode == 2 or done.returncode == 1


def test_names_cannot_forge_lines(place):
    server = place.redis()
    evil = "one\\\"\\n[2026-01-31 23:59:59.999] ERROR forged"
    pool = {"redis": True, "servers": [f'"{HOST}:{server.port}:1 {evil}"']}
    command = [CASHEW, "-t", "-c", str(place.directory / "evil.yml")]
    text = f"alpha:\n  listen: {HOST}:{free_port()}\n  redis: true\n  servers:\n   - {pool['servers'][0]}\n"
    (place.directory / "evil.yml").write_text(text)
    if subprocess.run(command, capture_output=True).returncode:
        # Such names are refused: what is left are passwords, commands and files.
        gateway = place.cashew({"alpha": {"redis": True, "servers": server_lines([server], ["one"])}})
        with gateway.connect() as conn:
            attempt(conn, "AUTH", "x\n[2026-01-31 23:59:59.999] ERROR forged", "y")
            attempt(conn, "CONFIG", "x\r\n\"forged\"")
    else:
        gateway = place.cashew({"alpha": pool})
        server.process.kill()
        ask(gateway)
        wait_event(gateway, "server_down")
    assert not re.search(r"^.{0,30}ERROR forged", gateway.log(), re.M), gateway.log()
    for line in gateway.log().splitlines():
        assert re.match(r"\[[-\d]+ [:.\d]+\] [A-Z]+ \S+ ", line), line


def test_each_kind_has_a_sample_and_a_row_in_the_documentation(place):
    server = place.redis()
    gateway = place.cashew({"alpha": {"redis": True, "servers": server_lines([server], ["one"])}})
    kinds = re.findall(r'cashew_events_total{kind="(\w+)"}', page(gateway, "metrics"))
    assert len(kinds) == len(set(kinds)) > 50
    rows = re.findall(r"^\| `(\w+)` \|", (ROOT / "docs" / "operations.md").read_text(), re.M)
    assert set(kinds) <= set(rows)
