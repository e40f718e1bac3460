"""Whether a new set of runs is at least as good as an old one, by thresholds."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from conf.errors import UNDECIDED, QuantlineError, gate_failed
from conf.terminal import listed
from evaluate.accuracy.pairs import Share
from evaluate.report.decide.quality import Quality
from evaluate.results.significance import Ratio

NO_RATIO = "fewer than two valid runs, or values of 0"
MORE_RUNS = "starts=3, more repeats and more text make the intervals narrower"


class Verdict(StrEnum):
    GOOD = "at least as good"
    WORSE = "worse"
    UNKNOWN = "cannot be told"


@dataclass(frozen=True)
class Finding:
    """One comparison with a threshold."""

    what: str
    verdict: Verdict
    reason: str

    def __str__(self) -> str:
        return f"{self.what}: {self.reason}"


def speed_finding(what: str, ratio: Ratio | None, doubt: str, least: float) -> Finding:
    """Judges a speed-up by its whole interval: good if all of it is above the threshold, worse if
    all of it is below. `doubt` says why the ratio decides nothing; it is empty where it may."""
    if ratio is None or doubt:
        return Finding(what, Verdict.UNKNOWN, doubt or NO_RATIO)
    reason = f"{ratio.ratio:.3f} times as fast ({ratio.low:.3f} to {ratio.high:.3f})"
    return Finding(what, _verdict(ratio.low, ratio.high, least), f"{reason}, {least:g} is needed")


def quality_finding(what: str, quality: Quality | None, least: float) -> Finding:
    """Judges the recovery in the same way. A broken checkpoint is worse, whatever its recovery."""
    if quality is None or (quality.recovery is None and not quality.is_broken):
        return Finding(what, Verdict.UNKNOWN, "its accuracy was not judged")
    if quality.is_broken or quality.recovery is None:
        return Finding(what, Verdict.WORSE, "it is broken")
    recovery = quality.recovery
    low = recovery if quality.low is None else quality.low
    high = recovery if quality.high is None else quality.high
    reason = f"{recovery:.2%} of the quality is left ({low:.2%} to {high:.2%})"
    return Finding(what, _verdict(low, high, least), f"{reason}, {least:.2%} is needed")


def share_finding(what: str, share: Share, least: float) -> Finding:
    """Judges how much of the first one's quality the second has, in the same way."""
    reason = f"{share.share:.2%} of the first one's quality ({share.low:.2%} to {share.high:.2%})"
    return Finding(what, _verdict(share.low, share.high, least), f"{reason}, {least:.2%} is needed")


def _verdict(low: float, high: float, least: float) -> Verdict:
    if low >= least:
        return Verdict.GOOD
    return Verdict.WORSE if high < least else Verdict.UNKNOWN


def failure(findings: Sequence[Finding]) -> QuantlineError | None:
    """The error of a gate that is not passed: worse somewhere, or not known somewhere."""
    worse = [str(finding) for finding in findings if finding.verdict == Verdict.WORSE]
    if worse:
        return gate_failed(f"worse: {listed(worse)}")
    unknown = [str(finding) for finding in findings if finding.verdict == Verdict.UNKNOWN]
    if unknown:
        return QuantlineError(f"cannot be told: {listed(unknown)}. {MORE_RUNS}", UNDECIDED)
    return None
