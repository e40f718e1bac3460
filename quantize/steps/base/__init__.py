"""Shared by the algorithms: interface, number formats, mappings, fields of recipe files."""
