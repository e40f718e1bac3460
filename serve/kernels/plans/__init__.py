"""Which product runs a layer for which number of tokens: measured once, kept in the cache."""
