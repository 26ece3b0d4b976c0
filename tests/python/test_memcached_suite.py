"""memcached's own tests through the gateway: see tests/memcached/run, which is for people as well."""

import subprocess
import sys
from pathlib import Path

import pytest

from harness import NICE

RUN = Path(__file__).resolve().parents[1] / "memcached" / "run"


@pytest.mark.timeout(1800)  # the first run fetches them
def test_memcached_s_own_tests():
    done = subprocess.run([*NICE, sys.executable, RUN, "--show", "--jobs", "4"], stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=1780)
    print(done.stdout)
    assert done.returncode == 0, done.stdout[-8000:]
    assert "PASSES" not in done.stdout and "passed in" in done.stdout
