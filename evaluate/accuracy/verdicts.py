"""The verdicts on a checkpoint's quality, from best to worst, and the bounds of "broken"."""

NO_LOSS, SMALL_LOSS, LOSS, BROKEN = "no loss seen", "small loss", "loss", "broken"
VERDICTS = (NO_LOSS, SMALL_LOSS, LOSS, BROKEN)
# A checkpoint is broken with a recovery below the first or a divergence (nats) above the second.
BROKEN_RECOVERY, BROKEN_DIVERGENCE = 0.5, 2.0
