"""VPTQ's algorithm: codebooks by k-means, and columns rounded to them one after the other."""
