"""Results: typed rows, the file they stand in, cells of repeats, and their statistics."""
