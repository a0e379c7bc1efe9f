"""Offline sharding: gradient dispersion, cost, and the spread of runs, against random shards."""
