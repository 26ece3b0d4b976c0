"""What the benchmark makes of its rounds (bench/harness)."""

import importlib
import importlib.util
import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from harness import CASHEW

BENCH = Path(__file__).resolve().parents[2] / "bench"


@pytest.fixture(scope="module")
def bench():
    """The benchmark's package, under a name that these tests' own harness does not have."""
    spec = importlib.util.spec_from_file_location(
        "bench_harness",
        BENCH / "harness/__init__.py",
        submodule_search_locations=[str(BENCH / "harness")],
    )
    sys.modules["bench_harness"] = importlib.util.module_from_spec(spec)
    names = ("machine", "measure", "process", "report", "results", "scenarios", "statistic", "targets")
    return SimpleNamespace(
        **{name: importlib.import_module(f"bench_harness.{name}") for name in names}
    )


def figures(p99):
    counts = dict.fromkeys(
        ("errors", "misses", "slow", "beside_ops", "load_cpu", "others_busy", "foreign", "strangers"), 0)
    return counts | {
        "requests": 1000,
        "tries": 1,
        "timed": 1000,
        "ops": 1000.0,
        "p50": 100.0,
        "p99": p99,
        "p99.9": 2 * p99,
        "max": 4 * p99,
        "server_cpu": 5.0,
        "gateway_cpu": 10.0,
        "first_error": None,
    }


def measured(bench, scenario, **rounds):
    """Results of contenders in one scenario, from the p99 of each of their rounds."""
    scenario = bench.scenarios.BY_NAME[scenario]
    chosen = [SimpleNamespace(name=name, variant=False) for name in rounds]
    results = bench.results.Results([scenario], chosen, "nutcracker")
    for contender in chosen:
        for number, p99 in enumerate(rounds[contender.name], 1):
            results.add(scenario, contender, number, figures(p99))
    return results


#: Of nutcracker's by the round, in a random order: two rounds are worse.
RATIOS = [1.2, 0.9, 0.8, 1.5, 0.7, 0.6, 0.9, 0.5]


def against_nutcracker(bench, *ratios):
    nutcracker = [300.0 + 50 * number for number in range(len(ratios))]
    cashew = [ratio * p99 for ratio, p99 in zip(ratios, nutcracker)]
    return measured(bench, "calm", nutcracker=nutcracker, cashew=cashew)


def test_an_interval_holds_the_median_nine_times_of_ten(bench):
    def interval(*ratios):
        return against_nutcracker(bench, *ratios).interval("calm", "cashew", "p99")

    assert interval(*RATIOS) == pytest.approx((0.6, 1.2))
    assert interval(*RATIOS[:5]) == pytest.approx((0.7, 1.5))
    assert interval(*RATIOS[:4]) is None
    assert interval() is None
    # The sign test's: k-th lowest and highest of n rounds, from tables of the binomial distribution.
    for rounds, lowest in ((5, 1), (7, 1), (8, 2), (10, 2), (11, 3), (20, 6), (40, 15)):
        low, high = interval(*range(1, rounds + 1))
        assert (low, high) == pytest.approx((lowest, rounds + 1 - lowest))


def test_an_interval_holds_the_median_of_a_distribution_as_often_as_it_says(bench):
    chance = random.Random(1)
    held = 0
    for _ in range(1000):
        rounds = {number: {"p99": chance.lognormvariate(0, 1)} for number in range(8)}
        low, high = bench.measure.interval(rounds, dict.fromkeys(range(8), {"p99": 1.0}), "p99")
        held += low <= 1 <= high
    # 1 - 18 / 256 of them.
    assert 900 < held < 955


def verdict(bench, *ratios):
    """Whether p99 is said to be no worse than nutcracker's."""
    text = bench.report.markdown(against_nutcracker(bench, *ratios), about(None), [])
    line = next(line for line in text.splitlines() if "p99, against nutcracker" in line)
    return line.split("|")[-2].strip()


def test_medians_decide_a_target_and_what_chance_may_have_done_is_told(bench):
    assert verdict(bench, *RATIOS) == "yes"
    assert verdict(bench, *(ratio + 0.3 for ratio in RATIOS)) == "perhaps: `calm` 1.15 (0.90–1.50)"
    assert verdict(bench, *(ratio + 0.5 for ratio in RATIOS)) == "no: `calm` 1.35 (1.10–1.70)"
    # Of few rounds nobody knows, and the median is all there is.
    assert verdict(bench, 0.9, 1.2, 1.3) == "no: `calm` 1.20"


def test_what_misses_a_target_for_certain_is_not_hidden_by_what_may_be_chance(bench):
    results = against_nutcracker(bench, *(ratio + 0.3 for ratio in RATIOS))
    worse = measured(bench, "half", nutcracker=[100.0] * 5, cashew=[120.0] * 5)
    results.scenarios += worse.scenarios
    results.rounds |= worse.rounds
    text = bench.report.markdown(results, about(None), [])
    line = next(line for line in text.splitlines() if "p99, against nutcracker" in line)
    assert "| no: `calm` 1.15 (0.90–1.50), `half` 1.20 (1.20–1.20) |" in line


def test_a_target_is_not_left_out_for_want_of_what_it_is_compared_with(bench):
    text = bench.report.markdown(measured(bench, "calm", nutcracker=[1.0], cashew=[1.0]), about(None), [])
    [line] = [line for line in text.splitlines() if "`calm`: p50, against cashew-nowindow" in line]
    assert line.endswith("| ≤ 1.05 × | – | not measured |")
    # Of what was not to be measured nothing is told.
    assert "`mget`" not in text


def tried(bench, *strangers):
    """The round that is kept of such in which others used these shares of a core."""
    left = [{"strangers": share, "p99": number} for number, share in enumerate(strangers)]
    machine = bench.measure.Bench.__new__(bench.measure.Bench)
    machine.measure = lambda *_: left.pop(0)
    return machine.measure_undisturbed("cashew", "calm", [])


def test_a_round_that_others_disturb_is_measured_again(bench):
    assert tried(bench, 0.001, 0.0) == {"strangers": 0.001, "p99": 0, "tries": 1}
    assert tried(bench, 0.04, 0.03, 0.01, 0.0) == {"strangers": 0.01, "p99": 2, "tries": 3}


def test_of_rounds_that_are_all_disturbed_the_least_is_kept(bench):
    assert tried(bench, 0.05, 0.03, 0.04, 0.06, 0.0) == {"strangers": 0.03, "p99": 1, "tries": 4}


def test_what_others_use_is_counted_without_ours_and_the_kernels_helpers(bench):
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as busy:
        try:
            ours = bench.machine.tree(os.getpid())
            assert busy.pid in ours
            assert not set(ours) & set(bench.machine.strangers(ours))
            others = bench.machine.strangers([pid for pid in ours if pid != busy.pid])
            assert busy.pid in others
            before = bench.machine.cpu_of_each(others)
            deadline = time.monotonic() + 10
            while bench.machine.cpu_of_each([busy.pid])[busy.pid] < before[busy.pid] + 50_000_000:
                assert time.monotonic() < deadline
                time.sleep(0.01)
            after = bench.machine.cpu_of_each(others)
            assert bench.measure.grown(before, after) >= 50_000_000
        finally:
            busy.kill()
    ended = bench.machine.cpu_of_each([busy.pid])
    assert ended == {}
    assert bench.measure.grown(before, ended) == 0


def test_how_busy_servers_and_load_are_is_their_share_of_the_time(bench):
    latency = dict.fromkeys(("mean", "p50", "p99", "p99.9", "max"), 1.0)
    report = {
        "requests": 1000, "seconds": 0.1, "ops_per_second": 10_000, "timed": 1000, "slow": 0, "errors": 0,
        "first_error": None, "misses": 0, "load_cpu_us_per_request": 40.0, "latency_us": latency,
        "beside_latency_us": latency, "beside_ops_per_second": 0,
    }
    start = {"time": 0, "gateway": 0, "servers": 0, "own": 0, "busy": 0, "strangers": {}}
    # 50 ms of the servers and 40 ms of the load in 100 ms.
    stop = start | {"time": 100_000_000, "servers": 50_000_000, "busy": 90_000_000}
    assert bench.measure.figures(report, start, stop, None)["others_busy"] == pytest.approx(0.9)


def test_the_report_tells_of_rounds_that_were_measured_again(bench):
    results = measured(bench, "calm", nutcracker=[1.0], cashew=[1.0])
    assert "more rounds" not in bench.report.markdown(results, about(None), [])
    results.rounds["calm"]["cashew"][1] |= {"tries": 4, "strangers": 0.03}
    text = bench.report.markdown(results, about(None), [])
    assert "3 more rounds than the 2 were measured" in text
    assert "1 were so to the last" in text


def spun(**given):
    return {"cpu": 0, "seconds": 2.0, "stalls": 0, "lost_ms": 0.0, "longest_ms": 0.0} | {
        "elsewhere_ms": 0.0,
        **given,
    }


def about(stalls):
    return {
        "machine": {
            "date": "2026-01-01 00:00 UTC",
            "cpu": "some",
            "cores": 2,
            "kernel": "6.1",
            "system": "Debian",
            "load_average": 0.0,
            "congestion_control": "cubic",
            **({"stalls": stalls} if stalls else {}),
        },
        "versions": {},
        "command": "bench/run",
        "rounds": 5,
        "tail_rounds": 24,
        "seconds": 2.0,
        "gateway_cpus": "0",
        "other_cpus": "1",
    }


def test_the_report_tells_for_how_long_the_machine_was_away(bench):
    stalls = {
        "before": [spun(stalls=6, lost_ms=20.0, longest_ms=9.0), spun()],
        "after": [spun(), spun(stalls=2, lost_ms=60.0, longest_ms=5.0, elsewhere_ms=40.0)],
    }
    text = bench.report.markdown(against_nutcracker(bench, *RATIOS), about(stalls), [])
    assert "for 1.00 % of the time (0.50 % before and 1.50 % after), 1.00 times a second" in text
    assert "in pieces of up to 9.00 ms" in text
    assert "Other processes had them for 0.50 %" in text
    assert "5 round(s) (24 of `tails`)" in text


def test_a_machine_that_does_not_stall_is_told_too(bench):
    stalls = {"before": [spun(), spun()], "after": [spun(), spun()]}
    text = " ".join(bench.report.stall_lines(stalls))
    assert "took none away" in text
    assert "Other processes" not in text
    assert bench.report.stall_lines({}) == []


def test_who_is_beside_the_others_has_a_column_by_what_he_is(bench):
    scenarios = bench.scenarios.BY_NAME
    for name, title in (("slow", "slow operations/s"), ("fair", "greedy operations/s")):
        results = measured(bench, name, nutcracker=[1.0], cashew=[1.0])
        for contender, operations in (("nutcracker", 1000.0), ("cashew", 500.0)):
            results.rounds[name][contender][1]["beside_ops"] = operations
        lines = bench.report.scenario_lines(results, scenarios[name])
        tables = [[cell.strip() for cell in line.split("|")] for line in lines]
        columns = [cells.index(title) for cells in tables if title in cells]
        rows = [cells for cells in tables if cells[1:2] == ["cashew"]]
        assert [row[at] for row, at in zip(rows, columns, strict=True)] == ["500", "0.50 ×"]
    assert bench.report.beside_title(scenarios["p1"]) == []


def test_slow_clients_are_asked_of_the_load_and_judged_by_the_others(bench):
    slow = bench.scenarios.BY_NAME["slow"]
    assert {"--connections=45", "--slow=5", "--slow-rate=200"} <= set(slow.arguments())
    assert "slow" in bench.scenarios.DEFAULT
    # The others' rate is not given, so that their operations/s count.
    judged = [each for each in bench.targets.TARGETS if each.covers(slow)]
    assert "ops" in [each.metric for each in judged]
    assert not [each for each in bench.scenarios.BY_NAME["p1"].arguments() if "slow" in each]


def watched(bench, program, tmp_path):
    """What becomes of a load generator that does this when it is to watch for stalls."""
    script = tmp_path / "load"
    script.write_text(f"#!/bin/sh\n{program}\n")
    script.chmod(0o755)
    own = bench.measure.Bench.__new__(bench.measure.Bench)
    own.load_program, own.path = str(script), str(tmp_path)
    [cpu, *_] = sorted(os.sched_getaffinity(0))
    own.gateway_cpus = own.other_cpus = {cpu}
    try:
        return cpu, own.stalls(seconds=0.1)
    finally:
        assert not bench.process.Running.living


def test_every_processor_is_watched_by_a_pinned_load_generator(bench, tmp_path):
    report = json.dumps(spun(stalls=3))
    program = f"""[ "$*" = "--stalls --seconds=0.1" ] || exit 9
    echo '{report[:-1]}, "allowed": "'$(grep -oP 'Cpus_allowed_list:\\s*\\K.*' /proc/self/status)'"}}'"""
    cpu, [spun_there] = watched(bench, program, tmp_path)
    assert spun_there["stalls"] == 3
    assert spun_there["allowed"] == str(cpu)


def test_a_watch_that_fails_says_why(bench, tmp_path):
    with pytest.raises(bench.process.Broken, match="no such clock"):
        watched(bench, "echo no such clock >&2; exit 1", tmp_path)


def test_tails_have_rounds_of_their_own():
    # bench/run has no suffix, and finds its package by its own directory: asked from outside.
    script = """
import sys
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
loader = SourceFileLoader("run", sys.argv.pop(1))
run = module_from_spec(spec_from_loader("run", loader))
loader.exec_module(run)
options = run.arguments()
print(*(run.rounds_of(run.scenarios.BY_NAME[name], options) for name in ("p1", "calm", "idle")))
"""
    path = str(BENCH / "run")
    for arguments, rounds in (
        (["--rounds", "3"], "3 3 1"),
        (["--rounds", "3", "--tail-rounds", "24"], "3 24 1"),
        (["--tail-rounds", "9"], "5 9 1"),
    ):
        command = [sys.executable, "-B", "-c", script, path, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
        assert done.stdout.split() == rounds.split()


@pytest.mark.parametrize("protocol", ["redis", "memcached"])
def test_each_statistic_is_counted_beside_none(bench, protocol, tmp_path):
    """Their options are good, and of all statistics exactly one is on."""
    statistic = bench.statistic
    texts = {}
    for name in (statistic.NONE, *statistic.STATISTICS, statistic.AGAIN):
        gateway = statistic.Counting(name, CASHEW, directory=tmp_path, collector=4318)
        texts[name] = gateway.configuration([22121], [6379], protocol)
        assert gateway.takes(texts[name]), name
    none = set(texts.pop(statistic.NONE).splitlines())
    assert set(texts.pop(statistic.AGAIN).splitlines()) == none
    for name, text in texts.items():
        assert [line.strip().partition(":")[0] for line in set(text.splitlines()) - none] == [name]


def test_what_a_statistic_costs_is_told_in_percent_of_none(bench):
    assert bench.statistic.above(110.0, 100.0) == pytest.approx(10.0)
    assert bench.statistic.above(None, 100.0) is None
