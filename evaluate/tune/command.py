"""The command `evaluate.tune`: searches the fastest engine settings of one checkpoint."""

from conf.compose import Command
from conf.schema.tune import TuneConfig
from conf.unused.commands import TUNE

COMMAND = Command(
    "tune",
    TuneConfig,
    (
        "python -m evaluate.tune model=qwen3-8b recipe=fp8_dynamic scenario=high_concurrency",
        "python -m evaluate.tune checkpoint=/models/mine scenario=decode_bound budget=40m",
        "python -m evaluate.tune settings=[max_num_seqs,async_scheduling] budget=10m",
    ),
    module="evaluate.tune",
    plain=(("recipe", "recipe_name"),),
    unused=TUNE,
)


def main(config: TuneConfig) -> None:
    from pathlib import Path

    from conf.errors import bad_input
    from conf.files.outputs import check_cache, check_file, is_same_file
    from evaluate.command import kept_when_ended
    from evaluate.results.lock import only_writer
    from evaluate.tune.pipeline import tune

    results, out = Path(config.results).expanduser(), Path(config.out).expanduser()
    check_cache()
    check_file("out", out)
    if is_same_file(results, out):
        raise bad_input(f"out={config.out}: is the results file, which must not be overwritten")
    with kept_when_ended(config.results, config.force), only_writer(Path(config.results)):
        tune(config)
