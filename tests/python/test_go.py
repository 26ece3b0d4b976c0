"""Real clients in Go, against a stack that this starts: go-redis and gomemcache."""

import os
import re
import subprocess
from pathlib import Path

import pytest

from harness import HOST, server_lines

GO = Path(__file__).resolve().parents[1] / "clients" / "go"


@pytest.mark.timeout(600)  # the first run compiles and may download
def test_go_clients(place):
    gateway = place.cashew(
        {
            "alpha": {"redis": True, "servers": server_lines([place.redis() for _ in range(3)])},
            "beta": {"servers": server_lines([place.memcached() for _ in range(2)])},
        },
        {"worker_processes": 2},
    )
    done = subprocess.run(
        ["go", "test", "-count=1", "-timeout=180s", "-v", "./..."],
        cwd=GO,
        env={
            **os.environ,
            "CASHEW_REDIS": f"{HOST}:{gateway.addresses['alpha']}",
            "CASHEW_MEMCACHED": f"{HOST}:{gateway.addresses['beta']}",
        },
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=580,
    )
    print(done.stdout)
    assert done.returncode == 0, done.stdout[-8000:]
    passed = re.findall(r"^--- PASS: (\w+)", done.stdout, re.MULTILINE)
    assert len(passed) >= 11, passed
