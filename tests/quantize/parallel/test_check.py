"""What several processes cannot calibrate together is refused by name, before anything starts."""

import pytest

from conf.errors import QuantlineError
from quantize.parallel.check import check_parallel
from tests.conftest import quantize_config

STATIC = ("recipe.activations.dynamic=false", "recipe.activations.strategy=tensor")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["recipe=w4a16_autoround", "gpus=2"], "gpus=2: .* the step autoround, which runs in one"),
        (["recipe=w8a16_awq", "recipe.awq.search=llmcompressor", "shards=2"], "the step awq"),
        (["recipe=fp8_dynamic", "gpus=2"], "recipe=fp8_dynamic reads no text"),
        (["recipe=auto", "bits=5", "gpus=2"], "recipe=auto tries formats on one GPU"),
        (["recipe=w8a8_smooth_ptq", *STATIC, "gpus=2"], "static scales of activations"),
        (["recipe=w4a16_gptq", "kv_cache=fp8", "gpus=2"], "kv_cache=fp8 calibrates scales"),
        (
            ["recipe=w4a16_gptq", "calibration.pack=true", "calibration.samples=16", "gpus=4"],
            "calibration.samples=16 in batches of batch_size=8 are only 2 batches",
        ),
    ],
)
def test_a_run_that_cannot_be_split_is_refused(options: list[str], message: str) -> None:
    with pytest.raises(QuantlineError, match=message):
        check_parallel(quantize_config("model=tiny", *options))


@pytest.mark.parametrize(
    "recipe", ["w8a8_smooth_gptq", "w4a16_gptq", "w8a16_awq", "vptq_2bit", "sparse24"]
)
def test_recipes_whose_sums_are_exchanged_are_accepted(recipe: str) -> None:
    check_parallel(quantize_config("model=tiny", f"recipe={recipe}", "gpus=2"))


def test_each_gpu_takes_one_shard() -> None:
    with pytest.raises(QuantlineError, match="shards=4: each of gpus=2 takes one shard"):
        quantize_config("model=tiny", "gpus=2", "shards=4")
