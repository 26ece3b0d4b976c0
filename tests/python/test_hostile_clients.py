"""bench/hostile-clients runs, and what it says of Cashew is so: it lives, and polite clients are served."""

import json
import subprocess
import sys

import pytest

from harness import CASHEW, ROOT


@pytest.mark.alone
def test_polite_clients_are_served_beside_hostile_ones(tmp_path):
    figures = tmp_path / "figures.json"
    attacks = ["never-reads", "garbage", "half-requests", "noreply"]
    done = subprocess.run(
        [sys.executable, ROOT / "bench/hostile-clients", "--cashew", CASHEW, "--contenders", "cashew",
         "--seconds", "1", "--rest", "0.5", "--attacks", ",".join(attacks), "--json", figures],
        capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(figures.read_text())
    assert list(found) == attacks
    for name in attacks:
        it = found[name]["cashew"]
        assert it["is_alive"] and it["polite"]["asked"] > 0 and it["polite"]["wrong"] == 0, (name, it)
        assert it["hostile"]["connections"] > 0 and it["hostile"]["sent"] > 0, (name, it)
        assert 0 < it["after"] <= it["peak"] + (1 << 20) < 1 << 30, (name, it)
    # Garbage is answered by errors, or the connection ends; those who come again are let in again.
    assert found["garbage"]["cashew"]["hostile"]["said"].startswith("-ERR")
    # Who asks for 600 MiB and reads nothing does not get the gateway to keep them.
    assert found["never-reads"]["cashew"]["peak"] < 300 << 20
