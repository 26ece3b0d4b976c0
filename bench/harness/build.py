"""Compiles what the benchmark itself needs."""

import os
import subprocess

from . import machine


def load(here, target):
    """The load generator's path; quick when nothing changed."""
    manifest = os.path.join(here, "load", "Cargo.toml")
    command = [machine.tool("cargo"), "build", "--release", "--locked", "--quiet"]
    command += ["--manifest-path", manifest, "--target-dir", target]
    if subprocess.run(command, check=False).returncode:
        raise machine.Missing("the load generator does not compile")
    return os.path.join(target, "release", "cashew-load")
