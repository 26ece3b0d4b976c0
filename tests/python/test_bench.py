"""What the benchmark makes of its rounds (bench/harness)."""

import importlib
import importlib.util
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

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
    names = ("machine", "measure", "process", "report", "results", "scenarios", "targets")
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


#: Both 300 µs and a little when the machine does not stall, which it does more often than not.
STALLED = {
    "nutcracker": [300.0, 4000.0, 310.0, 320.0, 5000.0, 3000.0, 330.0, 340.0],
    "cashew": [4000.0, 330.0, 3000.0, 5000.0, 310.0, 320.0, 4500.0, 3500.0],
}


def test_quiet_rounds_are_compared_when_stalls_decide_the_median(bench):
    results = measured(bench, "calm", **STALLED)
    assert results.ratio("calm", "cashew", "p99") > 5
    assert results.quiet_ratio("calm", "cashew", "p99") == pytest.approx(327.5 / 317.5)
    assert results.quiet_ratio("calm", "nutcracker", "p99") == 1


def test_what_is_slower_in_every_round_is_slower_in_the_quiet_ones(bench):
    slower = [2 * p99 for p99 in STALLED["nutcracker"]]
    results = measured(bench, "calm", nutcracker=STALLED["nutcracker"], cashew=slower)
    assert results.quiet_ratio("calm", "cashew", "p99") == 2


def test_few_rounds_have_no_quiet_ones(bench):
    results = measured(bench, "calm", nutcracker=[1.0] * 4, cashew=[1.0] * 3)
    assert results.quiet_ratio("calm", "cashew", "p99") is None
    assert results.quiet_ratio("calm", "absent", "p99") is None
    assert results.quiet_ratio("calm", "nutcracker", "p99") == 1
    few = measured(bench, "calm", nutcracker=[1.0] * 3, cashew=[1.0] * 3)
    text = bench.report.markdown(few, about(None), [])
    assert "quiet" not in text


def test_medians_decide_a_target_and_quiet_rounds_stand_beside(bench):
    results = measured(bench, "calm", **STALLED)
    verdicts = [
        (worst, missed, quiet)
        for target, worst, missed, quiet in bench.targets.verdicts(results)
        if target.metric == "p99" and target.bases == ("nutcracker",)
    ]
    [(worst, missed, quiet)] = verdicts
    median = results.ratio("calm", "cashew", "p99")
    assert worst == median
    assert missed == [("calm", median)]
    assert quiet == [("calm", pytest.approx(327.5 / 317.5))]


def test_only_tails_have_quiet_rounds_among_the_targets(bench):
    results = measured(bench, "calm", **STALLED)
    others = [
        quiet
        for target, _, _, quiet in bench.targets.verdicts(results)
        if target.metric not in ("p99", "p99.9")
    ]
    assert others
    assert not any(others)


def tried(bench, *strangers):
    """The round that is kept of such in which others used these shares of a core."""
    left = [{"strangers": share, "p99": number} for number, share in enumerate(strangers)]
    machine = bench.measure.Bench.__new__(bench.measure.Bench)
    machine.measure = lambda *_: left.pop(0)
    return machine.measure_undisturbed("cashew", "calm", [])


def test_a_round_that_others_disturb_is_measured_again(bench):
    assert tried(bench, 0.001, 0.0) == {"strangers": 0.001, "p99": 0, "tries": 1}
    assert tried(bench, 0.03, 0.02, 0.01, 0.0) == {"strangers": 0.01, "p99": 2, "tries": 3}


def test_of_rounds_that_are_all_disturbed_the_least_is_kept(bench):
    assert tried(bench, 0.04, 0.02, 0.03, 0.05, 0.0) == {"strangers": 0.02, "p99": 1, "tries": 4}


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


def test_the_report_tells_of_rounds_that_were_measured_again(bench):
    results = measured(bench, "calm", nutcracker=[1.0], cashew=[1.0])
    assert "more rounds" not in bench.report.markdown(results, about(None), [])
    results.rounds["calm"]["cashew"][1] |= {"tries": 4, "strangers": 0.02}
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


def test_the_report_tells_both(bench):
    stalls = {
        "before": [spun(stalls=6, lost_ms=20.0, longest_ms=9.0), spun()],
        "after": [spun(), spun(stalls=2, lost_ms=60.0, longest_ms=5.0, elsewhere_ms=40.0)],
    }
    text = bench.report.markdown(measured(bench, "calm", **STALLED), about(stalls), [])
    assert "for 1.00 % of the time (0.50 % before and 1.50 % after), 1.00 times a second" in text
    assert "in pieces of up to 9.00 ms" in text
    assert "Other processes had them for 0.50 %" in text
    assert "5 round(s) (24 of `tails`)" in text
    versus = next(line for line in text.splitlines() if line.startswith("| vs nutcracker"))
    columns = [cell.strip() for cell in versus.split("|")]
    row = next(line for line in text.splitlines() if line.startswith("| cashew | 1.00 ×"))
    cells = [cell.strip() for cell in row.split("|")]
    for title in ("p99, quiet", "p99.9, quiet"):
        assert cells[columns.index(title)] == "1.03 ×"
    assert "The *quiet* columns" in text
    target = next(line for line in text.splitlines() if "p99, against nutcracker" in line)
    assert target.endswith("| 1.03 ×: `calm` 1.03 |")


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
