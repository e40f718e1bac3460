"""Measures checkpoints beside the original, through the engine that will serve them."""
