"""Roles at the statistics port, and what operators do there."""

import base64
import json
import re

import pytest

from harness import HOST, said_to, server_lines, wait_until

READ, OPERATE = "token-of-readers", "token-of-those-who-operate"
TOKENS = {"stats_token": READ, "operate_token": OPERATE}


def start(place, **settings):
    path = place.directory / "audit.log"
    gateway = place.cashew(
        {"alpha": {"redis": True, "servers": server_lines([place.redis()])}},
        {"worker_processes": 2, "audit_log": f"{{file: {path}}}", **settings},
    )
    gateway.wait_serving()
    gateway.audit_path = path
    return gateway


def epoch_of(gateway):
    return int(re.search(r", epoch (\d+),", gateway.order("status").stdout)[1])


def audited(gateway, **wanted):
    """Lines of the audit log, which is written ten times a second."""
    found = [json.loads(line) for line in gateway.audit_path.read_text().splitlines()]
    return [it for it in found if all(it.get(name) == value for name, value in wanted.items())]


def ask(gateway, method, target, token=None, scheme="Bearer"):
    header = f"Authorization: {scheme} {token}\r\n" if token else ""
    text = said_to(gateway.stats_address, f"{method} {target} HTTP/1.1\r\nHost: x\r\n{header}\r\n".encode())
    head, _, body = text.partition(b"\r\n\r\n")
    return int(head.split()[1]), body.decode()


def outcome(gateway, target):
    status, body = ask(gateway, "POST", target, OPERATE)
    assert status == 202, body
    begun = json.loads(body)
    assert begun["state"] == "running"

    def ended():
        status, body = ask(gateway, "GET", f"/operate.json?id={begun['id']}", READ)
        assert status == 200, body
        actions = json.loads(body)["actions"]
        return actions and actions[0]["state"] != "running" and actions[0]
    return wait_until(ended, "the end")


def test_roles_read_and_operate(place):
    gateway = start(place, **TOKENS)
    basic = base64.b64encode(f"ann:{OPERATE}".encode()).decode()
    for method, target, token, scheme, expected in [
        ("GET", "/stats", None, "Bearer", 401),
        ("GET", "/stats", "wrong", "Bearer", 401),
        ("GET", "/stats", READ, "Bearer", 200),
        ("GET", "/stats", OPERATE, "Bearer", 200),
        ("GET", "/operate.json", READ, "Bearer", 200),
        ("GET", "/operate.json", None, "Bearer", 401),
        ("POST", "/operate/reload", None, "Bearer", 401),
        ("POST", "/operate/reload", READ, "Bearer", 401),
        ("POST", "/operate/reload", "wrong", "Bearer", 401),
        # A browser shows this by itself, whoever makes it ask.
        ("POST", "/operate/reload", basic, "Basic", 401),
        ("GET", "/operate/reload", OPERATE, "Bearer", 405),
        ("POST", "/operate/upgrade", OPERATE, "Bearer", 404),
        ("POST", "/operate/log-level?level=99", OPERATE, "Bearer", 400),
        ("POST", "/stats", READ, "Bearer", 405),
        ("GET", "/healthz", "wrong", "Bearer", 200),
    ]:
        assert ask(gateway, method, target, token, scheme)[0] == expected, (method, target, token)
    assert epoch_of(gateway) == 1
    status, metrics = ask(gateway, "GET", "/metrics", READ)
    assert status == 200 and "\ncashew_stats_tokens_refused_total 2\n" in metrics
    assert "wrong tokens shown to the statistics: 2" in gateway.order("status").stdout
    # The second of them is counted with the next line.
    assert len(re.findall("asks the statistics with a wrong token", gateway.log())) == 1
    events = json.loads(ask(gateway, "GET", "/events.json?kind=token_wrong", READ)[1])
    assert len(events["events"]) == 1
    wait_until(lambda: len(audited(gateway, reason="token")) == 2, "both have a line")
    shown = gateway.audit_path.read_text() + gateway.log() + metrics
    assert READ not in shown and OPERATE not in shown
    denied = audited(gateway, reason="token")
    assert [it["command"] for it in denied] == ["HTTP /stats", "HTTP /operate/reload"]
    assert all(it["client"].startswith(f"{HOST}:") for it in denied)


def test_what_is_asked_is_done_and_told(place):
    gateway = start(place, **TOKENS)
    done = outcome(gateway, "/operate/reload")
    assert done["state"] == "done" and done["by"].startswith(f"{HOST}:")
    gateway.configure(worker_processes=1)
    dry = outcome(gateway, "/operate/reload?dry_run=true")
    assert any("worker_processes: 2 -> 1" in line for line in dry["lines"]), dry
    assert epoch_of(gateway) == 1
    assert outcome(gateway, "/operate/reload")["state"] == "done"
    assert epoch_of(gateway) == 2
    gateway.configure(worker_processes="x")
    failed = outcome(gateway, "/operate/reload")
    assert failed["state"] == "failed" and "worker_processes" in " ".join(failed["lines"])
    gateway.configure(worker_processes=1)
    assert outcome(gateway, "/operate/log-level?level=7")["state"] == "done"
    failed = outcome(gateway, "/operate/failover?pool=alpha&server=nosuch")
    assert failed["state"] == "failed" and failed["lines"]
    wait_until(lambda: len(audited(gateway, user="role operate")) >= 10, "all have a line")
    mine = audited(gateway, user="role operate")
    shown = [(it["command"], it["outcome"]) for it in mine]
    assert shown == [
        ("reload", "asked"), ("reload", "done"), ("reload", "asked"), ("reload", "done"),
        ("reload", "asked"), ("reload", "failed"), ("log level 7", "asked"), ("log level 7", "done"),
        ("failover alpha to nosuch", "asked"), ("failover alpha to nosuch", "failed"),
    ]


def test_nothing_is_done_without_a_token_of_its_own(place):
    gateway = start(place, stats_token=READ)
    for token in (None, READ, OPERATE):
        assert ask(gateway, "POST", "/operate/reload", token)[0] == 403
    gateway.configure(**TOKENS, operate_from="[10.9.9.9]")
    gateway.reload()
    status, body = ask(gateway, "POST", "/operate/reload", OPERATE)
    assert status == 403 and "operate_from" in body
    gateway.configure(**TOKENS, operate_from=f"[{HOST}]")
    gateway.reload()
    assert outcome(gateway, "/operate/reload")["state"] == "done"
    # From the next reload on the old token is none.
    gateway.configure(stats_token=READ, operate_token="another-one-of-those")
    gateway.reload()
    assert ask(gateway, "POST", "/operate/reload", OPERATE)[0] in (401, 403)


@pytest.mark.parametrize(("settings", "words"), [
    ({"stats_token": READ, "operate_token": READ}, '"operate_token" is the same as "stats_token"'),
    ({"operate_token": "{file: /nowhere/token}"}, "/nowhere/token cannot be read"),
])
def test_what_cannot_be_is_refused(place, settings, words):
    gateway = start(place)
    gateway.configure(**settings)
    assert words in gateway.refused_reload()
