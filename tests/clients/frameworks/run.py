"""Starts servers and gateways and runs the programs here against one server and against three; to be
called by scripts/frameworks."""

import os
import pathlib
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1] / "python"))

from conftest import Place  # noqa: E402
from harness import HOST, server_lines  # noqa: E402


def main(python, node_modules):
    failed = 0
    for count in (1, 3):
        place = Place()
        try:
            redis = [place.redis() for _ in range(count)]
            memcached = [place.memcached() for _ in range(count)]
            options = {"hash": "murmur", "timeout": 5000}
            gateway = place.cashew({
                "redis": {**options, "redis": True, "hash_tag": '"{}"',
                          "servers": server_lines(redis)},
                "single": {**options, "redis": True, "servers": server_lines(redis[:1])},
                "memcached": {**options, "servers": server_lines(memcached)},
            }, {"worker_processes": 2})
            gateway.wait_serving()
            environment = {**os.environ, "NODE_PATH": node_modules,
                           "CASHEW_REDIS": f"{HOST}:{gateway.addresses['redis']}",
                           "CASHEW_SINGLE": str(gateway.addresses["single"]),
                           "CASHEW_SERVERS": str(count),
                           "CASHEW_MEMCACHED": f"{HOST}:{gateway.addresses['memcached']}"}
            programs = [[python, HERE / "python.py", name] for name in ("celery", "django", "rq")]
            programs.append(["node", HERE / "bullmq.js"])
            for program in programs:
                done = subprocess.run(program, env=environment, text=True, timeout=120,
                                      stdout=subprocess.PIPE)
                for line in done.stdout.splitlines():
                    print(f"{count} server(s): {line}", flush=True)
                failed += done.returncode != 0 or "failed " in done.stdout
        finally:
            place.stack.close()
    return failed


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:3]))
