"""Our Hydra launcher: hands the jobs of a sweep to the launcher that `launcher=NAME` chooses."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from hydra._internal.core_plugins.basic_launcher import BasicLauncher
from hydra.core.config_store import ConfigStore
from hydra.core.hydra_config import HydraConfig
from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn, JobStatus, setup_globals
from omegaconf import OmegaConf, open_dict

from conf.compose import COMPOSE_ERRORS, to_object
from conf.errors import QuantlineError, bad_input
from conf.job import Job
from conf.launch.options import NONE
from conf.unused.rule import check_unused, unused_in_all

GROUP, NAME = "hydra/launcher", "quantline"
TARGET = "hydra_plugins.quantline.JobLauncher"  # Hydra takes launchers of this package alone


class JobLauncher(BasicLauncher):
    """Runs jobs here, as Hydra's own launcher does, or on the chosen one."""

    def launch(
        self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int
    ) -> Sequence[JobReturn]:
        assert self.config is not None
        if len({_launcher_options(overrides) for overrides in job_overrides}) > 1:
            raise bad_input("launcher: cannot be swept; all jobs of a sweep have one launcher")
        job = self.task_function
        if isinstance(job, Job) and initial_job_idx == 0:
            self._check_unused(job, job_overrides)
        if not isinstance(job, Job) or not job.is_spread or self.config.launcher.kind == NONE:
            returns: Sequence[JobReturn] = super().launch(job_overrides, initial_job_idx)
            return returns
        from conf.launch.planning import Planner
        from conf.launch.sweep import Sweep

        setup_globals()
        assert job.command is not None
        assert job.command.sweep is not None
        planner = Planner(job.main.__module__, job.command.sweep, self._typed)
        overrides = [[*self._search_path(), *overrides] for overrides in job_overrides]
        return [_returned(outcome) for outcome in Sweep(planner).run(overrides)]

    def _check_unused(self, job: Job, jobs: Sequence[Sequence[str]]) -> None:
        """Refuses or names options without effect, once for all jobs. A job whose options are
        invalid fails by itself, and has no say here."""
        unused = []
        for overrides in jobs:
            with suppress(QuantlineError, *COMPOSE_ERRORS):
                unused.append(job.unused(self._typed(list(overrides)), overrides))
        if unused:
            check_unused(unused_in_all(unused))

    def _typed(self, overrides: list[str]) -> Any:
        """The typed options of one job; an invalid value is bad input."""
        assert self.hydra_context is not None
        assert self.config is not None
        own = [text for text in overrides if not text.startswith("hydra.")]
        config = self.hydra_context.config_loader.load_sweep_config(self.config, own)
        HydraConfig.instance().set_config(config)
        with open_dict(config):
            del config["hydra"]
        return to_object(config)

    def _search_path(self) -> list[str]:
        """What a job's process needs to find the same config files."""
        assert self.config is not None
        given = OmegaConf.to_container(self.config.hydra.overrides.hydra)
        assert isinstance(given, list)
        return [str(text) for text in given if str(text).startswith("hydra.searchpath=")]


@dataclass
class JobLauncherConf:
    """What Hydra needs to make the launcher."""

    _target_: str = TARGET


def register() -> None:
    Plugins.instance().class_name_to_class[TARGET] = JobLauncher
    ConfigStore.instance().store(group=GROUP, name=NAME, node=JobLauncherConf)


def chosen(overrides: list[str], has_config_folder: bool) -> list[str]:
    """The override that chooses our launcher; none where the user chose another one of Hydra's."""
    if any(text.lstrip("+").startswith(f"{GROUP}=") for text in overrides):
        return []
    names = [text.partition("=")[2] for text in overrides if text.startswith("launcher=")]
    if has_config_folder and any(name != NONE for name in names):
        raise bad_input("--config-dir: a job elsewhere does not see it; use QUANTLINE_RECIPES")
    return [f"{GROUP}={NAME}"]


def _launcher_options(overrides: Sequence[str]) -> tuple[str, ...]:
    return tuple(text for text in overrides if text.startswith(("launcher=", "launcher.")))


def _returned(outcome: object) -> JobReturn:
    return JobReturn(_return_value=outcome, status=JobStatus.COMPLETED)
