"""Source models: fetched, made here, checked and loaded."""
