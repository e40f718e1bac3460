"""Sweeps of evaluations on a launcher: their jobs, and the shards of their results."""
