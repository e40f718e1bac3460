"""Published figures, to compare ours with."""
