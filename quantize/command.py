"""The command `quantize`: its options, and what is checked before anything is imported."""

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
    # What can be refused at once is, before seconds go by with imports.
    from quantize.checkpoint.publish import may_publish
    from quantize.models.fetch import check_path

    check_path(config.model)
    may_publish(config)

    from quantize.pipeline import quantize

    quantize(config)
