"""The command `quantize`: its options, and the checks that run before the heavy imports."""

from pathlib import Path

from conf.compose import Command
from conf.schema.commands import QuantizeConfig
from conf.unused.commands import QUANTIZE
from quantize.sweep import QuantizeSweep

COMMAND = Command(
    "quantize",
    QuantizeConfig,
    (
        "python -m quantize recipe=w8a8_smooth_gptq model=smollm2-135m",
        "python -m quantize recipe=w8a8_smooth_gptq model=qwen3-8b calibration=ultrachat",
        "python -m quantize recipe=fp8_dynamic model.path=/models/mine output_dir=/models/out",
    ),
    sweep=QuantizeSweep(),
    unused=QUANTIZE,
)


def main(config: QuantizeConfig) -> Path | None:
    """Returns the checkpoint's folder; None after preflight=only."""
    # Cheap checks come first: the imports below take seconds.
    from conf.files.outputs import check_cache
    from quantize.checkpoint.publish import check_destination
    from quantize.models.fetch import check_path
    from quantize.parallel.check import check_parallel

    check_path(config.model)
    check_cache()
    check_destination(config)
    check_parallel(config)
    if config.push:
        from quantize.checkpoint.push import check_hub

        check_hub(config.push)

    from quantize.parallel.launch import run_in_ranks
    from quantize.pipeline import quantize

    return run_in_ranks(config, quantize)
