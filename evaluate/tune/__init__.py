"""Searches the engine settings that are fastest for one checkpoint under one scenario."""
