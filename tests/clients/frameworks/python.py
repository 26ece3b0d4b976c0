"""Celery, Django and RQ through the gateway: what docs/how-to.md says of them. To be given the gateway's
addresses of Redis and of memcached, and whether there are several servers, in the environment; see
scripts/frameworks."""

import os
import subprocess
import sys
import time

HOST, REDIS = os.environ["CASHEW_REDIS"].split(":")
MEMCACHED = os.environ["CASHEW_MEMCACHED"]
URL = f"redis://{HOST}:{REDIS}/0"
#: A pool of one server.
SINGLE = int(os.environ["CASHEW_SINGLE"])
HAS_SEVERAL = os.environ["CASHEW_SERVERS"] != "1"
DIRECTORY = os.path.dirname(os.path.abspath(__file__))


def ok(section):
    print("ok", section, flush=True)


# ------------------------------------------------------------------------------------------ Celery


def celery_app():
    from celery import Celery

    app = Celery("tasks", broker=URL, backend=URL)
    app.conf.update(
        broker_transport_options={"global_keyprefix": "{celery}:", "visibility_timeout": 60},
        result_backend_transport_options={"global_keyprefix": "{celery}:"},
        broker_connection_retry_on_startup=True,
    )

    @app.task(name="add")
    def add(x, y):
        return x + y

    @app.task(name="total")
    def total(numbers):
        return sum(numbers)

    return app, add, total


def celery():
    from celery import chain, chord, group

    app, add, total = celery_app()
    worker = subprocess.Popen(
        [sys.executable, "-c", "import python; python.celery_app()[0].worker_main("
         "['worker', '--loglevel=WARNING', '--concurrency=2', '--pool=threads'])"],
        cwd=DIRECTORY)
    try:
        assert add.delay(2, 3).get(timeout=30) == 5
        ok("celery: task and result")
        assert group(add.s(n, n) for n in range(20)).apply_async().get(timeout=30) == [
            2 * n for n in range(20)]
        assert chain(add.s(1, 2), add.s(4)).apply_async().get(timeout=30) == 7
        ok("celery: group and chain")
        assert chord((add.s(n, n) for n in range(10)), total.s()).apply_async().get(timeout=30) == 90
        ok("celery: chord")
        late = add.apply_async((1, 1), countdown=1)
        assert late.get(timeout=30) == 2
        ok("celery: countdown")
        replies = app.control.ping(timeout=3)
        assert len(replies) == 1 and list(replies[0].values()) == [{"ok": "pong"}], replies
        ok("celery: remote control")
    finally:
        worker.terminate()
        worker.wait(20)


# ------------------------------------------------------------------------------------------ Django


def django():
    import django as package
    from django.conf import settings

    settings.configure(CACHES={
        "default": {"BACKEND": "django.core.cache.backends.redis.RedisCache", "LOCATION": URL},
        "django_redis": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": URL,
                         "KEY_PREFIX": "dr"},
        "sharded": {"BACKEND": "caches.ShardedRedisCache", "LOCATION": URL, "KEY_PREFIX": "s"},
        "sharded_django_redis": {"BACKEND": "caches.ShardedDjangoRedisCache", "LOCATION": URL,
                                 "KEY_PREFIX": "sdr"},
        "together": {"BACKEND": "django.core.cache.backends.redis.RedisCache", "LOCATION": URL,
                     "KEY_PREFIX": "{t}"},
        "memcached": {"BACKEND": "django.core.cache.backends.memcached.PyMemcacheCache",
                      "LOCATION": MEMCACHED, "KEY_PREFIX": "m"},
    })
    package.setup()
    from django.core.cache import caches

    for name in settings.CACHES:
        cache = caches[name]
        many = {f"key:{n}": n for n in range(50)}
        cache.set("one", {"a": 1}, 60)
        assert cache.get("one") == {"a": 1}
        assert cache.add("one", 2) is False and cache.add(f"new {time.time_ns()}".replace(" ", ":"), 1)
        cache.set("count", 5)
        assert cache.incr("count") == 6
        assert cache.touch("one", 60)
        ok(f"django: {name}: one key")
        attempt(f"django: {name}: get_many and delete_many", lambda: (
            [cache.set(key, value, 60) for key, value in many.items()],
            equal(cache.get_many(many), many), cache.delete_many(many), equal(cache.get_many(many), {})))
        for timeout in (60, None):
            way = refused if HAS_SEVERAL and name in ("default", "django_redis") else attempt
            way(f"django: {name}: set_many, timeout {timeout}", lambda: (
                cache.set_many(many, timeout), equal(cache.get_many(many), many)))
        if name == "sharded_django_redis":
            way = refused if HAS_SEVERAL else attempt
            way(f"django: {name}: delete_pattern", lambda: equal(cache.delete_pattern("key:*"), 50))
            attempt(f"django: {name}: lock", lambda: lock(cache))
        attempt(f"django: {name}: clear", lambda: (cache.clear(), equal(cache.get("one"), None)))


def refused(section, what):
    """With several servers it is, and nothing has been done by halves."""
    try:
        what()
    except Exception as error:
        cause = error.__cause__ or error
        assert "CrossSlot" in type(cause).__name__, repr(cause)
        ok(f"{section}: refused")
    else:
        print("failed", section, "is not refused")


def lock(cache):
    with cache.lock("lock", timeout=10, blocking_timeout=5):
        pass


def equal(given, expected):
    assert given == expected, (given, expected)


def attempt(section, what):
    try:
        what()
    except Exception as error:
        cause = error.__cause__ or error
        print("failed", section, type(cause).__name__, str(cause)[:200], flush=True)
    else:
        ok(section)


# ---------------------------------------------------------------------------------------------- RQ


def rq():
    import operator

    from redis import Redis
    from rq import Queue, SimpleWorker

    if HAS_SEVERAL:
        queue = Queue("default", connection=Redis(host=HOST, port=int(REDIS)))
        refused("rq: several servers", lambda: queue.enqueue(operator.add, 1, 1))
    connection = Redis(host=HOST, port=SINGLE)
    queue = Queue("default", connection=connection)
    jobs = [queue.enqueue(operator.add, n, n) for n in range(5)]
    last = queue.enqueue(operator.mul, 6, 7, depends_on=jobs)
    SimpleWorker([queue], connection=connection).work(burst=True, logging_level="WARNING")
    equal([job.return_value() for job in (*jobs, last)], [0, 2, 4, 6, 8, 42])
    ok("rq: jobs that depend on others")


if __name__ == "__main__":
    for name in sys.argv[1:]:
        attempt(name, {"celery": celery, "django": django, "rq": rq}[name])
