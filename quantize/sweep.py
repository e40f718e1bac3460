"""How the jobs of `quantize -m` are checked and resumed on a launcher."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from conf.errors import QuantlineError, bad_input
from conf.launch.hooks import SweepHooks
from conf.launch.task import Record
from conf.schema.commands import QuantizeConfig


class QuantizeSweep(SweepHooks):
    """A job makes one checkpoint."""

    def folder(self, config: QuantizeConfig) -> Path:
        return Path(config.output_dir).expanduser() / ".sweep"

    def label(self, config: QuantizeConfig) -> str:
        return f"{config.model.name}-{config.recipe.name}"

    def gpus(self, config: QuantizeConfig) -> int:
        return config.gpus

    def check(self, configs: list[QuantizeConfig]) -> None:
        from quantize.checkpoint.publish import destination
        from quantize.models.fetch import check_path

        taken: dict[Path, QuantizeConfig] = {}
        for config in configs:
            check_path(config.model)
            folder = destination(config)
            if folder in taken:
                raise bad_input(f"{folder}: two jobs of the sweep would write it")
            taken[folder] = config

    def is_done(self, config: QuantizeConfig, record: Record) -> bool:
        from quantize.checkpoint.manifest import FILE
        from quantize.checkpoint.publish import destination

        return not config.replace and (destination(config) / FILE).is_file()

    def check_missing(self, configs: list[QuantizeConfig]) -> None:
        from quantize.checkpoint.publish import check_destination

        for config in configs:
            check_destination(config)

    def in_job(self, config: QuantizeConfig, shard: Path) -> QuantizeConfig:
        return config

    def outputs(self, config: QuantizeConfig) -> list[str]:
        from quantize.checkpoint.publish import destination

        return [str(destination(config))]

    def begins_anew_with(self, config: QuantizeConfig) -> str:
        return "replace=true" if config.replace else ""

    @contextmanager
    def holding(self, configs: list[QuantizeConfig]) -> Iterator[None]:
        yield  # each job holds the lock of its own checkpoint

    def gather(self, configs: list[QuantizeConfig]) -> None:
        """Nothing to bring together: each job publishes a folder of its own."""

    def finish(self, configs: list[QuantizeConfig]) -> list[QuantlineError]:
        return []
