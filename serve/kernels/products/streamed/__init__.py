"""Products of 1 to 16 tokens whose weights go from memory straight into registers."""
