"""Decides what to serve, by pure functions of rows: comparable setups, ranking, recommendation."""
