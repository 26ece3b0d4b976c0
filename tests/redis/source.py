"""Gets the source package of the distribution's Redis, which has Redis's own test suite."""

import re
import shutil
import subprocess

import distribution
from distribution import Missing  # noqa: F401


def server_version():
    """The version of the redis-server that is installed."""
    said = subprocess.run(["redis-server", "--version"], capture_output=True, text=True, check=True)
    return re.search(r"v=([\d.]+)", said.stdout).group(1)


def suite(cache):
    """The unpacked source of that version; the programs that the suite starts are the
    distribution's."""
    directory = distribution.source(cache, "redis", "redis-server", server_version())
    for program in ("redis-cli", "redis-benchmark", "redis-server"):
        if path := shutil.which(program):
            distribution.put_link(directory / "src" / program, path)
    return directory
