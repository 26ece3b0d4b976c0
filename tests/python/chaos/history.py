"""What clients noted, as operations of keys, and what is wrong with it."""

import collections
import json

from chaos import register


class Finding:
    """What must not be. `key` has a history that shows it, or is None."""

    def __init__(self, kind, text, key=None, operations=()):
        self.kind, self.text, self.key, self.operations = kind, text, key, list(operations)

    def __str__(self):
        return f"{self.kind}: {self.key + ': ' if self.key else ''}{self.text}"


class Part:
    """What came of one key of a request."""

    def __init__(self, batch, client, pool, begin, kind, key, write):
        self.batch, self.client, self.pool, self.begin = batch, client, pool, begin
        self.kind, self.key, self.write = kind, key, write
        self.end, self.outcome, self.text = register.NEVER, "lost", "its client was killed"


def read_notes(paths):
    """All parts, and findings that need no model."""
    parts, findings = [], []
    for path in paths:
        asked = {}
        if not path.exists():
            # It was killed before it had asked for anything.
            continue
        for line in path.read_bytes().split(b"\n"):
            try:
                note = json.loads(line)
            except ValueError:
                # Cut off where its writer was killed.
                continue
            if note[0] == "ask":
                _, batch, client, pool, begin, some = note
                asked[batch] = [Part(batch, client, pool, begin, *it) for it in some]
                parts += asked[batch]
                continue
            for part, (end, outcome, text) in zip(asked.get(note[1], [None]), note[2]):
                if part is not None:
                    part.end, part.outcome, part.text = end, outcome, text
                if outcome in ("foreign", "odd", "silent"):
                    where = f"{part.client} at {end:.6f} of {part.pool}: {part.kind}" if part else note[1]
                    findings.append(Finding(outcome, f"{where}: {text}", part and part.key))
    return parts, findings


class History:
    """Of all keys, over all rounds."""

    def __init__(self):
        #: What each key held when the last round was over, and writes that may yet take effect.
        self.initial, self.pending = {}, collections.defaultdict(list)
        #: All writes of each key.
        self.written = collections.defaultdict(set)
        self.errors = collections.Counter()
        self.counts = collections.Counter()

    def take(self, parts):
        """The operations of each key."""
        found = collections.defaultdict(list)
        for key, left in self.pending.items():
            found[key] += left
        before = {}
        for part in parts:
            self.counts[part.pool, part.outcome] += 1
            if part.outcome == "error":
                self.errors[part.text] += 1
            operation = self._operation(part)
            if operation is None:
                continue
            # On one connection they run in their order.
            place = (part.batch, part.key)
            operation.after = before.get(place)
            if operation.end != register.NEVER:
                before[place] = operation
            found[part.key].append(operation)
        return found

    @staticmethod
    def _operation(part):
        who = f"by {part.batch}"
        if part.kind in ("read", "reads"):
            return register.read(part.text, part.begin, part.end, who) if part.outcome == "ok" else None
        value = None if part.kind == "delete" else part.write
        return register.write(value, part.begin, part.end if part.outcome == "ok" else register.NEVER, who)

    def end_round(self, found, finals):
        """`finals` is what each key holds now that all is at rest."""
        for key, operations in found.items():
            self.written[key] |= {it.value for it in operations if it.kind == "write"}
        for key, held in finals.items():
            self.initial[key] = held
            # What was seen once took effect, which it does once.
            seen = {it.value for it in found.get(key, []) if it.kind == "read" and it.value is not None}
            self.pending[key] = [it for it in found.get(key, []) if it.kind == "write" and it.end == register.NEVER
                                 and it.value != held and it.value not in seen]
            for it in self.pending[key]:
                it.after = None


def judge(pools, found, history):
    """Findings of all keys. `pools` has by key how it is checked."""
    findings = []
    for key, operations in sorted(found.items()):
        operations = sorted(operations, key=lambda it: it.begin)
        try:
            wrong = _wrong(pools[key], operations, history.initial.get(key), history.written[key])
        except register.Undecided:
            findings.append(Finding("undecided", "the search for an order takes too long", key, operations))
            continue
        if wrong:
            findings.append(Finding("history", wrong, key, operations))
    return findings


def _wrong(check, operations, initial, earlier):
    if check == "own":
        return register.check_own(operations, initial, earlier)
    return {"register": register.check, "not stale": register.check_not_stale}[check](operations, initial)
