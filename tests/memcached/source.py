"""Gets the source package of the distribution's memcached, which has memcached's own tests."""

import re
import shutil
import subprocess

import distribution
from distribution import Missing  # noqa: F401


def server_version():
    """The version of the memcached that is installed."""
    said = subprocess.run(["memcached", "--version"], capture_output=True, text=True, check=True)
    return re.search(r"memcached ([\d.]+)", said.stdout).group(1)


def suite(cache):
    """The unpacked source of that version; tests ask `memcached-debug` what it can do."""
    for program in ("perl", "prove"):
        if not shutil.which(program):
            raise Missing(f"the tests need {program} (Debian and Ubuntu: apt-get install perl)")
    directory = distribution.source(cache, "memcached", "memcached", server_version())
    distribution.put_link(directory / "memcached-debug", shutil.which("memcached"))
    return directory
