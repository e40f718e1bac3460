"""Everything known before a run: typed options, config groups, model and hardware facts, errors.

Nothing here imports torch, so that `--help` and every complaint about an option answer at once.
"""
