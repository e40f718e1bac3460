"""How the jobs of `evaluate -m` are split, checked, resumed and brought together."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

from conf.errors import QuantlineError, bad_input
from conf.launch.hooks import Parts, SweepHooks
from conf.launch.task import Record
from conf.models import ORIGINAL
from conf.override_text import option_text
from conf.schema.commands import EvaluateConfig
from conf.schema.load import gpus_of
from conf.terminal import say


class EvaluateSweep(SweepHooks):
    """A job measures one checkpoint or recipe. The original is measured once, before them."""

    def folder(self, config: EvaluateConfig) -> Path:
        from evaluate.sweep.shards import sweep_folder

        return sweep_folder(Path(config.results))

    def label(self, config: EvaluateConfig) -> str:
        if config.checkpoints is not None:
            names = [Path(entry).name for entry in config.checkpoints] or [ORIGINAL]
        else:
            names = config.recipes or ["all"]
        return "-".join([str(config.model.name), *names, *config.scenario])

    def gpus(self, config: EvaluateConfig) -> int:
        return gpus_of(config.engine.options)

    def parts(self, config: EvaluateConfig) -> Parts:
        if config.accuracy.kind == "sensitivity":
            return Parts(
                [[option_text("recipes", [name])] for name in config.recipes or []] or [[]]
            )
        if config.weights == "random":
            return self._recipe_parts(config)
        return self._checkpoint_parts(config)

    def _recipe_parts(self, config: EvaluateConfig) -> Parts:
        from evaluate.measure.targets import known_recipes

        names = [name for name in config.recipes or known_recipes() if name != ORIGINAL]
        separate = [[option_text("recipes", [name])] for name in dict.fromkeys(names)]
        return Parts(
            separate or [[f"recipes=[{ORIGINAL}]"]],
            [f"recipes=[{ORIGINAL}]"] if config.original and separate else None,
        )

    def _checkpoint_parts(self, config: EvaluateConfig) -> Parts:
        from quantize.checkpoint.manifest import published

        entries = config.checkpoints
        if entries is None:
            root = Path(config.checkpoint_root).expanduser()
            entries = [str(folder) for folder in published(root, str(config.model.name))]
        separate = [[option_text("checkpoints", [entry])] for entry in dict.fromkeys(entries)]
        return Parts(separate or [["checkpoints=[]"]], ["checkpoints=[]"] if separate else None)

    def check(self, configs: list[EvaluateConfig]) -> None:
        from evaluate.measure.targets import check_requested

        for config in configs:
            if config.engine.url is not None:
                raise bad_input(
                    f"engine.url={config.engine.url}: names one running server, so there is "
                    f"nothing to spread; leave launcher={config.launcher.kind} out"
                )
            check_requested(config)

    def is_done(self, config: EvaluateConfig, record: Record) -> bool:
        """Whether all rows of the job are in the results. A job that added none is run again: it
        finds out by itself that nothing is missing."""
        from evaluate.sweep.shards import row_identities

        if config.force or not record.outputs:
            return False
        return set(record.outputs) <= set(row_identities(Path(config.results)))

    def in_job(self, config: EvaluateConfig, shard: Path) -> EvaluateConfig:
        return replace(config, results=str(shard), results_before=[config.results])

    def outputs(self, config: EvaluateConfig) -> list[str]:
        from evaluate.sweep.shards import row_identities

        return row_identities(Path(config.results))

    def begins_anew_with(self, config: EvaluateConfig) -> str:
        return "force=true" if config.force else ""

    def kept(self, configs: list[EvaluateConfig]) -> str:
        written = [str(results) for results in _results(configs) if results.expanduser().is_file()]
        return f"{', '.join(written)} has what was measured" if written else ""

    @contextmanager
    def holding(self, configs: list[EvaluateConfig]) -> Iterator[None]:
        from evaluate.results.lock import only_writer

        with ExitStack() as stack:
            for results in _results(configs):
                stack.enter_context(only_writer(results))
            yield

    def gather(self, configs: list[EvaluateConfig]) -> None:
        from evaluate.sweep.shards import merge

        for results in _results(configs):
            merged = merge(results)
            if merged.rows:
                say(f"{results}: {merged.rows} rows were added from {merged.shards} shards")
            for fault in merged.ignored:
                say(f"{fault}; the line is ignored")

    def finish(self, configs: list[EvaluateConfig]) -> list[QuantlineError]:
        """Writes the report of each results file."""
        from evaluate.report.at_end import report_at_end

        first_of = {str(config.results): config for config in reversed(configs)}
        failures = [report_at_end(config) for config in first_of.values()]
        return [failure for failure in failures if failure is not None]


def _results(configs: list[EvaluateConfig]) -> list[Path]:
    return [Path(name) for name in dict.fromkeys(config.results for config in configs)]
