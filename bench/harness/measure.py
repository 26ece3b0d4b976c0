"""One measurement: one contender in front of fresh servers, clocks read at the window's edges."""

import contextlib
import itertools
import json
import math
import os
import resource
import statistics
import subprocess
import tempfile
import threading
import time

from . import machine
from .process import Broken, Running, free_port, wait_ready

#: Longest that a load run may last beyond its own bound.
SLACK = 30.0
REST_AFTER_PEAK = 10.0
SATURATION_ROUNDS = 3
#: For how long the processors are watched before the first round and after the last.
WATCH_STALLS = 2.0
#: A round in which processes that are none of the bench's used more than this share of a core is
#: measured again: they decide its p99, whoever it is that they interrupt. The agent of a virtual machine
#: needs about 1 %.
DISTURBED = 0.02
#: The most rounds that are measured for one.
TRIES = 4
#: With which probability a median lies in its interval, at least.
CONFIDENCE = 0.9


class Bench:
    """The machine's cores and the programs that every measurement shares."""

    def __init__(self, load, gateway_cpus, other_cpus, seconds, warmup):
        self.load_program = load
        self.gateway_cpus = gateway_cpus
        self.other_cpus = other_cpus
        self.seconds = seconds
        self.warmup = warmup
        self.directory = tempfile.TemporaryDirectory(prefix="cashew-bench-")
        self.path = self.directory.name
        # Gateways drop privileges; the files they are given must stay readable.
        os.chmod(self.path, 0o755)
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        os.sched_setaffinity(0, other_cpus)
        # Clocks are read when the window opens, not when the load next gives way. Children start
        # as ordinary processes.
        with contextlib.suppress(PermissionError):
            policy = os.SCHED_FIFO | os.SCHED_RESET_ON_FORK
            os.sched_setscheduler(0, policy, os.sched_param(1))

    def close(self):
        Running.stop_all()
        self.directory.cleanup()

    def start_servers(self, scenario):
        """Starts the servers of a scenario and gives each of them every key.

        Every key on every server: placement may differ between contenders, and a TCP proxy has
        none at all, but nobody's GET shall miss.
        """
        servers = []
        for number in range(scenario.servers):
            port = free_port()
            command = server_command(scenario.server, port)
            server = Running(f"server{number}-{port}", command, self.other_cpus, self.path)
            server.port = port
            servers.append(server)
        for server in servers:
            wait_ready(server, server.port, scenario.server)
            self.load([server.port], [*scenario.data(), "--fill"])
        return servers

    def saturation(self, contender, scenario):
        """What a contender serves at most: operations per second, the middle of some rounds."""
        servers = self.start_servers(scenario)
        try:
            rounds = [
                self.measure(contender, scenario, servers)["ops"] for _ in range(SATURATION_ROUNDS)
            ]
        finally:
            for server in servers:
                server.stop()
        return statistics.median(rounds)

    def load(self, ports, arguments, sample=lambda _event: None, bound=60.0):
        """Runs the load generator to its end and returns its report."""
        addresses = [f"--addr=127.0.0.1:{port}" for port in ports]
        command = [self.load_program, *addresses, *arguments]
        load = Running(
            f"load-{ports[0]}", command, self.other_cpus, self.path, stdout=subprocess.PIPE
        )
        watchdog = threading.Timer(bound + SLACK, load.popen.kill)
        watchdog.start()
        report = None
        try:
            for line in load.popen.stdout:
                message = json.loads(line)
                sample(message["event"])
                if message["event"] == "report":
                    report = message
            load.popen.wait()
        finally:
            watchdog.cancel()
            load.popen.stdout.close()
            load.stop()
        if load.popen.returncode or report is None:
            raise Broken(f"load ended with status {load.popen.returncode}: {load.last_words()}")
        return report

    def stranger(self, generator, port, sample, bound=60.0):
        """Runs somebody else's generator to its end. Its start and its end are the window."""
        running = Running(
            generator.program, generator.command(port), self.other_cpus, self.path,
            stdout=subprocess.PIPE,
        )
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        sample("start")
        start = time.monotonic()
        try:
            output, _ = running.popen.communicate(timeout=bound)
        except subprocess.TimeoutExpired as late:
            raise Broken(f"{generator.program} did not end within {late.timeout:g} s") from late
        finally:
            seconds = time.monotonic() - start
            sample("stop")
            running.stop()
        if running.popen.returncode:
            raise Broken(f"{generator.program} ended with status {running.popen.returncode}")
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        latency = generator.latency(output.decode(errors="replace"))
        return {
            "requests": generator.requests,
            "ops_per_second": generator.requests / seconds,
            "seconds": seconds,
            "load_cpu_us_per_request": 1e6 * cpu / generator.requests,
            "latency_us": dict.fromkeys(("mean", "p50", "p99", "p99.9", "max")) | latency,
            "beside_latency_us": {"p50": None, "p99": None},
            "beside_ops_per_second": 0,
            "timed": generator.requests,
            "slow": 0,
            "errors": 0,
            "first_error": None,
            "misses": 0,
        }

    def stalls(self, seconds=WATCH_STALLS):
        """How long each processor was away while all of them were busy: a report for each."""
        cpus = sorted(self.gateway_cpus | self.other_cpus)
        command = [self.load_program, "--stalls", f"--seconds={seconds}"]
        spinners = {}
        try:
            for cpu in cpus:
                spinners[cpu] = Running(
                    f"stalls-{cpu}", command, {cpu}, self.path, stdout=subprocess.PIPE
                )
            reports = []
            for cpu, spinner in spinners.items():
                output, _ = spinner.popen.communicate(timeout=seconds + SLACK)
                if spinner.popen.returncode:
                    raise Broken(spinner.last_words())
                reports.append({"cpu": cpu} | json.loads(output))
        except subprocess.TimeoutExpired as late:
            raise Broken(f"it did not end within {late.timeout:g} s") from late
        finally:
            for spinner in spinners.values():
                spinner.popen.stdout.close()
                spinner.stop()
        return reports

    def measure_undisturbed(self, contender, scenario, servers):
        """One round, again while others disturb it: the least disturbed of at most `TRIES`.

        Which round is kept depends on what others used only, never on what was measured.
        """
        tries = []
        while len(tries) < TRIES:
            tries.append(self.measure(contender, scenario, servers))
            if tries[-1] is None or tries[-1].get("strangers", 0) <= DISTURBED:
                break
        least = min(tries, key=lambda figures: (figures or {}).get("strangers", 0))
        return least and least | {"tries": len(tries)}

    def measure(self, contender, scenario, servers):
        """One round of one contender: the figures of the measured window."""
        kinds = {"load": self.measure_load, "idle": self.measure_idle, "peak": self.measure_peak}
        ports = [server.port for server in servers]
        gateway, listen = contender.start(scenario, ports, self.gateway_cpus, self.path)
        moved = servers if contender.own_core else []
        for server in moved:
            machine.pin(server.pid, self.gateway_cpus)
        try:
            wait_ready(gateway or servers[0], listen[-1], scenario.server)
            return kinds[scenario.kind](scenario, gateway, listen, servers)
        finally:
            for server in moved:
                machine.pin(server.pid, self.other_cpus)
            if gateway:
                gateway.stop()

    def measure_load(self, scenario, gateway, listen, servers):
        samples = {}
        pids = gateway.pids() if gateway else []
        strangers = machine.strangers(machine.tree(os.getpid()))

        def sample(event):
            if event in ("start", "stop"):
                samples[event] = clocks(pids, servers, strangers)

        if scenario.generator:
            report = self.stranger(scenario.generator, listen[0], sample)
        else:
            arguments = [*scenario.arguments(), *self.window()]
            report = self.load(listen, arguments, sample, self.bound())
        memory = machine.memory_kib(gateway.pids()) if gateway else None
        for running in [gateway, *servers]:
            if running:
                running.check()
        if gateway and sorted(gateway.pids()) != sorted(pids):
            raise Broken("processes of the gateway came or went while it was measured")
        return figures(report, samples["start"], samples["stop"], memory)

    def measure_idle(self, scenario, gateway, listen, _servers):
        if gateway is None:
            return None
        time.sleep(0.3)
        before = machine.memory_kib(gateway.pids())["now"]
        held = []

        def sample(event):
            if event == "stop":
                held.append(machine.memory_kib(gateway.pids())["now"])

        self.load(listen, [*scenario.arguments(), "--events", "--warmup=0", "--seconds=1"], sample)
        return {
            "start_kib": before,
            "held_kib": held[0],
            "connections": scenario.connections,
            "bytes_per_connection": (held[0] - before) * 1024 / scenario.connections,
        }

    def measure_peak(self, scenario, gateway, listen, _servers):
        if gateway is None:
            return None
        time.sleep(0.3)
        before = machine.memory_kib(gateway.pids())["now"]
        self.load(listen, [*scenario.arguments(), *self.window()], bound=self.bound())
        peak = machine.memory_kib(gateway.pids())["peak"]
        time.sleep(REST_AFTER_PEAK)
        after = machine.memory_kib(gateway.pids())["now"]
        return {
            "start_kib": before,
            "peak_kib": peak,
            "after_kib": after,
            "after_start": after / before,
        }

    def window(self):
        return ["--events", f"--warmup={self.warmup}", f"--seconds={self.seconds}"]

    def bound(self):
        return self.warmup + self.seconds


def server_command(protocol, port):
    if protocol == "memcached":
        user = ["-u", "nobody"] if os.geteuid() == 0 else []
        limits = ["-m", "1024", "-c", "16000", "-I", "2m", "-t", "1"]
        return [
            machine.tool("memcached"),
            "-l",
            "127.0.0.1",
            "-p",
            str(port),
            "-U",
            "0",
            *limits,
            *user,
        ]
    quiet = ["--save", "", "--appendonly", "no", "--protected-mode", "no"]
    return [machine.tool("redis-server"), "--bind", "127.0.0.1", "--port", str(port), *quiet]


def clocks(pids, servers, strangers):
    """All clocks at one edge of the window, the gateway's first."""
    try:
        return {
            "gateway": sum(map(machine.cpu_ns, pids)) if pids else None,
            "time": time.monotonic_ns(),
            "servers": sum(machine.cpu_ns(server.pid) for server in servers),
            "busy": machine.busy_ns(),
            "own": time.process_time_ns(),
            "strangers": machine.cpu_of_each(strangers),
            "switches": [sum(column) for column in zip(*map(machine.switches, pids))],
        }
    except OSError as error:
        raise Broken("a process ended while it was measured") from error


def figures(report, start, stop, memory):
    """What one round says, from the load's report and the clocks at both edges."""
    requests = max(report["requests"], 1)
    wall = stop["time"] - start["time"]
    gateway = stop["gateway"] - start["gateway"] if memory else 0
    servers = stop["servers"] - start["servers"]
    load = report["load_cpu_us_per_request"] * requests * 1000
    known = gateway + servers + load + stop["own"] - start["own"]
    latency, beside = report["latency_us"], report["beside_latency_us"]
    result = {
        "requests": report["requests"],
        "ops": report["ops_per_second"],
        "mean": latency["mean"],
        "timed": report["timed"],
        "slow": report["slow"],
        "slow_share": report["slow"] / max(report["timed"], 1),
        "beside_ops": report["beside_ops_per_second"],
        "beside_p50": beside["p50"],
        "beside_p99": beside["p99"],
        "p50": latency["p50"],
        "p99": latency["p99"],
        "p99.9": latency["p99.9"],
        "max": latency["max"],
        "errors": report["errors"],
        "first_error": report["first_error"],
        "misses": report["misses"],
        "server_cpu": servers / requests / 1000,
        "load_cpu": report["load_cpu_us_per_request"],
        "others_busy": (servers + load) / wall,
        "foreign": max(stop["busy"] - start["busy"] - known, 0) / wall,
        "strangers": grown(start["strangers"], stop["strangers"]) / wall,
        # How far the clocks' window is off the load's.
        "skew": wall / 1e9 / report["seconds"] - 1,
    }
    if memory:
        changes = [after - before for after, before in zip(stop["switches"], start["switches"])]
        result["gateway_cpu"] = gateway / requests / 1000
        result["gateway_busy"] = gateway / wall
        result["sleeps"] = changes[0] / requests
        result["preemptions"] = changes[1] / requests
        result["peak_kib"] = memory["peak"]
    return result


def grown(before, after):
    """By how much a sum has grown, of those that were there both times."""
    return sum(after[each] - before[each] for each in before.keys() & after.keys())


def medians(rounds):
    """The median of every figure over the rounds of one contender."""
    if not rounds:
        return {}
    numbers = [key for key, value in rounds[0].items() if isinstance(value, (int, float))]
    return {key: statistics.median(each[key] for each in rounds) for key in numbers}


def ratio(rounds, baseline, key):
    """The median of the ratios round by round: a drift of the machine cancels out."""
    pairs = list(ratios(rounds, baseline, key).values())
    return statistics.median(pairs) if pairs else None


def interval(rounds, baseline, key):
    """Between which ratios the median lies nine times of ten and more, however they are spread; none
    of fewer than five rounds.

    That the median is below the k-th lowest of n independent rounds, or above the k-th highest, is as
    probable as fewer than k heads, or tails, of n coins (the confidence interval of the sign test).
    """
    pairs = sorted(ratios(rounds, baseline, key).values())
    count = len(pairs)
    outside = itertools.accumulate(2 * math.comb(count, k) / 2**count for k in range(count))
    cut = sum(each <= 1 - CONFIDENCE for each in outside)
    return (pairs[cut - 1], pairs[-cut]) if cut else None


def ratios(rounds, baseline, key):
    """The ratio of each round that both have: round number -> ratio."""
    return {
        number: each[key] / other[key]
        for number, each in rounds.items()
        if (other := baseline.get(number)) and other.get(key) and each.get(key) is not None
    }
