"""packaging/release: all that names the version names the same, and a release lacks nothing."""

import os
import re
import shutil
import subprocess

import pytest
import yaml

from harness import ROOT
from test_kubernetes import version

NEEDED = ["Cargo.toml", "Cargo.lock", "CHANGELOG.md", "fuzz/Cargo.lock", "docs/upgrade.md", "scripts/common.sh",
          "packaging/common.sh", "packaging/release", "packaging/helm/cashew/Chart.yaml", "packaging/kubernetes/cashew.yaml"]


@pytest.fixture
def tree(place):
    for name in NEEDED:
        path = place.directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, path)
    return place.directory


def release(tree, *words, status=0):
    done = subprocess.run([tree / "packaging/release", *words], capture_output=True, text=True, timeout=30)
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout + done.stderr


def prepared(tree):
    text = (tree / "CHANGELOG.md").read_text()
    if f"## [{version()}] - " not in text:
        release(tree, "prepare", "2026-12-01")


def test_everything_here_names_the_version(tree):
    """Between releases what is next has no date yet; all else is so at all times."""
    prepared(tree)
    assert release(tree, "check", f"v{version()}") == f"v{version()}: all names the version\n"


@pytest.mark.parametrize("name, pattern, by, said", [
    ("Cargo.toml", r'^version = ".*"', 'version = "9.9.9"', "Cargo.toml has version 9.9.9"),
    ("CHANGELOG.md", r"^## \[.*\] - .*$", "## Sometime", "CHANGELOG.md has no"),
    ("packaging/helm/cashew/Chart.yaml", "^appVersion: .*", "appVersion: 9.9.9", "has another appVersion"),
    ("packaging/kubernetes/cashew.yaml", "image: .*", "image: cashew:9.9.9", "has another image: packaging/manifests"),
    ("fuzz/Cargo.lock", r'(?<=name = "cashew-engine"\n)version = ".*"', 'version = "9.9.9"', "fuzz/Cargo.lock has another"),
    ("docs/upgrade.md", "^## From 0.1 to .*", "## From 0.1", "docs/upgrade.md says nothing of"),
])
def test_what_names_another_version_is_found(tree, name, pattern, by, said):
    prepared(tree)
    path = tree / name
    changed, count = re.subn(pattern, by, path.read_text(), count=0 if name == "CHANGELOG.md" else 1, flags=re.MULTILINE)
    assert count
    path.write_text(changed)
    assert said in release(tree, "check", f"v{version()}", status=1)


def test_another_tag_is_refused(tree):
    prepared(tree)
    assert "the tag is v9.9.9" in release(tree, "check", "v9.9.9", status=1)


def test_what_is_unreleased_gets_its_version_and_date_once(tree):
    changelog = tree / "CHANGELOG.md"
    changelog.write_text("# Changelog\n\n## [Unreleased]\n\n### Added\n\n- One thing.\n\n## [0.0.1] - 2020-01-01\n\n- Another.\n")
    release(tree, "prepare", "2026-12-01")
    assert changelog.read_text().startswith(
        f"# Changelog\n\n## [Unreleased]\n\n## [{version()}] - 2026-12-01\n\n### Added\n\n- One thing.\n")
    assert release(tree, "notes") == "\n### Added\n\n- One thing.\n\n"
    assert "already" in release(tree, "prepare", "2026-12-02", status=1)
    assert "is no date" in release(tree, "prepare", "soon", status=1)


def test_sums_say_what_is_missing(tree):
    made = tree / "made"
    made.mkdir()
    said = release(tree, "sums", "made", status=1)
    names = re.findall(r"^release: (\S+?),? ", said, re.MULTILINE)
    assert len(names) == 11 and f"cashew-{version()}-linux-arm64.cdx.json" in names and f"cashew_{version()}-1_amd64.deb" in names
    for name in names:
        (made / name).write_text(name)
    release(tree, "sums", "made")
    done = subprocess.run(["sha256sum", "--check", "--strict", "SHA256SUMS"], cwd=made, capture_output=True, text=True, timeout=30)
    assert done.returncode == 0 and done.stdout.count(": OK") == 11


def test_the_workflow_runs_what_is_here():
    workflow = yaml.safe_load((ROOT / ".github/workflows/release.yml").read_text())
    ran = " ".join(step.get("run", "") for job in workflow["jobs"].values() for step in job["steps"])
    named = set(re.findall(r"packaging/[a-z/.]+[a-z]", ran))
    assert {"packaging/release", "packaging/reproduce", "packaging/oci/build"} <= named
    for path in named:
        assert (ROOT / path).exists(), path
    for job in workflow["jobs"].values():
        assert set(job.get("needs", []) if isinstance(job.get("needs"), list) else [job.get("needs")]) - {None} <= set(workflow["jobs"])
    # Nobody but those who publish may write.
    assert workflow["permissions"] == {"contents": "read"}


CARGO = """#!/bin/sh
# Builds what is already there; with CASHEW_TEST_DIFFERS no two are the same.
case $1 in
--version) echo 'cargo 99.0.0' ;;
build)
    # Flags for C are words as build scripts read them (cc-rs): by spaces, or by the rules of a shell.
    if [ -n "$CC_SHELL_ESCAPED_FLAGS" ]; then eval "set -- $CFLAGS"; else set -- $CFLAGS; fi
    echo 'const char *place = __FILE__;' >"$PWD/place.c"
    cc "$@" -x c -c -o "$PWD/place.o" "$PWD/place.c" || exit 3
    grep -q /cashew/place.c "$PWD/place.o" || { echo "a path of this machine is in it" >&2; exit 3; }
    mkdir -p "$CARGO_TARGET_DIR/debug" && cp "$CASHEW_TEST_PROGRAM" "$CARGO_TARGET_DIR/debug/cashew"
    [ -z "$CASHEW_TEST_DIFFERS" ] || pwd >>"$CARGO_TARGET_DIR/debug/cashew" ;;
run)
    for last; do :; done
    mkdir -p "$last/man" "$last/completions" && echo page >"$last/man/cashew.1" ;;
*) exit 1 ;;
esac
"""


@pytest.mark.long
@pytest.mark.skipif(not all(map(shutil.which, ["git", "objcopy", "xz", "cc"])), reason="needs git, gcc, binutils and xz")
@pytest.mark.parametrize("differs", ["", "yes"])
def test_two_builds_that_differ_are_no_release(place, differs):
    """By a compiler that takes no time."""
    cargo = place.directory / "cargo"
    cargo.write_text(CARGO)
    cargo.chmod(0o755)
    program = place.directory / "program"
    subprocess.run(["cc", "-x", "c", "-o", program, "-"], input="#include <stdlib.h>\nint main() { exit(3); }", text=True,
                   check=True)
    output = place.directory / "made"
    done = subprocess.run([ROOT / "packaging/reproduce", "--profile", "dev", "--only", "archive", "--output", output],
                          capture_output=True, text=True, timeout=110,
                          env={**os.environ, "PATH": f"{place.directory}:{os.environ['PATH']}",
                               "CASHEW_TEST_PROGRAM": str(program), "CASHEW_TEST_DIFFERS": differs})
    if differs:
        assert done.returncode == 1 and "two builds of one commit are not the same" in done.stderr, done.stderr
        assert not output.exists()
    else:
        assert done.returncode == 0, done.stderr
        assert done.stdout == f"{output}\n"
        assert {it.suffix for it in output.iterdir()} == {".xz", ""} and (output / "SHA256SUMS").exists()
