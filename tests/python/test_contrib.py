"""What is in contrib/ for Prometheus and Grafana: every name in it is one that a gateway prints, every alert
comes when it should and not otherwise, and says where it is told what to do."""

import collections
import json
import os
import re
import shutil
import subprocess
import urllib.request

import pytest
from prometheus_client.parser import text_string_to_metric_families

from harness import HOST, ROOT, server_lines, wait_until
from test_sentinel import MASTER, Group

RULES = ROOT / "contrib" / "prometheus" / "cashew.rules.yml"
DASHBOARD = ROOT / "contrib" / "grafana" / "cashew.json"
OPERATIONS = ROOT / "docs" / "operations.md"
PROMTOOL = os.environ.get("CASHEW_PROMTOOL") or shutil.which("promtool")
#: What Prometheus adds to all that it reads.
ADDED = {"job", "instance"}
#: The metric that Prometheus makes of whether it could read at all.
UP = {"up": set()}

Alert = collections.namedtuple("Alert", "name expr pause severity summary runbook")


def alerts():
    """The file is laid out alike for each alert; whatever is not is found by the count."""
    text = RULES.read_text()
    quoted = r"'((?:[^']|'')*)'"
    found = re.findall(
        r"- alert: (\w+)\n +expr: " + quoted + r"\n +for: (\d+[sm])\n +labels: \{severity: (\w+)\}\n"
        r" +annotations:\n +summary: " + quoted + r"\n +runbook_url: (\S+)\n", text)
    assert len(found) == text.count("- alert:") > 20
    return [Alert(*(word.replace("''", "'") for word in it)) for it in found]


def exprs_of_dashboard():
    dashboard = json.loads(DASHBOARD.read_text())
    for panel in dashboard["panels"]:
        for target in panel.get("targets", []):
            yield panel["title"], target["expr"]
    for note in dashboard["annotations"]["list"]:
        yield note["name"], note["expr"]
    for variable in dashboard["templating"]["list"]:
        if variable["type"] == "query":
            expr, label = re.fullmatch(r"label_values\((.*), (\w+)\)", variable["definition"]).groups()
            yield variable["name"], f"sum by ({label}) ({expr})"


@pytest.fixture(scope="module")
def printed(module_place):
    """The labels of every metric that a gateway prints with everything that it can tell of."""
    place = module_place
    primary = place.redis("--repl-diskless-sync-delay", "0")
    replica = place.redis("--replicaof", HOST, str(primary.port))
    group = Group(place, replicas=1)
    spool = f"{{directory: {place.directory / 'spool'}, max: 64mb}}"
    copies = [place.memcached() for _ in range(2)]
    pools = {
        "alpha": {"redis": True, "servers": server_lines([primary, replica], ["master", "r0"]),
                  "server_check_interval": 200},
        "beta": {"servers": [f"{{name: g, primary: {HOST}:{copies[0].port}, "
                             f"replicas: [{HOST}:{copies[1].port}]}}"]},
        "caches": {"servers": server_lines([place.memcached()]), "spool": spool},
        "gamma": {"redis": True, "sentinels": group.addresses(),
                  "servers": [f"{{name: s1, sentinel: {MASTER}}}"]},
        "mover": {"redis": True, "route": f"{{migrate: {{from: was, to: will, directory: {place.directory / 'move'}}}}}"},
        "was": {"listen": None, "redis": True, "servers": server_lines([place.redis()])},
        "will": {"listen": None, "redis": True, "servers": server_lines([place.redis()])},
        "delta": {"redis": True, "auto_eject_hosts": True, "timeout": 300, "fail_open": "50%",
                  "servers": server_lines([place.redis(), place.redis()])},
    }
    gateway = place.cashew(pools, {"worker_processes": 2})
    gateway.wait_serving()
    gateway.reload()
    with gateway.connect("alpha") as conn:
        conn.call("SET", "k", "v")

    def seen():
        # Keys are hot while they are asked for.
        with gateway.connect("alpha") as conn:
            for _ in range(50):
                conn.call("GET", "k")
        with urllib.request.urlopen(f"http://{HOST}:{gateway.stats_port}/metrics", timeout=20) as page:
            found = text_string_to_metric_families(page.read().decode())
        labels = collections.defaultdict(set)
        for family in found:
            for sample in family.samples:
                labels[sample.name] |= set(sample.labels)
        return labels

    late = ["cashew_server_lag_bytes", "cashew_replica_fit", "cashew_group_primary_info", "cashew_sentinel_up",
            "cashew_last_reload_success", "cashew_server_spool_depth", "cashew_pool_open",
            "cashew_server_state_since_timestamp_seconds", "cashew_hot_key_share", "cashew_move_state_info"]
    wait_until(lambda: all(name in seen() for name in late), f"all of {late}", pause=0.2)
    return {**seen(), **UP}


def metrics_of(expr):
    """Each metric with the labels that are asked of it."""
    for name, selector in re.findall(r"\b((?:cashew|process)_\w+|up)\b(?:\{([^}]*)\})?", expr):
        yield name, set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", selector))


def complaints(expr, printed):
    """What is wrong with the names in an expression."""
    known = set(ADDED)
    found = list(metrics_of(expr))
    if not found:
        yield "no metric"
    for name, labels in found:
        if name not in printed:
            yield f"no gateway prints {name}"
            continue
        known |= printed[name]
        if unknown := labels - printed[name] - ADDED:
            yield f"{name} has no {unknown}"
    for group in re.findall(r"\b(?:by|on|without|ignoring) \(([^)]*)\)", expr):
        if unknown := set(re.findall(r"\w+", group)) - known:
            yield f"there is no {unknown}"


def test_the_checker_finds_what_is_wrong(printed):
    for expr, complaint in [
            ("sum by (pool) (rate(cashew_requests_totals[5m]))", "no gateway prints cashew_requests_totals"),
            ('cashew_server_up{sever="a"}', "cashew_server_up has no {'sever'}"),
            ("sum by (server) (cashew_requests_total)", "there is no {'server'}"),
            ("vector(1)", "no metric")]:
        assert complaint in list(complaints(expr, printed))
    assert not list(complaints('sum by (pool, job) (rate(cashew_requests_total{pool="a"}[5m]))', printed))


def test_alerts_ask_for_what_is_printed(printed):
    for alert in alerts():
        assert not list(complaints(alert.expr, printed)), alert.name
        known = ADDED.union(*(printed[name] for name, _ in metrics_of(alert.expr)))
        grouped = re.match(r"(?:avg|sum|max|min|histogram_quantile\(0.99, sum) by \(([^)]*)\)", alert.expr)
        if grouped:
            known = set(re.findall(r"\w+", grouped[1]))
        shown = set(re.findall(r"\$labels\.(\w+)", alert.summary))
        assert shown <= known, (alert.name, shown - known)


def test_the_dashboard_asks_for_what_is_printed(printed):
    exprs = list(exprs_of_dashboard())
    assert len(exprs) > 60
    wrong = {title: found for title, expr in exprs if (found := list(complaints(expr, printed)))}
    assert not wrong
    shown = {name for _, expr in exprs for name, _ in metrics_of(expr)}
    # Whatever counts per pool or server and can go wrong is somewhere on it.
    for name in ("cashew_forward_errors_total", "cashew_server_timeouts_total", "cashew_restarts_total",
                 "cashew_worker_busy_ratio", "cashew_server_spool_depth", "process_open_fds"):
        assert name in shown


def test_the_dashboard_hangs_together():
    dashboard = json.loads(DASHBOARD.read_text())
    panels = dashboard["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    rows = [panel["title"] for panel in panels if panel["type"] == "row"]
    assert rows == ["Overview", "Pools", "Latency", "Servers", "Failures", "Replicas, groups and routes",
                    "Workers"]
    taken = set()
    for panel in panels:
        place = panel["gridPos"]
        cells = {(x, y) for x in range(place["x"], place["x"] + place["w"])
                 for y in range(place["y"], place["y"] + place["h"])}
        assert place["x"] + place["w"] <= 24 and not cells & taken, panel["title"]
        taken |= cells
        if panel["type"] != "row":
            uses = [panel["datasource"], *(target["datasource"] for target in panel["targets"])]
            assert all(it["uid"] == "${datasource}" for it in uses), panel["title"]
    variables = {variable["name"] for variable in dashboard["templating"]["list"]}
    used = set(re.findall(r"\$\{?(\w+)", json.dumps(dashboard))) - {"__rate_interval"}
    assert used == variables


def anchors():
    """Of the headings of docs/operations.md."""
    headings = re.findall(r"^#+ (.*)$", OPERATIONS.read_text(), re.M)
    return [re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings]


def test_each_alert_has_a_runbook_and_each_runbook_an_alert():
    names = [alert.name for alert in alerts()]
    assert len(set(names)) == len(names)
    for alert in alerts():
        address, _, anchor = alert.runbook.partition("#")
        assert address.endswith("/docs/operations.md") and anchor == alert.name.lower()
        assert anchors().count(anchor) == 1, alert.name
    told = re.findall(r"^#### (Cashew\w+)\n\n(\S.*)", OPERATIONS.read_text(), re.M)
    assert [name for name, _ in told] == names
    assert all(len(text) > 60 for _, text in told)


# ------------------------------------------------------- what promtool says when it counts for itself

SERVER = 'job="cashew", instance="i", pool="p", server="s"'
POOL = 'job="cashew", instance="i", pool="p"'
POOL_IDLE = 'job="cashew", instance="i", pool="idle"'
INSTANCE = 'job="cashew", instance="i"'
GROWS, STAYS = "0+600x60", "7x60"


def buckets(slow):
    """Ten requests a second, of which some took between a tenth and a fifth of one."""
    return {f'cashew_request_duration_seconds_bucket{{{POOL}, le="{le}"}}': f"0+{count}x60"
            for le, count in (("0.1", 600 - slow), ("0.2", 600), ("+Inf", 600))}


def one(name, labels, fires, calm):
    series = f"{name}{{{labels}}}"
    return {series: fires}, {series: calm}


#: For each alert the numbers of an hour, one each minute, that it comes of, and some that it does not.
CASES = {
    "CashewDown": one("up", INSTANCE, "0x60", "1x60"),
    "CashewRestarted": one("cashew_start_time_seconds", INSTANCE, "7x55 9x5", STAYS),
    "CashewProcessesCrash": one("cashew_restarts_total", INSTANCE + ', role="worker"', "0x55 9x5", "0x55 1x5"),
    "CashewWorkerHangs": one("cashew_worker_heartbeat_age_seconds", INSTANCE + ', slot="0"', "9x60", "0.1x60"),
    "CashewWorkersBusy": one("cashew_worker_busy_ratio", INSTANCE + ', slot="0"', "0.99x60", "0.5x60"),
    "CashewServerDown": (
        {f"cashew_server_up{{{SERVER}}}": "0x60", f'cashew_server_state_info{{{SERVER}, state="out"}}': "1x60"},
        {f"cashew_server_up{{{SERVER}}}": "0x60", f'cashew_server_state_info{{{SERVER}, state="untried"}}': "1x60"}),
    "CashewServerFlaps": one("cashew_server_up", SERVER, "0 1 " * 30, "1x30 0x5 1x25"),
    "CashewRingFlaps": one("cashew_ring_version", POOL, "0+1x60", STAYS),
    "CashewPoolDown": (
        {f"cashew_server_up{{{SERVER}}}": "0x60", f'cashew_server_state_info{{{SERVER}, state="suspect"}}': "1x60"},
        {f"cashew_server_up{{{SERVER}}}": "1x60", f'cashew_server_up{{{POOL}, server="t"}}': "0x60",
         f'cashew_server_state_info{{{POOL}, server="t", state="out"}}': "1x60"}),
    "CashewPoolWithoutPrimary": (
        {f'cashew_server_role{{{SERVER}, role="primary"}}': "0x60"},
        {f'cashew_server_role{{{SERVER}, role="primary"}}': "0x60",
         f'cashew_server_role{{{POOL}, server="t", role="primary"}}': "1x60"}),
    "CashewGroupWithoutPrimary": (
        {f"cashew_group_stable{{{SERVER}}}": "0x60"},
        {f"cashew_group_stable{{{SERVER}}}": "0x60",
         f'cashew_group_primary_info{{{SERVER}, address="a:1"}}': "1x60"}),
    "CashewGroupSwitched": one("cashew_group_switches_total", SERVER, "1x55 2x5", "1x60"),
    "CashewSentinelDown": one("cashew_sentinel_up", POOL + ', sentinel="a:1"', "0x60", "1x60"),
    "CashewReplicaUnfit": one("cashew_replica_fit", SERVER + ', reason="lag"', "0x60", "1x60"),
    "CashewReplicaLags": one("cashew_server_lag_bytes", SERVER, "1000000000x60", "1000x60"),
    "CashewErrors": (
        {f"cashew_requests_total{{{POOL}}}": "0+1000x60", f"cashew_forward_errors_total{{{POOL}}}": "0+10x60"},
        {f"cashew_requests_total{{{POOL}}}": "0+10000x60", f"cashew_forward_errors_total{{{POOL}}}": "0+1x60"}),
    "CashewServerFails": (
        {f"cashew_server_timeouts_total{{{SERVER}}}": GROWS, f"cashew_server_connect_errors_total{{{SERVER}}}": STAYS},
        {f"cashew_server_timeouts_total{{{SERVER}}}": STAYS, f"cashew_server_connect_errors_total{{{SERVER}}}": STAYS}),
    "CashewProtocolErrors": one("cashew_server_protocol_errors_total", SERVER, "0x55 1x5", STAYS),
    "CashewSlow": (buckets(30), buckets(3)),
    "CashewQueueLong": (
        {f"cashew_server_in_queue{{{SERVER}}}": "9000x60", f"cashew_server_out_queue{{{SERVER}}}": "9000x60"},
        {f"cashew_server_in_queue{{{SERVER}}}": "9x60", f"cashew_server_out_queue{{{SERVER}}}": "9000x60"}),
    "CashewQueueGrows": one("cashew_server_in_queue", SERVER, "0+100x60", "6000-10x60"),
    "CashewClientsRefused": one("cashew_clients_refused_total", POOL, GROWS, STAYS),
    "CashewClientsCut": (
        {f"cashew_clients_overflowed_total{{{POOL}}}": STAYS, f"cashew_clients_shed_total{{{POOL}}}": GROWS},
        {f"cashew_clients_overflowed_total{{{POOL}}}": STAYS, f"cashew_clients_shed_total{{{POOL}}}": STAYS}),
    "CashewMemoryPressed": one("cashew_worker_memory_pressed_total", INSTANCE + ', slot="0"', GROWS, STAYS),
    "CashewDescriptorsShort": (
        {f'process_open_fds{{{INSTANCE}, role="worker", slot="0"}}': "950x60",
         f'process_max_fds{{{INSTANCE}, role="worker", slot="0"}}': "1000x60"},
        {f'process_open_fds{{{INSTANCE}, role="worker", slot="0"}}': "95x60",
         f'process_max_fds{{{INSTANCE}, role="worker", slot="0"}}': "1000x60"}),
    "CashewLogLinesLost": one("cashew_log_lines_lost_total", INSTANCE, "0x55 3x5", STAYS),
    "CashewReloadFailed": one("cashew_last_reload_success", INSTANCE, "0x60", "1x60"),
    "CashewPoolFailsOpen": one("cashew_pool_open", POOL, "1x60", "0x60"),
    "CashewSpoolOld": (
        {f"cashew_server_spool_oldest_timestamp_seconds{{{SERVER}}}": "60x60",
         f"cashew_server_spool_depth{{{SERVER}}}": "5x60"},
        {f"cashew_server_spool_oldest_timestamp_seconds{{{SERVER}}}": "0x60",
         f"cashew_server_spool_depth{{{SERVER}}}": "0x60"}),
    "CashewSpoolDeep": one("cashew_server_spool_depth", SERVER, "200000x60", "100x60"),
    "CashewSpoolFull": one("cashew_server_spool_refused_total", SERVER, GROWS, STAYS),
    "CashewPasswordsGuessed": one("cashew_auth_failures_total", POOL, GROWS, STAYS),
    # A pool that does next to nothing has a hot key as soon as anybody asks for it.
    "CashewHotKey": (
        {f'cashew_hot_key_share{{{POOL}, key="k"}}': "0.3x60", f"cashew_requests_total{{{POOL}}}": "0+60000x60"},
        {f'cashew_hot_key_share{{{POOL}, key="k"}}': "0.1x60", f"cashew_requests_total{{{POOL}}}": "0+60000x60",
         f'cashew_hot_key_share{{{POOL_IDLE}, key="k"}}': "1x60",
         f"cashew_requests_total{{{POOL_IDLE}}}": "0+600x60"}),
    # One that copies for an hour is no news, and neither is one that has nothing left to walk over.
    "CashewMoveStuck": (
        {f'cashew_move_state_info{{{POOL}, state="copying"}}': "1x60", f"cashew_move_keys_walked{{{POOL}}}": "7x60",
         f"cashew_move_lag_seconds{{{POOL}}}": "0x60"},
        {f'cashew_move_state_info{{{POOL}, state="copying"}}': "1x60", f"cashew_move_keys_walked{{{POOL}}}": GROWS,
         f'cashew_move_state_info{{{POOL_IDLE}, state="in step"}}': "1x60",
         f"cashew_move_keys_walked{{{POOL_IDLE}}}": "7x60", f"cashew_move_lag_seconds{{{POOL_IDLE}}}": "3x60"}),
    "CashewMoveMismatch": one("cashew_move_mismatches_total", POOL, "0x55 2x5", "2x60"),
    "CashewMovePaused": (
        {f'cashew_move_state_info{{{POOL}, state="paused"}}': "1x60"},
        {f'cashew_move_state_info{{{POOL}, state="paused"}}': "1x45 _x15",
         f'cashew_move_state_info{{{POOL}, state="in step"}}': "_x45 1x15"}),
}


def test_there_is_a_case_for_each_alert():
    assert sorted(CASES) == sorted(alert.name for alert in alerts())


@pytest.mark.skipif(not PROMTOOL, reason="needs scripts/promtool")
def test_alerts_come_when_they_should(place):
    def case(name, series, count):
        firing = f'count(ALERTS{{alertname="{name}", alertstate="firing"}})'
        samples = [{"labels": "{}", "value": count}] if count else []
        return {"interval": "1m",
                "input_series": [{"series": it, "values": values} for it, values in series.items()],
                "promql_expr_test": [{"expr": firing, "eval_time": "59m", "exp_samples": samples}]}

    cases = [case(name, series, count) for name, (fires, calm) in CASES.items()
             for series, count in ((fires, 1), (calm, 0))]
    path = place.directory / "test.yml"
    # What is JSON is YAML.
    path.write_text(json.dumps({"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": cases}))
    for command in (["check", "rules", str(RULES)], ["test", "rules", str(path)]):
        done = subprocess.run([PROMTOOL, *command], capture_output=True, text=True, timeout=100)
        assert done.returncode == 0, f"{done.stdout}{done.stderr}"


@pytest.mark.skipif(not PROMTOOL, reason="needs scripts/promtool")
def test_prometheus_understands_the_dashboard(place):
    """As rules that record what the panels show."""
    rules = []
    for number, (_, expr) in enumerate(exprs_of_dashboard()):
        expr = expr.replace("$__rate_interval", "5m")
        rules.append({"record": f"panel:{number}", "expr": expr})
    path = place.directory / "dashboard.yml"
    path.write_text(json.dumps({"groups": [{"name": "dashboard", "rules": rules}]}))
    done = subprocess.run([PROMTOOL, "check", "rules", str(path)], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, f"{done.stdout}{done.stderr}"
    assert f"{len(rules)} rules found" in done.stdout
