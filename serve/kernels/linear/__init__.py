"""vLLM's kernel classes: which layers we take, how they are loaded, and what a forward calls."""
