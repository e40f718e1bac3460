"""The options of every command, typed, one file for each group of them."""
