"""Whether what clients saw of one key is what one register could have shown them.

`check` searches for an order of the operations that explains all replies and in which each takes effect between its
beginning and its end (linearizability: Herlihy and Wing, 1990). The search is that of Wing and Gong (1993) in the form
that Lowe gave it (Testing for linearizability, 2017): it goes through the ends of operations in time, and keeps all
states that the register may be in, each with the operations that have taken effect and have not ended.

A write without an answer may take effect at any time from its beginning, or never. Values are unique, so nobody can
tell whether a write that was never read took effect: those are left out, and others matter until they are last read.

What servers may lose is told as operations, too:
- a *wipe*: a cache begins anew, empty. It has taken place by its end;
- a *loss*: another server takes a primary's place, and may lack the last writes. What is lost does not come back. It
  reaches no further back than its `floor`, when all that was acknowledged was known to be copied.
"""

#: States looked at until a search is given up. Histories without a fault take as many as they have operations.
MOST_STATES = 400_000
NEVER = float("inf")


class Operation:
    """Of a key. `value` is the write that was made or seen, None for no value; `end` is NEVER without an answer.

    `after` is an operation of the same client, on the same connection, that it follows.
    """

    __slots__ = ("after", "begin", "end", "floor", "is_optional", "kind", "value", "who")

    def __init__(self, kind, value, begin, end, who="", is_optional=False, floor=0.0, after=None):
        self.kind, self.value, self.begin, self.end = kind, value, begin, end
        self.who, self.is_optional, self.floor, self.after = who, is_optional, floor, after

    def __str__(self):
        end = "never" if self.end == NEVER else f"{self.end:.6f}"
        return f"{self.begin:.6f} to {end}: {self.kind} {self.value} {self.who}"


def read(value, begin, end, who="", after=None):
    return Operation("read", value, begin, end, who, after=after)


def write(value, begin, end, who="", after=None):
    """With `end` NEVER it may take effect or not."""
    return Operation("write", value, begin, end, who, end == NEVER, after=after)


def wipe(begin, end):
    return Operation("wipe", None, begin, end)


def loss(begin, end, floor):
    return Operation("loss", None, begin, end, is_optional=True, floor=floor)


class Undecided(Exception):
    """The search was given up."""


def _relevant(operations, last_read):
    """Those that tell something, and writes without an answer only as long as they are read."""
    for it in operations:
        if it.kind == "write" and it.is_optional:
            if last_read.get(it.value, 0.0) >= it.begin:
                until = write(it.value, it.begin, NEVER, it.who)
                until.end = last_read[it.value]
                yield until
        else:
            yield it


class _Search:
    """`states` are all that the register may be in by now: what has taken effect and not ended, and its value."""

    def __init__(self, operations, initial, most):
        self.first_read, last_read = {}, {}
        for it in operations:
            if it.kind == "read":
                last_read[it.value] = max(last_read.get(it.value, 0.0), it.end)
                self.first_read[it.value] = min(self.first_read.get(it.value, NEVER), it.end)
        self.operations = list(_relevant(operations, last_read))
        numbers = {id(it): number for number, it in enumerate(self.operations)}
        self.after = [numbers.get(id(it.after)) for it in self.operations]
        self.left = {number: self._left_by(it, initial) for number, it in enumerate(self.operations)
                     if it.kind == "loss"}
        self.open, self.ended = set(), set()
        self.states = {(frozenset(), initial)}
        self.looked_at, self.most = 0, most

    def _known_by(self, it):
        """When a write had surely taken effect. Nobody can tell which deletion it was that was seen."""
        if it.value is None:
            return it.end if not it.is_optional else NEVER
        return min(NEVER if it.is_optional else it.end, self.first_read.get(it.value, NEVER))

    def _left_by(self, loss, initial):
        """Which values a loss may leave, by the writes that must have taken effect: those that may not have been
        copied when all that was known was, and what there may have been at that time."""
        writes = [(it, self._known_by(it), number) for number, it in enumerate(self.operations) if it.kind == "write"]
        before = [it.begin for it, known, _ in writes if known < loss.floor]
        latest = max(before, default=None)
        found = {} if latest is not None else {initial: None}
        for it, known, number in writes:
            # What there was at first needs no write.
            if (latest is None or known >= latest) and found.get(it.value, True) is not None:
                found.setdefault(it.value, set()).add(number)
        return found

    def run(self):
        """What no order explains, in words, or None."""
        # What was to take effect by the end of another may do so until then.
        events = [(it.begin, 0, number) for number, it in enumerate(self.operations)]
        events += [(it.end, 1 + it.is_optional, number) for number, it in enumerate(self.operations)]
        for _, is_end, number in sorted(events):
            if not is_end:
                self.open.add(number)
                continue
            wrong = self._end(number)
            if wrong:
                return wrong
        return None

    def _end(self, number):
        it = self.operations[number]
        if it.kind == "loss":
            # It may show later only, after what may have been written by now.
            reached = self._walk(None)
            lost = {(done, value) for done, _ in reached if number not in done for value in self._left(number, done)}
            self.states = reached | lost
        elif not it.is_optional:
            before = self.states
            self.states = self._walk(lambda done: number in done)
            if not self.states:
                held = sorted({str(value) for _, value in before})
                return f"no order explains this: {it}; before it the key held {' or '.join(held[:6])}"
        self.states = {(done - {number}, value) for done, value in self.states}
        self.open.discard(number)
        self.ended.add(number)
        return None

    def _left(self, loss, done):
        """What a loss may leave now."""
        for value, writes in self.left[loss].items():
            if writes is None or any(number in done or number in self.ended for number in writes):
                yield value

    def _walk(self, is_reached):
        """The states that can be reached, or those of them in which something has taken effect."""
        reached, known, todo = set(), set(self.states), list(self.states)
        while todo:
            step = todo.pop()
            self.looked_at += 1
            if self.looked_at > self.most:
                raise Undecided
            if is_reached and is_reached(step[0]):
                reached.add(step)
                continue
            for following in self._steps(*step):
                if following not in known:
                    known.add(following)
                    todo.append(following)
        return reached if is_reached else known

    def _steps(self, done, held):
        """What may happen next. What may happen or not does so when it is read: else it may as well wait."""
        waiting = [number for number in self.open - done if self._may_follow(number, done)]
        reads = {}
        for number in waiting:
            it = self.operations[number]
            if it.kind == "read":
                if held == it.value:
                    # It changes nothing, so that the sooner the better.
                    yield done | {number}, held
                    return
                reads[it.value] = number
        tried = set()
        for number in sorted(waiting, key=lambda number: self.operations[number].begin):
            it = self.operations[number]
            if it.kind == "loss":
                for value in self._left(number, done):
                    if value in reads:
                        yield done | {number, reads[value]}, value
            elif it.kind == "read":
                continue
            elif not it.is_optional:
                yield done | {number}, it.value
            elif it.value in reads and it.value not in tried:
                # Of those that do the same, the oldest does it first.
                tried.add(it.value)
                yield done | {number, reads[it.value]}, it.value

    def _may_follow(self, number, done):
        first = self.after[number]
        return first is None or first in done or first in self.ended


def check(operations, initial=None, most=MOST_STATES):
    """What no order explains, in words, or None. Raises Undecided when it takes too long."""
    known = {initial, None} | {it.value for it in operations if it.kind == "write"}
    for it in operations:
        if it.kind == "read" and it.value not in known:
            return f"nobody has written this: {it}"
    return _Search(operations, initial, most).run()


def check_not_stale(operations, initial=None):
    """For caches that answer nothing older than what was acknowledged before: each read sees a write that began
    before its end, and that no write which was over before it surely came after. In words what does not, or None."""
    writes = {it.value: it for it in operations if it.kind == "write" and it.value is not None}
    sure = [it for it in operations if it.kind in ("write", "wipe") and it.end != NEVER]
    deletions = any(it.kind == "wipe" or (it.kind == "write" and it.value is None) for it in operations)
    for it in operations:
        if it.kind != "read":
            continue
        if it.value is None and deletions:
            # Which of them it was nobody can tell.
            continue
        source = writes.get(it.value)
        if source is None and it.value != initial:
            return f"nobody has written this: {it}"
        if source is not None and source.begin > it.end:
            return f"this is read before it is written: {it}"
        end = source.end if source is not None else 0.0
        newer = next((other for other in sure if end < other.begin and other.end < it.begin), None)
        if newer is not None:
            return f"this is read: {it}; after this: {newer}"
    return None


def check_own(operations, initial=None, earlier=()):
    """For caches whose servers come and go with what they had: whatever is read was written there before. `earlier` are
    the writes of other rounds."""
    writes = {it.value: it for it in operations if it.kind == "write"}
    for it in operations:
        if it.kind == "read" and it.value not in (None, initial) and it.value not in earlier:
            source = writes.get(it.value)
            if source is None or source.begin > it.end:
                return f"nobody had written this: {it}"
    return None
