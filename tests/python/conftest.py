"""Fixtures: a place where a test starts what it needs, and everything stops when it ends."""

import contextlib

import pytest

from harness import Gateway, Memcached, NUTCRACKER, Redis, remove_directory, temporary_directory


#: Files that take a minute or more: they begin first, lest all wait for one of them in the end.
LONGEST = ["test_redis_suite", "test_process", "test_failures", "test_resp3", "test_crash",
           "test_memcached_suite", "test_languages", "test_memcached_clients"]


def pytest_collection_modifyitems(items):
    def rank(item):
        name = item.path.stem
        return LONGEST.index(name) if name in LONGEST else len(LONGEST)

    items.sort(key=rank)


class Place:
    """A temporary directory and the processes started in it, stopped last first."""

    def __init__(self):
        self.directory = temporary_directory()
        self.stack = contextlib.ExitStack()
        self.stack.callback(remove_directory, self.directory)

    def redis(self, *options, **named):
        return self._keep(Redis(self.directory, *options, **named))

    def memcached(self, *options, **named):
        return self._keep(Memcached(self.directory, *options, **named))

    def cashew(self, pools, settings=None, arguments=(), **named):
        return self._keep(Gateway(self.directory, pools, settings, arguments, **named))

    def nutcracker(self, pools, arguments=()):
        return self._keep(Gateway(self.directory, pools, None, arguments, binary=NUTCRACKER))

    def keep(self, closable):
        """Closes a connection or a fake server with the rest."""
        self.stack.callback(closable.close)
        return closable

    def _keep(self, process):
        self.stack.callback(process.stop)
        return process


@pytest.fixture
def place():
    place = Place()
    with place.stack:
        yield place


@pytest.fixture(scope="module")
def module_place():
    place = Place()
    with place.stack:
        yield place


@pytest.fixture(scope="module")
def running(request, module_place):
    """What a file's `Stack` starts, for all its tests."""
    return request.module.Stack(module_place)


@pytest.fixture
def stack(running):
    """The same as if it were new."""
    running.reset()
    return running


@pytest.fixture
def conn(stack):
    with stack.gateway.connect() as conn:
        yield conn
