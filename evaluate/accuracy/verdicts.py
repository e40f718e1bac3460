"""What is said of a checkpoint's quality, from best to worst; and where broken begins."""

NO_LOSS, SMALL_LOSS, LOSS, BROKEN = "no loss seen", "small loss", "loss", "broken"
VERDICTS = (NO_LOSS, SMALL_LOSS, LOSS, BROKEN)
# Share of the original's quality below which, and divergence in nats above which, it is broken.
BROKEN_RECOVERY, BROKEN_DIVERGENCE = 0.5, 2.0
