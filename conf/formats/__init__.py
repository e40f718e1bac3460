"""The formats in which weights are stored, and what runs them."""
