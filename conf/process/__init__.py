"""Starting a process of ours: a typed request in, typed events out, errors that come back."""
