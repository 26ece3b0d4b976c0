"""The list beside this file: where a gateway differs from a memcached, and why.

It is text: a section for each `[WHERE] REASON` line, and in it a line for each test, `FILE: TEST`.
WHERE says in front of how many servers: `one`, `three` or `one three`. Lines that begin with # are
for people. What is so of one server that a test asks of all of them is listed for `three`.
"""

from pathlib import Path

DIFFERENCES = Path(__file__).resolve().parent / "differences.txt"


def differences(targets):
    """The reason for each (target, file, test), where `targets` may be named."""
    reasons, where, reason = {}, (), ""
    for number, line in enumerate(DIFFERENCES.read_text().splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        if line.startswith("["):
            words, _, reason = line[1:].partition("] ")
            where = words.split()
            if not where or not set(where) <= set(targets) or not reason:
                raise ValueError(f"{DIFFERENCES.name}:{number}: not [{'|'.join(targets)}] REASON: {line}")
            continue
        file, colon, test = line.partition(": ")
        if not colon or not reason:
            raise ValueError(f"{DIFFERENCES.name}:{number}: not a section and not FILE: TEST: {line}")
        for target in where:
            if (target, file, test) in reasons:
                raise ValueError(f"{DIFFERENCES.name}:{number}: listed twice: {line}")
            reasons[target, file, test] = reason
    return reasons
