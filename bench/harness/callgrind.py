"""Counts a gateway's user-space instructions, which needs no quiet machine."""

import glob
import os
import re
import re
import shutil
import subprocess
import tempfile

from . import contenders, machine
from .process import Broken, wait_ready

#: callgrind counts `rep movsb`, one instruction, once for each byte that it copies, and from which
#: length on a C library copies so depends on the library and the processor: it is kept from it.
TUNABLES = f"glibc.cpu.x86_rep_movsb_threshold={1 << 40}"

#: Time for a gateway under valgrind to start, and to write its counts when it ends.
PATIENCE = 120.0


class InThreads(contenders.Cashew):
    """Cashew as one process: valgrind 3.19 does not know pidfd_open(2), by which a master watches
    its workers."""

    def configuration(self, listen, ports, protocol):
        text = self.in_threads(super().configuration(listen, ports, protocol))
        # All requests are slow under valgrind, and none of those that it stands for.
        patient = re.sub(r"^( *)preconnect: true\n", r"\g<0>\1slow_log: 1h\n", text, flags=re.MULTILINE)
        if self.takes(patient):
            return patient
        if not self.variant:
            raise Broken(f"{self.program} does not take the configuration that counts are made with")
        return text

    @staticmethod
    def in_threads(text):
        return text.replace("worker_processes: 1", "worker_processes: 0")

    def takes(self, text):
        """Whether it is no older build, which does not know an option."""
        with tempfile.NamedTemporaryFile("w", suffix=".yml") as file:
            file.write(text)
            file.flush()
            check = [self.path(), "-t", "-c", file.name]
            return subprocess.run(check, capture_output=True, check=False).returncode == 0


def of_life(bench, contender, scenario, ports, requests=0, keep=None):
    """Instructions of one whole life of a gateway: it starts, answers one request, serves so many
    of the scenario's, and stops."""
    directory = tempfile.mkdtemp(dir=bench.path)
    # Workers may run as another user and still have to write their counts.
    os.chmod(directory, 0o777)
    out = os.path.join(directory, f"{contender.name}.{os.path.basename(directory)}.%p")
    prefix = [
        "env",
        f"GLIBC_TUNABLES={TUNABLES}",
        machine.tool("valgrind"),
        "--tool=callgrind",
        "--trace-children=yes",
        f"--callgrind-out-file={out}",
    ]
    gateway, listen = contender.start(scenario, ports, bench.gateway_cpus, bench.path, prefix)
    answer = {"errors": 0, "misses": 0}
    try:
        wait_ready(gateway, listen[0], scenario.server, PATIENCE)
        if requests:
            asked = [*scenario.arguments(), f"--requests={requests}"]
            answer = bench.load(listen, asked, bound=600)
        gateway.check()
    finally:
        gateway.stop(PATIENCE)
    if answer["errors"] or answer["misses"]:
        raise Broken(f"{contender.name}: {answer['errors']} errors, {answer['misses']} misses")
    files = glob.glob(out.replace("%p", "*"))
    totals = [
        re.findall(r"^(?:summary|totals): (\d+)", machine.read(file), re.MULTILINE)
        for file in files
    ]
    if not any(totals):
        raise Broken(f"{contender.name} left no counts: {gateway.last_words()}")
    if keep:
        os.makedirs(keep, exist_ok=True)
        for file in files:
            shutil.copy(file, keep)
    return sum(max(map(int, found)) for found in totals if found)


def of_request(bench, contender, scenario, ports, requests, keep=None):
    """What one request costs, without what starting, connecting and stopping cost: the difference
    between a life of N and one of 2N requests. Now and then a start is dearer than thousands of
    requests, so that one difference alone says little: take the median of some."""
    once, twice = (
        of_life(bench, contender, scenario, ports, count, keep)
        for count in (requests, 2 * requests)
    )
    return (twice - once) / requests
