"""The image's root file system, and what packaging/oci/Containerfile says of it, run as an engine would: as process 1, without
rights, on a root that is read-only."""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess

import pytest

from harness import CASHEW, HOST, ROOT, Conn, Process, accepts, children, free_port, wait_until

CONTAINERFILE = ROOT / "packaging" / "oci" / "Containerfile"

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(os.geteuid() != 0, reason="a root file system needs root"),
    pytest.mark.skipif(not all(map(shutil.which, ["objcopy", "setpriv", "unshare"])), reason="needs binutils and util-linux"),
]


def instruction(name):
    text = CONTAINERFILE.read_text().replace("\\\n", " ")
    found, = re.findall(rf"^{name} (.*)$", text, re.MULTILINE)
    return found


def build(output, *options):
    done = subprocess.run([ROOT / "packaging/oci/build", "--binary", CASHEW, "--output", output, *options],
                          capture_output=True, text=True, timeout=100,
                          env={**os.environ, "SOURCE_DATE_EPOCH": "1700000000"})
    assert done.returncode == 0, f"{done.stdout}{done.stderr}"
    return output / "root.tar"


@pytest.fixture(scope="module")
def tar(module_place):
    return build(module_place.directory / "image", "--root-only")


class Container:
    """Namespaces of its own for processes and mounts; the network is this machine's."""

    def __init__(self, place, tar):
        self.place = place
        self.root = place.directory / "root"
        self.root.mkdir()
        subprocess.run(["tar", "-C", self.root, "-xpf", tar], check=True)
        # That of the container, which an engine mounts.
        (self.root / "etc/hosts").write_text(f"{HOST} localhost\n")
        self.config = self.root / "etc/cashew/cashew.yml"

    def start(self, *command, ready):
        uid, gid = instruction("USER").split(":")
        # What engines and Kubernetes mount; all else cannot be written.
        mounts = [f"mount --bind {self.root} {self.root}", f"mount -o remount,bind,ro {self.root}",
                  f"mount -t proc proc {self.root}/proc", f"mount -t tmpfs -o mode=755 tmpfs {self.root}/dev",
                  *(f"mknod -m 666 {self.root}/dev/{name} c 1 {minor}" for name, minor in
                    (("null", 3), ("zero", 5), ("random", 8), ("urandom", 9))),
                  f"mount -t tmpfs -o mode=1777 tmpfs {self.root}/tmp",
                  f"mount -t tmpfs -o mode=755,uid={uid},gid={gid} tmpfs {self.root}/run/cashew"]
        # Who is not root has no capabilities any more.
        inside = f"exec chroot --userspec={uid}:{gid} --groups= {self.root} {shlex.join(command)}"
        script = " && ".join([*mounts, inside])
        words = ["setpriv", "--no-new-privs", "unshare", "--mount", "--propagation", "private", "--pid", "--fork",
                 "--kill-child", "sh", "-c", script]
        self.process = Process(words, self.place.directory, "container", ready)
        self.place.stack.callback(self.process.kill)
        self.first, = children(self.process.pid)

    def health(self):
        """What the engine runs now and then, beside process 1."""
        words = json.loads(re.search(r"CMD (\[.*\])", instruction("HEALTHCHECK")).group(1))
        uid, gid = instruction("USER").split(":")
        inside = ["nsenter", "--mount", "--pid", f"--target={self.first}", "chroot", f"--userspec={uid}:{gid}", self.root, *words]
        return subprocess.run(inside, capture_output=True, text=True, timeout=30)


@pytest.fixture
def container(place, tar):
    return Container(place, tar)


def command():
    return [*json.loads(instruction("ENTRYPOINT")), *json.loads(instruction("CMD"))]


def test_it_serves_as_process_1_without_rights_and_ends_by_the_signal(place, container):
    server = place.redis()
    port, stats_port = free_port(), free_port()
    container.config.write_text(
        f"global:\n  stats_listen: {HOST}:{stats_port}\n  worker_processes: 2\n"
        f"pools:\n  main:\n    listen: {HOST}:{port}\n    redis: true\n    servers:\n      - localhost:{server.port}:1 redis-1\n")
    container.start(*command(), ready=lambda: accepts(port) and accepts(stats_port))
    done = container.health()
    assert done.returncode == 0 and f"main at {HOST}:{port} serves" in done.stderr, done
    with Conn(port) as conn:
        # By the server's name, for which the C library reads files.
        assert conn.call("SET", "k", "v") == "OK" and conn.call("GET", "k") == b"v"
        for pid in (container.first, *children(container.first)):
            status = dict(line.split(":\t", 1) for line in open(f"/proc/{pid}/status").read().splitlines() if ":\t" in line)
            assert set(status["Uid"].split()) == {"65532"} and status["NoNewPrivs"] == "1"
            assert int(status["CapEff"], 16) == 0
        os.kill(container.first, signal.Signals[instruction("STOPSIGNAL")])
        wait_until(lambda: not container.process.running(), "it has ended", 15)
    assert container.process.child.wait() == 0
    assert "serving" in container.process.output()


def test_its_own_configuration_is_valid_and_says_what_is_exposed(container):
    config = container.config.read_text()
    for port in instruction("EXPOSE").split():
        assert f"0.0.0.0:{port}" in config
    done = subprocess.run(["chroot", container.root, command()[0], "-t", *command()[1:]], capture_output=True, text=True, timeout=30)
    assert done.returncode == 0 and "syntax is ok" in done.stderr, done.stderr
    # Whom it believes, and whose libraries it has.
    assert (container.root / "etc/ssl/certs/ca-certificates.crt").read_text().count("BEGIN CERTIFICATE") > 50
    books = container.root / "var/lib/dpkg/status.d"
    assert not shutil.which("dpkg") or "Package: libc6" in (books / "libc6").read_text()


def test_nothing_else_is_in_it(tar):
    names = subprocess.run(["tar", "-tf", tar], capture_output=True, text=True, check=True).stdout.splitlines()
    programs = [name for name in names if re.search(r"(^|/)s?bin/[^/]+$", name)]
    assert programs == ["usr/bin/cashew"]
    listing = subprocess.run(["tar", "--numeric-owner", "-tvf", tar], capture_output=True, text=True, check=True).stdout
    owned = [line.split()[-1] for line in listing.splitlines() if line.split()[1] == "65532/65532"]
    assert owned == ["run/cashew/", "var/lib/cashew/", "var/log/cashew/"]
    assert not re.search(r"^-..s|^-.....s", listing, re.MULTILINE)


def test_the_same_program_gives_the_same_root(place, tar):
    os.utime(ROOT / "packaging/oci/cashew.yml")
    assert build(place.directory / "again", "--root-only").read_bytes() == tar.read_bytes()


@pytest.mark.skipif(not shutil.which("buildah"), reason="buildah is not installed")
def test_an_engine_builds_it_and_twice_the_same(place, monkeypatch):
    storage = place.directory / "storage.conf"
    storage.write_text(f'[storage]\ndriver = "vfs"\ngraphroot = "{place.directory}/graph"\nrunroot = "{place.directory}/run"\n')
    monkeypatch.setenv("CONTAINERS_STORAGE_CONF", str(storage))
    layers = []
    for name in ("one", "two"):
        build(place.directory / name, "--engine", "buildah", "--tag", f"cashew-test:{name}")
        done = subprocess.run(["buildah", "inspect", "--type", "image", f"cashew-test:{name}"], capture_output=True, text=True,
                              timeout=60, check=True)
        image = json.loads(done.stdout)["Docker"]
        layers.append(image["rootfs"])
        config = image["config"]
        assert (config["User"], config["Entrypoint"] + config["Cmd"]) == ("65532:65532", command())
        assert config["Healthcheck"]["Test"][:3] == ["CMD", "/usr/bin/cashew", "health"]
        assert set(config["ExposedPorts"]) == {"22121/tcp", "22222/tcp"}
    assert layers[0] == layers[1] and len(layers[0]["diff_ids"]) == 1


def test_without_an_engine_it_says_so(place):
    """Those that are here are hidden by ones that do not work."""
    for name in ("docker", "podman", "buildah"):
        path = place.directory / name
        path.write_text("#!/bin/sh\nexit 1\n")
        path.chmod(0o755)
    done = subprocess.run([ROOT / "packaging/oci/build", "--binary", CASHEW, "--output", place.directory],
                          capture_output=True, text=True, timeout=100,
                          env={**os.environ, "PATH": f"{place.directory}:{os.environ['PATH']}"})
    assert done.returncode == 1 and "no docker, podman or buildah works here" in done.stderr and "--root-only" in done.stderr
