"""Compares the speed and the accuracy of two sets of runs, by intervals."""
