"""A root file system with nothing in it but the distribution's least, to install packages into."""

import shlex
import shutil
import subprocess

from harness import ROOT, Process

#: What is kept of debootstrap, so that it runs once.
KEPT = ROOT / "target" / "packaging"


def distribution():
    words = dict(line.split("=", 1) for line in open("/etc/os-release").read().splitlines() if "=" in line)
    return words["VERSION_CODENAME"].strip('"')


def archive():
    """A tar of the distribution this runs on, whose C library the program needs."""
    path = KEPT / f"{distribution()}.tar"
    if not path.exists():
        tree = KEPT / f"{distribution()}.new"
        shutil.rmtree(tree, ignore_errors=True)
        KEPT.mkdir(parents=True, exist_ok=True)
        command = ["debootstrap", "--variant=minbase", "--include=logrotate", distribution(), tree]
        done = subprocess.run(command, capture_output=True, text=True, timeout=900)
        assert done.returncode == 0, f"{done.stdout}{done.stderr}"[-2000:]
        subprocess.run(["tar", "-C", tree, "--exclude=./var/cache/apt", "--exclude=./var/lib/apt", "-cf",
                        path.with_suffix(".half"), "."], check=True)
        path.with_suffix(".half").rename(path)
        shutil.rmtree(tree)
    return path


class FreshRoot:
    """Programs run in it by chroot, with a /proc of their own mount namespace: nothing has to be unmounted."""

    def __init__(self, directory):
        self.path = directory / "root"
        self.path.mkdir()
        subprocess.run(["tar", "-C", self.path, "-xf", archive()], check=True)

    def command(self, *words, prefix=()):
        words = shlex.join(map(str, [*prefix, *words]))
        inside = f"mount -t proc proc {self.path}/proc && exec chroot {self.path} {words}"
        return ["unshare", "--mount", "--propagation", "private", "sh", "-c", inside]

    def run(self, *words, status=0, environment=None, seconds=110):
        """What a command prints; it must end with the status."""
        done = subprocess.run(self.command(*words), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, timeout=seconds,
                              env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C",
                                   "DEBIAN_FRONTEND": "noninteractive", **(environment or {})})
        assert done.returncode == status, f"{words} ended with {done.returncode}: {done.stdout}"
        return done.stdout

    def start(self, *words, name="in-root", ready=None, prefix=()):
        return Process(self.command(*words, prefix=prefix), self.path.parent, name, ready)

    def add(self, file):
        """Puts a file from outside into its /root, and returns its path there."""
        shutil.copy(file, self.path / "root")
        return f"/root/{file.name}"

    def files(self):
        """All paths but those that a package manager keeps its books in."""
        books = ("var/lib/dpkg", "var/log", "var/cache", "var/lib/rpm", "root", "proc", "etc/passwd", "etc/group",
                 "etc/shadow", "etc/gshadow", "etc/subuid", "etc/subgid", "etc/.pwd.lock", "run/systemd",
                 "usr/lib/sysimage", "etc/ld.so.cache", "tmp")
        found = subprocess.run(["find", ".", "-mindepth", "1", "-printf", "%P\n"], cwd=self.path, check=True,
                               stdout=subprocess.PIPE, text=True).stdout.splitlines()
        return {path for path in found if not path.startswith(books)}
