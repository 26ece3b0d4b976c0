"""Redis's own test suite through the gateway, in front of one server, of three, and of a cluster.

What fails is compared with the list of what is known to be different, tests/redis/differences.txt,
in which each line has its reason."""

import subprocess
from pathlib import Path

import pytest

from harness import NICE

RUN = Path(__file__).resolve().parents[1] / "redis" / "run"


# The first run fetches the suite.
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("servers", "protocol"),
    [
        ("one", "2"),
        pytest.param("one", "3", marks=pytest.mark.long),
        pytest.param("three", "2", marks=pytest.mark.long),
        pytest.param("three", "3", marks=pytest.mark.long),
        ("cluster", "2"),
        pytest.param("cluster", "3", marks=pytest.mark.long),
    ],
)
def test_the_suite_of_redis(servers, protocol):
    done = subprocess.run(
        [*NICE, RUN, "--servers", servers, "--protocols", protocol, "--jobs", "4"],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        timeout=1780,
    )
    print(done.stdout)
    # What is not as listed comes last.
    assert done.returncode == 0, "\n".join(done.stdout.splitlines()[-1:-40:-1])
