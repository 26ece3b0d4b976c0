"""What `cashew -t` says of a configuration that is wrong, or probably not meant: where, and what to
write instead. Warnings leave the exit status at 0, as nutcracker would have it."""

import os
import subprocess

import pytest

from harness import CASHEW, HOST, free_port, server_lines

GOOD = """\
alpha:
  listen: 127.0.0.1:22121
  redis: true
  timeout: 400
  servers:
   - 127.0.0.1:6379:1 one
   - 127.0.0.1:6380:1 two
"""


def sections(text, **settings):
    lines = [f"  {key}: {value}\n" for key, value in settings.items()]
    return f"global:\n{''.join(lines)}pools:\n" + "".join(
        f"  {line}\n" for line in text.splitlines())


NO_ACCOUNT = 1 if os.geteuid() == 0 else 0

CASES = {
    # name: (text, exit status, place, what the message must say)
    "nothing": (GOOD, 0, None, []),
    "no such user": (sections(GOOD, user="nobodi"), NO_ACCOUNT, "2:9",
                     ["there is no user", '"nobodi"', 'did you mean "nobody"?']),
    "no such group": (sections(GOOD, group="no-group-of-that-name"), NO_ACCOUNT, "2:10",
                      ["there is no group"]),
    "one address, two names": (GOOD.replace("6380", "6379"), 0, "7:6",
                               ['"two" is the same server as "one"', "line 6"]),
    "its own server": (GOOD.replace("6380", "22121"), 1, "7:6", ["the pool's own listener"]),
    "its own server, at any address": (
        GOOD.replace("listen: 127.0.0.1", "listen: 0.0.0.0").replace("6380", "22121"), 1, "7:6",
        ["the pool's own listener"]),
    "another pool's listener": (
        GOOD + GOOD.replace("alpha", "beta").replace("22121", "22122").replace("6380", "22121"), 0,
        "14:6", ['the listener of pool "alpha"']),
    "a circle": (
        GOOD.replace("6379", "22122") +
        GOOD.replace("alpha", "beta").replace("22121", "22122").replace("6380", "22121"), 1,
        "6:6", ['the listener of pool "beta", whose servers lead back to "alpha"']),
    "more memory than there is": (sections(GOOD, memory_max="4096gb"), 0, "2:15",
                                  ["memory_max", "4096gb is more than"]),
    "ejection without timeout": (
        GOOD.replace("timeout: 400", "auto_eject_hosts: true"), 0, "4:21",
        ["a server that hangs is not ejected", "timeout: 400"]),
    "ejection with a small timeout": (GOOD.replace("400", "5\n  auto_eject_hosts: true"), 0, "4:12",
                                      ["5 ms without a reply get a server ejected"]),
    "tls": (GOOD + "  tls: true\n", 1, "8:8", ["takes a section", "{certificate: /path, key: /path}"]),
    "sentinels that are no list": (GOOD + "  sentinels: x\n", 1, "8:14", ["takes a list"]),
    "a group without sentinels": (
        GOOD.replace("127.0.0.1:6380:1 two", "{name: two, sentinel: mymaster}"), 1, "7:6",
        ['"two" is a group of Sentinel\'s', "sentinels: ["]),
    "a group with an unknown option": (
        GOOD.replace("127.0.0.1:6380:1 two", "{name: two, sentinel: mymaster, wait: 1}"), 1, "7:38",
        ['unknown option "wait"']),
    "sentinel as others write it": (GOOD + "  sentinel_master: x\n", 1, "8:3",
                                    ["unknown option", "sentinel: mymaster"]),
    "a URL": (GOOD.replace("127.0.0.1:6380:1 two", "redis://:secret@127.0.0.1:6380"), 1, "7:6",
              ["a URL is no server", 'write "127.0.0.1:6380:1"', "redis_auth"]),
    "a URL to listen at": (GOOD.replace("127.0.0.1:22121", "redis://127.0.0.1:22121"), 1, "2:11",
                           ['write "127.0.0.1:22121"']),
    "a section as a server": (
        GOOD.replace("127.0.0.1:6380:1 two", "host: 127.0.0.1\n     port: 6380"), 1, "7:6",
        ['write "- 127.0.0.1:6380:1"']),
    "a tab": (GOOD.replace("  timeout", "\ttimeout"), 1, "4:1", ["a tab", "spaces"]),
    "an open quote": (GOOD.replace("listen: ", 'listen: "'), 1, "2:11", ["no other one on its line"]),
}


@pytest.mark.parametrize("name", CASES)
def test_what_is_wrong_or_suspicious_is_said(place, name):
    text, status, at, needles = CASES[name]
    path = place.directory / "checked.yml"
    path.write_text(text)
    done = subprocess.run([CASHEW, "-t", "-c", path], stdin=subprocess.DEVNULL, text=True,
                          capture_output=True, timeout=20)
    said = done.stdout + done.stderr
    assert done.returncode == status, said
    assert ("syntax is ok" in said) == (status == 0), said
    if at is None:
        assert said.startswith("cashew: configuration file"), said
    else:
        assert f"{path}:{at}: " in said, said
        assert "\n    hint: " in said, said
    for needle in needles:
        assert needle in said, said
    assert "secret" not in said


def test_a_reload_into_a_loop_is_refused_and_a_suspicious_one_is_not(place):
    gateway = place.cashew({"alpha": {"redis": True, "servers": server_lines([place.redis()])}},
                           {"worker_processes": 1})
    alpha = gateway.pools["alpha"]
    port = gateway.address
    gateway.configure({"alpha": {**alpha, "servers": server_lines([port])}})
    assert "this server is the pool's own listener" in gateway.refused_reload()
    assert gateway.call("PING") == "PONG"
    listen = f"{HOST}:{free_port()}"
    gateway.configure({"alpha": alpha, "beta": {
        "redis": True, "listen": listen, "servers": server_lines([port])}})
    assert 'this server is the listener of pool "alpha"' in gateway.reload()
    with gateway.connect("beta") as conn:
        assert conn.call("SET", "through", "both") == "OK"
    assert gateway.call("GET", "through") == b"both"
