"""Real clients in C, Rust, Java and Node, each a program of its own in tests/clients.

A program connects with its library's defaults and with RESP2 and RESP3, and ends with an error at
the first answer that is not Redis's. What it is built of is kept in target/clients.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from harness import HOST, NICE, making, server_lines

ROOT = Path(__file__).resolve().parents[2]
CLIENTS = ROOT / "tests" / "clients"
BUILT = ROOT / "target" / "clients"
SUITE = ROOT / "target" / "redis-suite"

# The first run compiles, and asks the registries of four languages.
pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def gateway(module_place):
    servers = [module_place.redis("--enable-protected-configs", "yes") for _ in range(3)]
    pool = {"redis": True, "hash_tag": '"{}"', "servers": server_lines(servers)}
    return module_place.cashew({"alpha": pool}, {"worker_processes": 2})


def must(command, **settings):
    """Runs what has to succeed, and gives what it printed."""
    done = subprocess.run([str(word) for word in command], stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=800,
                          **settings)
    assert done.returncode == 0, f"{command[:3]}: {done.stdout[-6000:]}"
    return done.stdout


def make(command, stamp, *sources, **settings):
    """Runs what has to succeed, unless it did before with these sources."""
    wanted = "".join(path.read_text() for path in sources)
    with making(stamp):
        if not stamp.exists() or stamp.read_text() != wanted:
            must([*NICE, *command], **settings)
            stamp.write_text(wanted)


def fetch(command, stamp, *sources, **settings):
    """Asks a language's registry for what the program is built of, unless that is there.

    Where the registry cannot be reached the test is left out, and says so; not in CI."""
    try:
        make(command, stamp, *sources, **settings)
    except AssertionError as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(f"the libraries cannot be fetched: {str(error)[-300:]}")


def run(gateway, *command, sections, **environment):
    said = must(command, env={**os.environ, "CASHEW_REDIS": f"{HOST}:{gateway.address}",
                              **environment})
    print(said)
    assert said.count("ok ") >= sections, said


def node_modules():
    """Where the libraries of the Node programs are, fetched if need be."""
    built = BUILT / "node"
    sources = [CLIENTS / "node" / name for name in ("package.json", "package-lock.json")]
    with making(built):
        built.mkdir(exist_ok=True)
        for path in sources:
            shutil.copy(path, built)
        fetch(["npm", "ci", "--no-audit", "--no-fund"], built / "fetched", *sources, cwd=built)
    return str(built / "node_modules")


def java_classes():
    """The class path of the Java programs, which are built."""
    built, source = BUILT / "java", CLIENTS / "java"
    jars = built / "jars"
    fetch(["mvn", "-q", "-B", "-f", source / "pom.xml", "dependency:copy-dependencies",
           f"-DoutputDirectory={jars}"], built / "fetched", source / "pom.xml")
    programs = sorted((source / "src").rglob("*.java"))
    make(["javac", "--release", "17", "-Xlint:all,-try,-unchecked,-deprecation,-classfile", "-Werror",
          "-d", built / "classes", "-cp", f"{jars}/*", *programs],
         built / "compiled", source / "pom.xml", *programs)
    return f"{built}/classes:{jars}/*"


@pytest.mark.parametrize(("program", "sections"), [("ioredis", 11), ("node-redis", 12)])
def test_node(gateway, program, sections):
    run(gateway, "node", CLIENTS / "node" / f"{program}.js", sections=sections,
        NODE_PATH=node_modules())


@pytest.mark.parametrize(("program", "sections"), [("Jedis", 11), ("Lettuce", 12)])
def test_java(gateway, program, sections):
    run(gateway, "java", "-cp", java_classes(), f"cashew.{program}Client", sections=sections)


def test_rust(gateway):
    source, target = CLIENTS / "rust", BUILT / "rust"
    manifest = ["--locked", "--manifest-path", source / "Cargo.toml"]
    fetch(["cargo", "fetch", *manifest], target / "fetched", source / "Cargo.lock")
    must([*NICE, "cargo", "build", "--quiet", *manifest, "--target-dir", target])
    run(gateway, target / "debug" / "cashew-redis-rs", sections=11)


def test_c(gateway):
    """With the hiredis that Redis brings along: those of the distributions differ by years."""
    sys.path.insert(0, str(ROOT / "tests" / "redis"))
    import source

    hiredis = source.suite(SUITE) / "deps" / "hiredis"
    program = BUILT / "c" / "hiredis"
    program.parent.mkdir(parents=True, exist_ok=True)
    library = [hiredis / f"{name}.c"
               for name in ("alloc", "async", "hiredis", "net", "read", "sds", "sockcompat")]
    objects = []
    for path in library:
        objects.append(program.parent / f"{path.stem}.o")
        if not objects[-1].exists():
            must(["cc", "-O1", "-g", "-w", "-c", "-o", objects[-1], path])
    must(["cc", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-I", hiredis, "-o", program,
          CLIENTS / "c" / "hiredis.c", *objects])
    run(gateway, program, sections=10)
