"""Gets the source packages of the distribution, which have the tests of the servers themselves."""

import contextlib
import os
import re
import shutil
import subprocess
import tarfile
from pathlib import Path

from harness import making


class Missing(Exception):
    """Something that this needs is not to be had here."""


def source(cache, package, program, version):
    """The unpacked upstream source of a package, in the version of the program that is installed:
    fetched when it is not in `cache` yet."""
    directory = cache / f"{package}-{version}"
    with making(cache):
        if not directory.exists():
            unpack(download(cache, package, program, version), directory)
    return directory


def put_link(link, path):
    """A link to a path; another process may do the same."""
    with contextlib.suppress(FileExistsError):
        os.symlink(path, link)


def download(cache, package, program, version):
    """The upstream archive of a package, by way of the distribution's own sources, which apt is
    told for this one time and in directories of its own."""
    if not shutil.which("apt-get"):
        raise Missing(
            f"the source of {package} {version} comes from a Debian or Ubuntu; elsewhere unpack it"
            f" as {cache}/{package}-{version}"
        )
    archive, found = fetch(cache, package, lambda directory: write_sources(directory, program))
    if found != version:
        raise Missing(f"{program} is {version}, but the source to be had is {found}")
    return archive


def newest_source(cache, package):
    """The upstream archive of the newest version of a package, and that version: from the suite in
    which the distribution prepares its next release."""
    if not shutil.which("apt-get"):
        raise Missing(f"the newest {package} comes from a Debian or Ubuntu")
    return fetch(cache, package, write_newest_sources)


def fetch(cache, package, write):
    """The upstream archive of a package and its version, from sources that `write` puts in a
    directory."""
    apt = cache / "apt"
    shutil.rmtree(apt, ignore_errors=True)
    for directory in ("sources", "lists/partial", "archives/partial"):
        (apt / directory).mkdir(parents=True)
    write(apt / "sources")
    options = {
        "Dir::Etc::SourceList": "/dev/null",
        "Dir::Etc::SourceParts": apt / "sources",
        "Dir::State::Lists": apt / "lists",
        "Dir::Cache": apt,
        "Dir::Cache::Archives": apt / "archives",
        "APT::Sandbox::User": "root",
        "Acquire::Languages": "none",
    }
    command = ["apt-get", "-qq"]
    for name, value in options.items():
        command += ["-o", f"{name}={value}"]
    # Sources of others may have no source packages, which is no harm.
    updated = subprocess.run([*command, "update"], capture_output=True, text=True)
    fetched = subprocess.run(
        [*command, "source", "--download-only", "--only-source", package],
        cwd=apt, capture_output=True, text=True,
    )
    archives = sorted(apt.glob(f"{package}_*.orig.tar.*"))
    archives = [path for path in archives if not path.name.endswith(".asc")]
    if len(archives) != 1:
        raise Missing(
            f"apt-get could not fetch the source of {package}:\n{updated.stderr}{fetched.stderr}"
        )
    return archives[0], re.match(rf"{package}_([\d.]+\d)", archives[0].name).group(1)


def write_sources(directory, program):
    """Where the package of a program comes from, as sources of source packages."""
    policy = subprocess.run(
        ["apt-cache", "policy", program], capture_output=True, text=True
    ).stdout
    origins = set(re.findall(r"^ +\d+ (\S+:\S+) ", policy, re.MULTILINE))
    etc = Path("/etc/apt")
    for path in (etc / "sources.list", *sorted((etc / "sources.list.d").glob("*"))):
        if path.suffix not in (".list", ".sources") or not path.is_file():
            continue
        text = path.read_text(errors="replace")
        if path.suffix == ".list":
            entries = [re.sub(r"^deb(-src)?\s", "deb-src ", line) for line in text.splitlines()
                       if re.match(r"deb(-src)?\s", line)]
            end = "\n"
        else:
            entries = [re.sub(r"(?mi)^types:.*$", "Types: deb-src", stanza)
                       for stanza in re.split(r"\n\s*\n", text) if re.search(r"(?mi)^uris:", stanza)]
            end = "\n\n"
        # Without package lists, as on a bare image, nobody knows the origin: then all are tried.
        entries = [entry for entry in entries
                   if not origins or any(origin.rstrip("/") in entry for origin in origins)]
        if entries:
            (directory / path.name).write_text(end.join(dict.fromkeys(entries)) + "\n")


def write_newest_sources(directory):
    """The suite in which the distribution prepares its next release, where the packages come from."""
    system = dict(re.findall(r'^(\w+)="?([^"\n]*)"?$', Path("/etc/os-release").read_text(), re.MULTILINE))
    names = {system.get("ID"), *system.get("ID_LIKE", "").split()}
    suite = "devel" if "ubuntu" in names else "sid"
    written = False
    etc = Path("/etc/apt")
    for path in (etc / "sources.list", *sorted((etc / "sources.list.d").glob("*"))):
        if path.suffix not in (".list", ".sources") or not path.is_file():
            continue
        text = path.read_text(errors="replace")
        if path.suffix == ".list":
            found = re.findall(r"(?m)^deb +(\[[^]]*\] +)?(\S+/(?:debian|ubuntu)/?) ", text)
            entries = [f"deb-src {options}{address} {suite} main" for options, address in found]
        else:
            entries = []
            for stanza in re.split(r"\n\s*\n", text):
                address = re.search(r"(?mi)^uris: *(\S+/(?:debian|ubuntu)/?)(?:\s|$)", stanza)
                key = re.search(r"(?mi)^signed-by:.*$", stanza)
                if address:
                    lines = ["Types: deb-src", f"URIs: {address[1]}", f"Suites: {suite}", "Components: main"]
                    entries.append("\n".join([*lines, *([key[0]] if key else [])]) + "\n")
        if entries:
            (directory / path.name).write_text("\n".join(dict.fromkeys(entries)) + "\n")
            written = True
    if not written:
        raise Missing("apt has no source of Debian or Ubuntu to ask for newer packages")


def unpack(archive, directory):
    """All of the archive, or nothing at that place."""
    new = directory.with_name(f"{directory.name}.new")
    shutil.rmtree(new, ignore_errors=True)
    with tarfile.open(archive) as tar:
        tar.extractall(new, filter="data")
    (top,) = new.iterdir()
    shutil.rmtree(directory, ignore_errors=True)
    top.rename(directory)
    new.rmdir()
    shutil.rmtree(archive.parent, ignore_errors=True)
