"""AWQ's search for scales."""
