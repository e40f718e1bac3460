"""The search: the default first, then trials in batches, then fresh starts that confirm the best.

It knows engines only by their interface, so it runs on made-up times, too.
"""

import math
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace

from conf.durations import duration
from conf.errors import environment_failure
from conf.terminal import say
from evaluate.results.significance import Ratio, Start
from evaluate.tune.comparing import gain_of, is_slower
from evaluate.tune.optimizer import Optimizer
from evaluate.tune.space import DEFAULT, Assignment, Space, text_of
from evaluate.tune.trials import (
    SEARCH,
    Budget,
    Engines,
    Judgement,
    Trial,
    TrialRequest,
)

JUDGING_STARTS = 2  # of the default settings, and of those that are judged
NEARLY = 0.005
"""Trials within this share of the fastest are as good: the one with the fewest changes counts."""
MISSED = math.log(2)
"""The optimizer sees trials that miss the latency targets as so much slower, as a logarithm."""


@dataclass(frozen=True)
class SearchOptions:
    """How much is measured."""

    repeats: int
    confirm_starts: int
    side_by_side: int = 1
    most_trials: int | None = None
    seed: int = 0


@dataclass(frozen=True)
class Outcome:
    """What a search found."""

    trials: list[Trial]
    chosen: Assignment = DEFAULT
    """The settings to serve; the default where nothing is significantly faster."""
    best: Assignment = DEFAULT
    """The settings that were confirmed; the default where none looked faster."""
    gain: Ratio | None = None
    """The speed-up of the best over the default in the fresh starts."""
    judgement: Judgement | None = None
    """For settings that change answers."""
    targets: str = ""
    """Which of the two sides miss the latency targets; empty where both meet them."""
    reason: str = ""
    """Why the default is served; empty where it is not."""
    ended: str = ""
    """Why no further trial was run."""


@dataclass
class Search:
    """One search over a space."""

    space: Space
    engines: Engines
    budget: Budget
    options: SearchOptions
    report: Callable[[list[Trial], Trial | None], None] = lambda _, __: None
    """Is told all trials and the best one after each change."""
    trials: dict[Assignment, Trial] = field(default_factory=dict)
    ended: str = ""

    def __post_init__(self) -> None:
        self.optimizer = Optimizer(self.space, self.options.seed)

    def run(self) -> Outcome:
        """Searches, confirms, and says what to serve."""
        self.budget.start()
        self._take_over()
        while batch := self._next_batch():
            measuring = self.engines.measure(batch, self._is_beaten)
            with self.budget.batch() as done, closing(measuring) as trials:
                for trial in trials:
                    done.append(trial)
                    self._learn(trial)
        return self._conclude()

    def _take_over(self) -> None:
        """Learns the finished trials of earlier commands, and continues the others. What failed
        may have failed for want of memory or a disk, so it is tried once more. Without the default
        there is no search, so it is tried in any case."""
        recorded = self.engines.recorded()
        self.budget.earlier += [one.took_s for one in recorded if one.took_s is not None]
        unfinished, failed = [], []
        for trial in sorted(recorded, key=lambda trial: trial.assignment != DEFAULT):
            is_whole = trial.runs >= self.options.repeats
            is_beaten = not is_whole and trial.start is not None and self._is_beaten(trial.start)
            if trial.failure and not (trial.is_final and trial.assignment != DEFAULT):
                failed.append(trial.assignment)
            elif trial.failure or is_beaten or is_whole:
                self._learn(replace(trial, is_beaten=is_beaten and not trial.failure))
            elif trial.assignment != DEFAULT:
                unfinished.append(trial.assignment)
        if self.trials:
            say(f"{len(self.trials)} finished trials are there already (force=true repeats them)")
        if failed:
            say(f"tried again, because they failed: {'; '.join(map(text_of, failed))}")
        self.optimizer.first([*unfinished, *failed])

    def _next_batch(self) -> list[TrialRequest]:
        """The next trials. The default is the first of them, and no limit leaves it out: every
        other trial is compared with it."""
        most, size = self.options.most_trials, self.options.side_by_side
        if most is not None:
            size = min(size, most - len(self.trials))
        if DEFAULT not in self.trials:
            size = max(size, 1)
        elif size <= 0:
            self.ended = f"trials={most} is reached"
            return []
        elif not self.budget.allows(self._batches_to_confirm()):
            self.ended = self._why_budget_ends()
            return []
        proposed = [self.optimizer.propose() for _ in range(size)]
        batch = [TrialRequest(one, SEARCH) for one in proposed if one is not None]
        if not batch:  # the results of all earlier ones are known, so it waits for none
            self.ended = "there is nothing new to try"
        return batch

    def _why_budget_ends(self) -> str:
        if self.budget.left <= 0:
            return "the budget is over"
        needed = self.budget.needed(self._batches_to_confirm())
        return (
            f"what is left of the budget ({duration(self.budget.left)}) does not suffice for "
            f"another trial and its confirmation (about {duration(needed)})"
        )

    def _batches_to_confirm(self) -> int:
        starts = 2 * self.options.confirm_starts
        if any(setting.changes_answers for setting in self.space.settings):
            starts += JUDGING_STARTS * self.options.side_by_side  # each alone
        return -(-starts // self.options.side_by_side)

    def _learn(self, trial: Trial) -> None:
        if trial.failure and trial.assignment == DEFAULT:
            raise environment_failure(
                f"the default settings failed: {trial.failure}; once the cause is mended, the same "
                "command goes on, and keeps what was measured"
            )
        self.trials[trial.assignment] = trial
        missed = MISSED if trial.misses else 0.0
        self.optimizer.learn(trial.assignment, None if trial.failure else trial.log_time + missed)
        self.report(list(self.trials.values()), self.best())

    def _is_beaten(self, start: Start) -> bool:
        """Settings that change answers may be refused when they are judged. So no trial is beaten
        by them: then it would not count where they do not."""
        unjudged = frozenset(filter(self.space.changes_answers, self.trials))
        best = self.best(unjudged)
        if best is None or best.start is None or best.misses:
            return False  # a slower trial may meet the targets
        return is_slower(start, best.start)

    def best(self, excluded: frozenset[Assignment] = frozenset()) -> Trial | None:
        """The fastest trial that was measured in full, or one nearly as fast with fewer changes.
        Trials that miss the latency targets count only where none meets them."""
        whole = [
            trial
            for trial in self.trials.values()
            if not trial.failure and not trial.is_beaten and trial.assignment not in excluded
        ]
        whole = [trial for trial in whole if not trial.misses] or whole
        fastest = min((trial.log_time for trial in whole), default=0.0)
        nearly = [trial for trial in whole if trial.log_time <= fastest + NEARLY]
        return min(nearly, key=lambda trial: (len(trial.assignment), trial.log_time), default=None)

    def _conclude(self) -> Outcome:
        """Judges and confirms the best."""
        refused: set[Assignment] = set()
        judgement = None
        while True:
            best = self.best(frozenset(refused))
            trials = list(self.trials.values())
            if best is None or best.assignment == DEFAULT:
                reason = "no trial was faster than the default settings"
                if best is not None and best.misses:
                    reason = f"{reason}, which miss the targets ({best.misses}), as all others do"
                elif any(trial.misses for trial in trials):
                    reason = f"{reason} and met the targets"
                if len(trials) == 1:
                    reason = f"only the default settings were measured: {self.ended}"
                return Outcome(trials, judgement=judgement, reason=reason, ended=self.ended)
            if not self.space.changes_answers(best.assignment):
                judgement = None
                break
            judgement = self.engines.judge(best.assignment)
            if judgement.is_good:
                break
            say(f"{text_of(best.assignment)}: not served; {judgement.text}")
            refused.add(best.assignment)
        return self._confirm(best.assignment, judgement)

    def _confirm(self, best: Assignment, judgement: Judgement | None) -> Outcome:
        """Measures the default and the best in fresh starts, in turns."""
        numbers = self.engines.confirming_starts(best, self.options.confirm_starts)
        requests = [
            TrialRequest(assignment, number) for number in numbers for assignment in (DEFAULT, best)
        ]
        starts: dict[Assignment, list[Start]] = {DEFAULT: [], best: []}
        missed: dict[Assignment, str] = {}
        outcome = Outcome(
            list(self.trials.values()), best=best, judgement=judgement, ended=self.ended
        )
        size = self.options.side_by_side
        for first in range(0, len(requests), size):
            measuring = self.engines.measure(requests[first : first + size], lambda _: False)
            with closing(measuring) as trials:
                for trial in trials:
                    if trial.start is None or trial.failure:
                        reason = f"a start of {text_of(trial.assignment)} failed: {trial.failure}"
                        return replace(outcome, reason=f"the gain was not confirmed: {reason}")
                    starts[trial.assignment].append(trial.start)
                    if trial.misses:
                        missed[trial.assignment] = trial.misses
        gain = gain_of(starts[best], starts[DEFAULT])
        outcome = replace(outcome, targets=_missed_text(missed))
        if best in missed and DEFAULT not in missed:
            return replace(outcome, gain=gain, reason="the default settings meet the targets")
        if DEFAULT in missed and best not in missed:
            return replace(outcome, gain=gain, chosen=best)
        if gain is None or not gain.differs or gain.ratio < 1:
            reason = "no settings are significantly faster than the default"
            return replace(outcome, gain=gain, reason=reason)
        return replace(outcome, gain=gain, chosen=best)


def _missed_text(missed: Mapping[Assignment, str]) -> str:
    sides = [f"{text_of(one)} miss the targets ({what})" for one, what in missed.items()]
    return f"in fresh starts, {' and '.join(sides)}" if sides else ""
