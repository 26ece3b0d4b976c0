"""How servers are, as all workers together know it: in JSON, /metrics, `cashew status` and the log."""

import re
import signal
import time
import urllib.request

import pytest

from harness import HOST, free_port, resp, server_lines, wait_until


def states(gateway, pool="alpha"):
    """Name -> what JSON says of it."""
    return {it["server"]: it for it in gateway.stats()["cashew"]["servers"] if it["pool"] == pool}


def wait_for(gateway, **wanted):
    """Until these servers are in these states."""
    def is_so():
        now = states(gateway)
        return all(now[name]["state"] == state for name, state in wanted.items())

    try:
        wait_until(is_so, f"{wanted}", 15)
    except AssertionError as error:
        raise AssertionError(f"{error}: {states(gateway)}") from error


def metrics(gateway):
    with urllib.request.urlopen(f"http://{HOST}:{gateway.stats_port}/metrics", timeout=20) as page:
        return page.read().decode()


def told(gateway, name):
    """The lines of the log about the states of a server, without their beginnings."""
    lines = re.findall(rf"pool alpha: server {name} (.*)", gateway.log())
    return [line for line in lines if line.startswith(("fails", "does not", "answers again"))]


def ask(conns):
    """What they get that ask at the same time."""
    for conn in conns:
        conn.send(resp("GET", "a"))
    return [conn.raw_reply() for conn in conns]


def requests(gateway, name):
    return gateway.stats()["alpha"][name]["requests"]


@pytest.mark.parametrize("is_redis", [True, False], ids=["redis", "memcached"])
def test_states_are_true_without_traffic(place, is_redis):
    one, two = [place.redis() if is_redis else place.memcached() for _ in range(2)]
    names = ["one", "two", "gone"]
    pool = {"redis": is_redis, "servers": server_lines([one, two, free_port()], names)}
    gateway = place.cashew({"alpha": {"server_check_interval": 1000, **pool}}, {"worker_processes": 2})
    wait_for(gateway, one="well", two="well", gone="out")
    gone = states(gateway)["gone"]
    assert gone["up"] == 0 and gone["last_error"] == gone["cause"] == "Connection refused"
    assert abs(gone["since"] - time.time()) < 30
    # Nobody has asked for anything, and what the gateway asks is not counted.
    assert [requests(gateway, name) for name in names] == [0, 0, 0]

    one.process.kill()
    two.process.signal(signal.SIGSTOP)
    wait_for(gateway, one="out", two="suspect")
    text = metrics(gateway)
    for name in names:
        assert f'cashew_server_up{{pool="alpha",server="{name}"}} 0\n' in text
    assert f'server="two",address="{HOST}:{two.port}",state="suspect"' in text
    status = gateway.order("status").stdout
    assert "0 of 3 up" in status, status
    row = next(line for line in status.splitlines() if line.startswith("alpha  one"))
    assert f"{HOST}:{one.port}" in row and "out: Connection refused" in row, status

    two.process.signal(signal.SIGCONT)
    one.start()
    wait_for(gateway, one="well", two="well", gone="out")
    assert f'cashew_server_up{{pool="alpha",server="one"}} 1\n' in metrics(gateway)
    assert "2 of 3 up" in gateway.order("status").stdout
    # One of the workers tells of each change.
    one_told, two_told = told(gateway, "one"), told(gateway, "two")
    assert len(one_told) == 2 and one_told[1].startswith("answers again, after "), one_told
    assert one_told[0] == "fails: Connection refused; it is out until it answers"
    assert len(two_told) == 2 and two_told[0] == "fails: Server does not answer", two_told
    assert told(gateway, "gone") == ["fails: Connection refused; it is out until it answers"]
    assert [requests(gateway, name) for name in names] == [0, 0, 0]


def test_one_worker_connects_to_a_server_that_nobody_uses(place):
    server = place.redis()
    pool = {"redis": True, "servers": server_lines([server], ["one"])}
    gateway = place.cashew({"alpha": {"server_check_interval": 1000, **pool}}, {"worker_processes": 3})
    wait_for(gateway, one="well")
    time.sleep(2.5)
    numbers = gateway.stats()["alpha"]["one"]
    assert numbers["connects"] == numbers["server_connections"] == 1
    assert server.stat("ping") in range(1, 6)


def test_without_checks_nobody_is_connected_to(place):
    server = place.redis()
    pool = {"redis": True, "servers": server_lines([server], ["one"]),
            "server_check_interval": 0}
    gateway = place.cashew({"alpha": {"server_check_interval": 1000, **pool}}, {"worker_processes": 2})
    time.sleep(2.0)
    assert states(gateway)["one"]["state"] == "untried"
    assert gateway.stats()["alpha"]["one"]["connects"] == 0
    assert gateway.call("SET", "a", "1") == "OK"
    wait_for(gateway, one="well")


def test_under_traffic_each_change_is_told_once(place):
    server = place.redis()
    pool = {"redis": True, "servers": server_lines([server], ["one"]), "timeout": 2000}
    gateway = place.cashew({"alpha": {"server_check_interval": 1000, **pool}}, {"worker_processes": 2})
    conns = [gateway.connect() for _ in range(8)]
    for conn in conns:
        assert conn.call("SET", "a", "1") == "OK"
    for _ in range(3):
        server.stop()
        wait_until(lambda: all(reply.startswith(b"-") for reply in ask(conns)), "all get errors")
        wait_for(gateway, one="out")
        server.start()
        for conn in conns:
            wait_until(lambda: not ask([conn])[0].startswith(b"-"), "it is served")
        wait_for(gateway, one="well")
    lines = told(gateway, "one")
    assert sum(line.startswith("answers again") for line in lines) == 3, lines
    assert sum("it is out until it answers" in line for line in lines) == 3, lines
    # It may have ended with a request on its way.
    assert sum(line.startswith("fails") for line in lines) <= 6, lines


def test_states_outlive_a_reload_and_an_address_that_changes_begins_anew(place):
    one, two = place.redis(), place.redis()
    pool = {"redis": True, "server_check_interval": 1000, "servers": server_lines([one, two], ["one", "two"])}
    gateway = place.cashew({"alpha": pool}, {"worker_processes": 2})
    wait_for(gateway, one="well", two="well")
    one.process.kill()
    wait_for(gateway, one="out")
    since = states(gateway)["one"]["since"]
    gateway.configure({"alpha": {**pool, "server_retry_timeout": 1000}})
    gateway.reload()
    now = states(gateway)["one"]
    assert now["state"] == "out" and abs(now["since"] - since) <= 1
    other = place.redis()
    gateway.configure({"alpha": {**pool, "servers": server_lines([other, two], ["one", "two"])}})
    gateway.reload()
    wait_for(gateway, one="well")
    assert states(gateway)["one"]["address"] == f"{HOST}:{other.port}"


def test_connections_made_before_a_reload_takes_effect_are_counted(place):
    one, other = place.redis(), place.redis()
    pool = {"redis": True, "preconnect": True, "servers": server_lines([one], ["one"])}
    gateway = place.cashew({"alpha": pool}, {"worker_processes": 1})
    wait_until(lambda: gateway.stats()["alpha"]["one"]["connects"] == 1, "it is connected")
    gateway.configure({"alpha": {**pool, "servers": server_lines([other], ["one"])}})
    gateway.reload()
    wait_until(lambda: gateway.stats()["alpha"]["one"]["connects"] == 2, "both connections are counted")
