"""Django's caches with set_many one key after the other: what docs/how-to.md shows."""

from django.core.cache.backends.base import BaseCache
from django.core.cache.backends.redis import RedisCache
from django_redis.cache import RedisCache as DjangoRedisCache


class ShardedRedisCache(RedisCache):
    set_many = BaseCache.set_many


class ShardedDjangoRedisCache(DjangoRedisCache):
    set_many = BaseCache.set_many
