"""What the algorithms share: their interface, number formats, mappings, fields of recipe files."""
