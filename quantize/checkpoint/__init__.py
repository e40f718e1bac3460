"""A checkpoint on disk: saved, checked against its source, published with its manifest."""
