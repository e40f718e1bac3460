"""Stored formats, one file each, and the one reader of a quantization config.

A module of this package that holds a `FORMAT` is a stored format (`stored_format.py` has the
interface, `registry.py` finds them). To add a format, add a file.
"""
