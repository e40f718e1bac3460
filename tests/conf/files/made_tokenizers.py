"""Contents of tokenizer.json."""

PREFIX_LONGER_THAN_TOKENS = {
    "version": "1.0",
    "added_tokens": [],
    "model": {
        "type": "BPE",
        "vocab": {"a": 0, "b": 1, "ab": 2},
        "continuing_subword_prefix": "####",
        "merges": [["a", "b"]],
    },
}
"""The library panics, which Python sees as an error that is not an Exception."""
