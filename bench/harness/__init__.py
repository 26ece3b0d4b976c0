"""The benchmark of Cashew: gateways side by side in front of real Redis and memcached."""
