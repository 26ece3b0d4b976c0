"""Chaos: `scripts/long chaos [--seconds N] [--seed S]`."""

import argparse
import os
import random
import shutil
import sys

from chaos.rounds import Run


def enter_own_network():
    """Starts this program again in namespaces that end with it, where that is possible."""
    if os.environ.get("CHAOS_IS_INSIDE") or os.geteuid() != 0:
        return
    if not all(map(shutil.which, ("unshare", "ip", "nft", "mount"))):
        print("without cut links and full disks: unshare, ip, nft and mount are needed", flush=True)
        return
    words = [sys.executable, "-m", "chaos", *sys.argv[1:]]
    inside = 'ip link set lo up && exec "$@"'
    os.environ["CHAOS_IS_INSIDE"] = "1"
    os.execvp("unshare", ["unshare", "--net", "--mount", "--propagation", "private", "sh", "-c", inside, "sh", *words])


def main():
    parser = argparse.ArgumentParser(prog="scripts/long chaos", description=__doc__)
    parser.add_argument("--seconds", type=float, default=1800, help="how long it goes on [%(default)s]")
    parser.add_argument("--seed", default=str(random.randrange(10**9)), help="chooses the faults [by chance]")
    parser.add_argument("--round", type=float, default=20, help="seconds of faults between two checks [%(default)s]")
    parser.add_argument("--only", default="", help="domains of faults, with commas between them [all]")
    parser.add_argument("--findings", default="target/chaos", help="where findings go [%(default)s]")
    arguments = parser.parse_args()
    enter_own_network()
    sys.exit(Run(arguments, bool(os.environ.get("CHAOS_IS_INSIDE"))).run())


if __name__ == "__main__":
    main()
