"""The list beside this file: where a gateway differs from a memcached, and why.

It is text: a section for each `[REASON]` line, and in it a line for each test, `FILE: TEST`. Lines
that begin with # are for people.
"""

from pathlib import Path

DIFFERENCES = Path(__file__).resolve().parent / "differences.txt"


def differences():
    """The reason for each (file, test)."""
    reasons, section = {}, None
    for number, line in enumerate(DIFFERENCES.read_text().splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        if line.startswith("[") and line.endswith("]"):
            section = line[1:-1]
            continue
        file, colon, test = line.partition(": ")
        if not colon or not section:
            raise ValueError(f"{DIFFERENCES.name}:{number}: not a section and not FILE: TEST: {line}")
        reasons[file, test] = section
    return reasons
