"""Proposes assignments: Optuna's TPE sampler through ask and tell, after single changes."""

import random
from collections import deque
from collections.abc import Iterable

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.samplers import TPESampler
from optuna.trial import TrialState, create_trial

from evaluate.tune.space import DEFAULT, DEFAULT_LABEL, Assignment, Space

MOST_REPEATED = 20
"""Proposals of TPE in a row that are known already, after which a random one is taken."""
RANDOM_TRIALS = 4
"""Trials before TPE has a model; until then its proposals are random."""


class Optimizer:
    """Remembers what was proposed and learned. No assignment is proposed twice."""

    def __init__(self, space: Space, seed: int) -> None:
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self.space = space
        sampler = TPESampler(seed=seed, n_startup_trials=RANDOM_TRIALS)
        self.study = optuna.create_study(sampler=sampler, direction="minimize")
        self.distributions: dict[str, BaseDistribution] = {
            setting.name: CategoricalDistribution([DEFAULT_LABEL, *setting.values])
            for setting in space.settings
        }
        self.known: set[Assignment] = set()
        self.learned: set[Assignment] = set()
        self.values: dict[Assignment, float] = {}
        self.queue = deque(self._single_changes())
        self.has_joined = False
        self.random = random.Random(seed)

    def _single_changes(self) -> Iterable[Assignment]:
        """The default, then the first value of each setting alone."""
        yield DEFAULT
        for setting in self.space.settings:
            yield ((setting.name, next(iter(setting.values))),)

    def first(self, assignments: Iterable[Assignment]) -> None:
        """Proposes these next, in this order, after the default."""
        wanted = list(assignments)
        self.queue = deque([DEFAULT, *wanted, *self.queue])

    def propose(self) -> Assignment | None:
        """The next assignment. None where there is nothing new, or where it depends on results that
        are not known yet."""
        assignment = self._queued()
        if assignment is None and not self._waits():
            assignment = self._joined()
            if assignment is None:
                assignment = self._sampled()
        if assignment is not None:  # the default is an empty one
            self.known.add(assignment)
        return assignment

    def _waits(self) -> bool:
        """Whether the default or a single change is still measured: only with all of them is it
        known what to join."""
        measured = self.known - self.learned
        return not self.has_joined and any(len(assignment) <= 1 for assignment in measured)

    def _queued(self) -> Assignment | None:
        while self.queue:
            assignment = self.queue.popleft()
            if assignment not in self.known:
                return assignment
        return None

    def _joined(self) -> Assignment | None:
        """Once, after the single changes: all those together that were faster than the default."""
        default = self.values.get(DEFAULT)
        if self.has_joined or default is None:
            return None
        self.has_joined = True
        faster = [one for one, value in self.values.items() if len(one) == 1 and value < default]
        best: dict[str, str] = {}
        for ((name, label),) in sorted(faster, key=lambda one: self.values[one]):
            if name not in best and not any(self.space.excludes(name, other) for other in best):
                best[name] = label
        joined = self.space.assignment(best)
        return joined if len(joined) > 1 and joined not in self.known else None

    def _sampled(self) -> Assignment | None:
        if len(self.known) >= self.space.size:
            return None
        for _ in range(MOST_REPEATED):
            asked = self.study.ask(self.distributions)
            # What was measured is added as a trial of its own: a batch is told out of order.
            self.study.tell(asked, state=TrialState.FAIL)
            assignment = self.space.assignment(asked.params)
            if assignment not in self.known:
                return assignment
        return self._random()

    def _random(self) -> Assignment:
        """A random new assignment. There is one: the space has more than the known ones."""
        while True:
            labels = {
                setting.name: self.random.choice([DEFAULT_LABEL, *setting.values])
                for setting in self.space.settings
            }
            if (assignment := self.space.assignment(labels)) not in self.known:
                return assignment

    def learn(self, assignment: Assignment, value: float | None) -> None:
        """Tells a result: the logarithm of the time, or None for a failed trial, which TPE then
        avoids like the slowest ones."""
        self.known.add(assignment)
        self.learned.add(assignment)
        labels = dict(assignment)
        params = {name: labels.get(name, DEFAULT_LABEL) for name in self.distributions}
        if value is not None:
            self.values[assignment] = value
        self.study.add_trial(
            create_trial(
                params=params,
                distributions=self.distributions,
                value=value,
                state=TrialState.PRUNED if value is None else TrialState.COMPLETE,
            )
        )
