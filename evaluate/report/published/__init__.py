"""Figures that others published, to stand beside our own."""
