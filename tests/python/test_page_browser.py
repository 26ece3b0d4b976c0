"""What a browser at the stats port shows of a failover: real servers, real Sentinels, a real browser.

With CASHEW_PICTURES=DIRECTORY the pictures of the documentation are written there.
"""

import os
import re
import threading
from pathlib import Path

import pytest

from harness import HOST, PATIENCE, ReplyError, wait_until
from test_page import Browser, needs_chromium
from test_sentinel import FAILOVER_MAX, Group, pools

#: Longer than it takes on a busy machine until Sentinels name a new replica, and make one of who was the primary:
#: they sit out what they take for a stopped clock.
REPLICA_MAX = 100.0
#: A phone, and a window.
WIDTHS = [360, 1000]
#: The rows of tables in such elements, whose first column has this name: what is seen of their cells, by column.
ROWS = """((within, name) => [...document.querySelectorAll(within + " tbody tr")]
    .filter(row => row.cells[0].dataset.name === name)
    .map(row => Object.fromEntries([...row.cells].map(cell => [cell.dataset.name, cell.innerText.trim()]))))"""

#: Words that are short, and are broken all the same.
BROKEN = """[...document.querySelectorAll("td[data-name=kind], td[data-name=role], td[data-name=address]")].filter(cell => {
    const range = document.createRange();
    range.selectNodeContents(cell);
    return new Set([...range.getClientRects()].map(line => line.top)).size > 1;
}).map(cell => cell.innerText)"""


class Load:
    """Reads and writes all the time, whatever comes of it."""

    def __init__(self, gateway):
        self.gateway, self.over = gateway, threading.Event()
        self.done = self.failed = 0
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def run(self):
        with self.gateway.connect("alpha") as conn:
            while not self.over.wait(0.002):
                try:
                    conn.call("GET", f"key:{self.done % 100}")
                    conn.call("SET", f"key:{self.done % 100}", self.done)
                    self.done += 1
                except ReplyError:
                    self.failed += 1

    def close(self):
        self.over.set()
        self.thread.join(20)


class Page(Browser):
    def servers(self):
        """By port."""
        rows = self.value(f"{ROWS}('section', 'server')") or []
        return {int(row["address"].rpartition(":")[2]): row for row in rows}

    def events(self):
        """The newest first."""
        return self.value(f"{ROWS}('[data-section=events]', 'time')") or []

    def kinds(self):
        return [event["kind"] for event in self.events()]

    def warns(self):
        return self.value("document.title").startswith("✕")

    def assert_fits(self, width):
        """Nothing is wider than the screen, and nothing has gone wrong in it."""
        assert self.value("document.documentElement.scrollWidth") == width
        assert self.value(BROKEN) == []
        assert not self.problems, self.problems


def keep_picture(page, width):
    if directory := os.environ.get("CASHEW_PICTURES"):
        name, height = ("page-phone.png", 1200) if width == WIDTHS[0] else ("page.png", 1000)
        (Path(directory) / name).write_bytes(page.picture(width, height))


@pytest.mark.timeout(400)
@pytest.mark.parametrize("width", WIDTHS)
def test_a_failover_is_seen_as_it_happens(place, width):
    needs_chromium()
    group = Group(place, replicas=1)
    ports = dict(zip(("first", "second"), (server.port for server in group.servers)))
    gateway = place.cashew(pools(group.addresses(), reads="prefer_replica", timeout=1000), {"worker_processes": 2})
    load = place.keep(Load(gateway))
    wait_until(lambda: load.done > 100, "it is written")
    page = place.keep(Page(place.directory, f"http://{HOST}:{gateway.stats_port}/", width))

    def shows(seconds=PATIENCE, **servers):
        """Waits for the page, which nobody reloads, to show of the servers the role and how the state begins."""
        def is_shown():
            found = page.servers()
            cells = {name: found.get(port, {}) for name, port in ports.items()}
            return all(cells[name].get("role") == role and cells[name].get("state", "").startswith(state)
                       for name, (role, state) in servers.items())
        try:
            wait_until(is_shown, servers, seconds, pause=0.1)
        except AssertionError as problem:
            raise AssertionError(f"{problem}, but {page.servers()}, {page.kinds()}, {page.problems}") from None
        page.assert_fits(width)

    shows(REPLICA_MAX, first=("primary", "well"), second=("replica", "well"))
    assert "primary_changed" not in page.kinds() and not page.warns()

    group.servers[0].stop()
    wait_until(lambda: page.servers()[ports["first"]]["state"] == "out: Connection refused", "it is out", pause=0.05)
    assert page.warns() and "server_down" in page.kinds()
    shows(FAILOVER_MAX, second=("primary", "well"))
    shows(first=(page.servers()[ports["first"]]["role"], "out: Connection refused"))
    wait_until(lambda: "primary_changed" in page.kinds(), "it is among the events", pause=0.1)
    kinds, changed = page.kinds(), next(it for it in page.events() if it["kind"] == "primary_changed")
    assert changed["pool"] == "alpha" and f"{HOST}:{ports['second']}" in changed["message"], changed
    # The newest is the first, and the old primary is perhaps found down once more, as a replica.
    assert "server_down" in kinds[kinds.index("primary_changed"):], kinds
    before = load.done
    wait_until(lambda: load.done > before + 100, "it is written again")
    assert load.failed > 0
    numbers = lambda: page.value("document.querySelector('.numbers').innerText")
    wait_until(lambda: "servers up 1 of 2" in " ".join(numbers().split()), "one of two is up")
    errors = "document.querySelector('path.bad')?.getAttribute('d')"
    # The curve of errors leaves the ground: a point of it is above another one.
    heights = lambda: {float(y) for y in re.findall(r"[ML][\d.]+ ([\d.]+)", page.value(errors) or "")}
    wait_until(lambda: len(heights()) > 1, "the plot has the errors", pause=0.1)
    page.assert_fits(width)
    keep_picture(page, width)

    group.servers[0].start()
    shows(REPLICA_MAX, first=("replica", "well"), second=("primary", "well"))
    wait_until(lambda: not page.warns() and "server_up" in page.kinds(), "all is well", pause=0.1)
