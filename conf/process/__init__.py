"""Starts our own processes: a typed request in, typed events and errors out."""
