#!/usr/bin/env python3
"""Builds the newest memcached that the distribution's archive has, in its unstable suite, and prints the
path of the program. It is kept under target/; remove target/memcached-newest to look for a newer one.

Needs a C compiler, make and libevent-dev. Status 3: it is not to be had here, and why.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.dont_write_bytecode = True
sys.path.insert(0, str(ROOT / "tests" / "python"))

import distribution
from harness import making

CACHE = ROOT / "target" / "memcached-newest"


def newest():
    program = CACHE / "memcached"
    with making(CACHE):
        if not program.exists():
            build(program)
    return program


def build(program):
    for tool, package in (("cc", "gcc"), ("make", "make")):
        if not shutil.which(tool):
            raise distribution.Missing(f"{tool} is needed (Debian and Ubuntu: apt-get install {package})")
    archive, version = distribution.newest_source(CACHE, "memcached")
    source = CACHE / f"memcached-{version}"
    distribution.unpack(archive, source)
    quiet = {"stdin": subprocess.DEVNULL, "capture_output": True, "text": True}
    for command in (["./configure", "--quiet", "--disable-docs", "CFLAGS=-O1 -w"],
                    ["make", "--silent", f"--jobs={os.cpu_count()}", "memcached"]):
        done = subprocess.run(command, cwd=source, **quiet)
        if done.returncode:
            hint = " (Debian and Ubuntu: apt-get install libevent-dev)" if "libevent" in done.stdout + done.stderr else ""
            raise distribution.Missing(f"{command[0]} failed{hint}: {done.stderr[-2000:]}")
    shutil.copy2(source / "memcached", program)
    shutil.rmtree(source)


def main():
    try:
        program = newest()
    except distribution.Missing as error:
        print(f"newest.py: {error}", file=sys.stderr)
        return 3
    said = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout
    if not re.match(r"memcached \d", said):
        print(f"newest.py: {program} says {said!r}", file=sys.stderr)
        return 3
    print(program)
    return 0


if __name__ == "__main__":
    sys.exit(main())
