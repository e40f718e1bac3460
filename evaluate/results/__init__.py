"""Results: typed rows, the results file, cells of repeats, and their statistics."""
