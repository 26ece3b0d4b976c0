"""The packages in a fresh root of the distribution: installed, upgraded under load, removed and purged; and that
the same program gives the same packages."""

import json
import os
import re
import shlex
import shutil
import stat
import subprocess
from pathlib import Path

import pytest

from fresh_root import FreshRoot
from harness import CASHEW, HOST, ROOT, accepts, children, free_port, read_stats, wait_until
from load import Load, Storm, fill

BUMPED = os.environ.get("CASHEW_BUMPED")
UNIT = ROOT / "contrib" / "cashew.service"

pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(900),
    pytest.mark.skipif(os.geteuid() != 0, reason="a root file system needs root"),
    pytest.mark.skipif(not all(map(shutil.which, ["debootstrap", "rpm"])), reason="needs debootstrap and rpm"),
]


def build(output, binary, version, kinds, epoch="1700000000"):
    done = subprocess.run([ROOT / "packaging" / "build", "--binary", binary, "--version", version, "--output", output,
                           "--only", kinds], capture_output=True, text=True, timeout=800,
                          env={**os.environ, "SOURCE_DATE_EPOCH": epoch})
    assert done.returncode == 0, f"{done.stdout}{done.stderr}"
    return output


class Packages:
    """Of this program, of the next version, of the one after it, and of one that does not run."""

    def __init__(self, directory):
        broken = directory / "broken"
        subprocess.run(["cc", "-x", "c", "-o", broken, "-"], input="#include <stdlib.h>\nint main() { exit(3); }",
                       text=True, check=True)
        made = [(CASHEW, "0.2.0"), (BUMPED, "0.2.1"), (CASHEW, "0.2.2"), (broken, "0.2.3")]
        self.deb, self.rpm = {}, {}
        for binary, version in made:
            output = build(directory / version, binary, version, "deb rpm")
            self.deb[version] = next(output.glob("*.deb"))
            self.rpm[version] = next(output.glob("*.rpm"))


@pytest.fixture(scope="module")
def packages(module_place):
    assert BUMPED, "needs scripts/bumped"
    return Packages(module_place.directory)


@pytest.fixture
def root(place):
    return FreshRoot(place.directory)


class Dpkg:
    """How each of the two managers is asked."""

    name = "deb"
    shared = frozenset()

    def __init__(self, root, packages):
        self.root, self.packages = root, packages.deb

    def install(self, version):
        return self.root.run("dpkg", "--install", self.root.add(self.packages[version]))

    def remove(self):
        return self.root.run("dpkg", "--remove", "cashew")


class Rpm:
    """The root is of another distribution, which has no books of what the package depends on."""

    name = "rpm"
    #: Directories that belong to packages which distributions of rpm have: filesystem and systemd.
    shared = {"usr/lib/sysusers.d", *(f"usr/share/{path}" for path in (
        "bash-completion", "bash-completion/completions", "fish", "fish/vendor_completions.d", "licenses", "zsh",
        "zsh/site-functions"))}

    def __init__(self, root, packages):
        self.root, self.packages = root, packages.rpm

    def _rpm(self, *words):
        done = subprocess.run(["rpm", "--root", self.root.path, "--nodeps", *words], capture_output=True, text=True,
                              timeout=110)
        assert done.returncode == 0, f"{done.stdout}{done.stderr}"
        return done.stdout + done.stderr

    def install(self, version):
        return self._rpm("--upgrade", "--verbose", self.packages[version])

    def remove(self):
        return self._rpm("--erase", "cashew")


def unit(key):
    found = re.findall(rf"^{key}=(.*)$", UNIT.read_text(), re.MULTILINE)
    return found[-1]


class Instance:
    """What the unit starts, started as systemd would: the user, no capabilities, no new privileges."""

    def __init__(self, place, root, servers):
        self.root = root
        self.port, self.stats_port = free_port(), free_port()
        self.file = root.path / "etc/cashew/cashew.yml"
        lines = "".join(f"      - {HOST}:{server.port}:1\n" for server in servers)
        self.file.write_text(
            f"global:\n  stats_listen: {HOST}:{self.stats_port}\n  worker_processes: 2\n"
            f"  log_file: /var/log/cashew/cashew.log\n"
            f"pools:\n  alpha:\n    listen: {HOST}:{self.port}\n    redis: true\n    servers:\n{lines}")
        root.run(*shlex.split(unit("ExecStartPre")))
        prefix = ["setpriv", "--reuid", unit("User"), "--regid", "cashew", "--clear-groups",
                  "--bounding-set", "-all", "--no-new-privs"]
        words = ["sh", "-c", f"umask {unit('UMask')}; exec {unit('ExecStart')}"]
        self.process = root.start(*words, prefix=prefix, ready=lambda: accepts(self.port) and accepts(self.stats_port))
        place.keep(self)

    def close(self):
        self.process.stop()

    def runs_what_is_installed(self):
        """The master and all that serve."""
        installed = (self.root.path / "usr/bin/cashew").stat()
        family = [self.process.pid, *children(self.process.pid)]
        return all(os.path.samestat(os.stat(f"/proc/{pid}/exe"), installed) for pid in family)

    def log(self):
        return (self.root.path / "var/log/cashew/cashew.log").read_text()


def owner_and_mode(root, path):
    return root.run("stat", "--format", "%U:%G %a", path).strip()


@pytest.mark.alone
@pytest.mark.parametrize("manager", [Dpkg, Rpm])
def test_install_upgrade_and_remove(place, root, packages, manager):
    manager = manager(root, packages)
    before = root.files()
    said = manager.install("0.2.0")
    assert "systemctl enable --now cashew" in said
    for path, expected in {"/etc/cashew": "root:cashew 750", "/etc/cashew/cashew.yml": "root:cashew 640",
                           "/usr/bin/cashew": "root:root 755", "/run/cashew": "cashew:cashew 755",
                           "/var/lib/cashew": "cashew:cashew 750", "/var/log/cashew": "cashew:cashew 750",
                           "/usr/lib/systemd/system/cashew.service": "root:root 644",
                           "/etc/logrotate.d/cashew": "root:root 644",
                           "/usr/share/man/man1/cashew-reload.1.gz": "root:root 644",
                           "/usr/share/bash-completion/completions/cashew": "root:root 644"}.items():
        assert owner_and_mode(root, path) == expected, path
    assert ":/usr/sbin/nologin" in root.run("getent", "passwd", "cashew")
    # What it comes with is valid as it is.
    assert "syntax is ok" in root.run(*shlex.split(unit("ExecStartPre")))
    assert "warning" not in root.run("cashew", "-t", "-c", "/etc/cashew/cashew.yml").lower()

    server = place.redis()
    fill(server)
    instance = Instance(place, root, [server])
    text = instance.file.read_text()
    pid = instance.process.pid
    with Load(instance.port) as load, Storm(instance.port, threads=1) as storm:
        load.turn()
        said = manager.install("0.2.1")
        assert "is the new version, and has kept its connections" in said
        load.turn()
        wait_until(instance.runs_what_is_installed, "nobody is of the old version")
        # What cannot take over leaves the instance as it is, and the manager content.
        instance.file.write_text(text + "half of a lin")
        assert "goes on as the version before" in manager.install("0.2.2")
        assert not instance.runs_what_is_installed()
        load.turn()
        instance.file.write_text(text)
        said = manager.install("0.2.3")
        assert "does not run on this machine" in said and "goes on" in said
        load.turn()
        storm.check()
        assert read_stats(instance.stats_port)["alpha"]["forward_error"] == 0
        assert load.stop() > 0
    # Nobody's configuration is replaced, and the process is the same.
    assert instance.file.read_text() == text
    assert instance.process.running() and instance.process.pid == pid
    instance.process.stop()
    manager.remove()
    left = root.files() - before - manager.shared
    kept = {"etc/cashew", "run/cashew", "var/lib/cashew"}
    # What an operator has changed stays: dpkg's under its name, rpm's beside it.
    kept |= {"etc/cashew/cashew.yml", "etc/logrotate.d/cashew"} if manager.name == "deb" \
        else {"etc/cashew/cashew.yml.rpmsave"}
    assert left == kept
    assert (root.path / "var/log/cashew/cashew.log").exists()
    if manager.name == "deb":
        root.run("dpkg", "--purge", "cashew")
        assert root.files() == before
        assert not (root.path / "var/log/cashew").exists()


@pytest.mark.alone
def test_an_operator_may_go_back_to_the_version_before(place, root, packages):
    manager = Dpkg(root, packages)
    manager.install("0.2.1")
    server = place.redis()
    fill(server)
    instance = Instance(place, root, [server])
    with Load(instance.port) as load:
        load.turn()
        said = manager.install("0.2.0")
        assert "is the new version, and has kept its connections" in said
        load.turn()
        wait_until(instance.runs_what_is_installed, "nobody is of the newer version")


def test_logs_are_rotated(place, root, packages):
    Dpkg(root, packages).install("0.2.0")
    server = place.redis()
    instance = Instance(place, root, [server])
    wait_until(lambda: "serving" in instance.log(), "the log begins")
    root.run("logrotate", "--force", "/etc/logrotate.d/cashew")
    kept = root.path / "var/log/cashew/cashew.log.1"
    assert "serving" in kept.read_text()
    # Everyone opens the new one: the master, and what speaks by it.
    root.run("cashew", "log-level", "-c", "/etc/cashew/cashew.yml", "debug")
    wait_until(lambda: "log" in instance.log(), "the new file has what comes next")
    old = os.stat(kept).st_ino

    def nobody_has_the_old_one():
        for pid in [instance.process.pid, *children(instance.process.pid)]:
            for descriptor in Path(f"/proc/{pid}/fd").iterdir():
                try:
                    found = os.stat(descriptor)
                except OSError:
                    continue
                if stat.S_ISREG(found.st_mode) and found.st_ino == old:
                    return False
        return True

    wait_until(nobody_has_the_old_one, "all have opened the new file")


def test_the_same_program_gives_the_same_packages(place):
    def sums(name):
        output = build(place.directory / name, CASHEW, "0.2.0", "deb rpm")
        return (output / "SHA256SUMS").read_text()

    first = sums("one")
    assert len(first.splitlines()) == 2
    # Times of files are of no account.
    for path in ("packaging/cashew.yml", "docs/how-to.md"):
        os.utime(ROOT / path)
    assert sums("two") == first
    other = build(place.directory / "three", CASHEW, "0.2.0", "deb", epoch="1700000001")
    assert (other / "SHA256SUMS").read_text().split()[0] not in first


def test_the_bill_of_materials_names_what_is_in_the_program(place):
    output = build(place.directory / "bill", CASHEW, "0.2.0", "sbom")
    text = next(output.glob("*.cdx.json")).read_text()
    bill = json.loads(text)
    assert bill["bomFormat"] == "CycloneDX" and bill["metadata"]["component"]["name"] == "cashew"
    names = {it["name"]: it for it in bill["components"]}
    assert {"rustls", "aws-lc-sys", "hyper", "cashew-engine"} <= set(names)
    assert names["rustls"]["licenses"] and names["rustls"]["purl"].startswith("pkg:cargo/rustls@")
    # Tools of the tests, and this machine's paths, are not in it.
    assert "proptest" not in names and "clap_mangen" not in names
    assert str(ROOT) not in text


@pytest.mark.parametrize("unit", ["cashew.service", "cashew-health.service"])
def test_systemd_accepts_the_unit(place, unit):
    """But for the program, which is not installed here."""
    unit = ROOT / "contrib" / unit
    done = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True, timeout=60)
    complaints = [line for line in done.stderr.splitlines() if "is not executable" not in line]
    assert complaints == []
    broken = place.directory / unit.name
    broken.write_text(unit.read_text().replace("LockPersonality=true", "LockPersonality=perhaps"))
    done = subprocess.run(["systemd-analyze", "verify", broken], capture_output=True, text=True, timeout=60)
    assert "perhaps" in done.stderr
