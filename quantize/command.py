"""The command `quantize`: its options, and the checks that run before the heavy imports."""

from conf.compose import Command
from conf.schema.commands import QuantizeConfig

COMMAND = Command(
    "quantize",
    QuantizeConfig,
    (
        "python -m quantize recipe=w8a8_smooth_gptq model=smollm2-135m",
        "python -m quantize recipe=w8a8_smooth_gptq model=qwen3-8b calibration=ultrachat",
        "python -m quantize recipe=fp8_dynamic model.path=/models/mine output_dir=/models/out",
    ),
)


def main(config: QuantizeConfig) -> None:
    # Cheap checks come first: the imports below take seconds.
    from quantize.checkpoint.publish import check_destination
    from quantize.models.fetch import check_path

    check_path(config.model)
    check_destination(config)

    from quantize.pipeline import quantize

    quantize(config)
