"""Measuring one checkpoint: the worker, its engine, the requests and their times."""
