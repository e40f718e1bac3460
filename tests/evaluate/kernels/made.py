"""Made-up rows of the grid of kernels."""

from functools import cache

from conf.architecture import Architecture
from conf.schema.kernel_grid import KernelGridConfig
from conf.schema.load import GpuConfig
from conf.schema.model import ModelConfig
from evaluate.kernels.benchmark import environment, key_of
from evaluate.kernels.cases import KernelCase, cases
from evaluate.results.kernel_values import KernelValues, Times
from evaluate.results.rows import KernelRow

QWEN = ModelConfig(
    name="qwen3-8b",
    architecture=Architecture(
        model_type="qwen3",
        hidden_size=4096,
        intermediate_size=12288,
        num_hidden_layers=36,
        num_attention_heads=32,
        num_key_value_heads=8,
        head_dim=128,
        vocab_size=151936,
        max_position_embeddings=40960,
    ),
)


def grid(**options: object) -> KernelGridConfig:
    return KernelGridConfig(model=QWEN, gpu=GpuConfig(), **options)  # type: ignore[arg-type]


def times(median: float) -> Times:
    return Times(median_us=median, low_us=median * 0.99, high_us=median * 1.01, repeats=7)


machine = cache(environment)


def row_of(case: KernelCase, ratio: float = 0.5, invalid: tuple[str, ...] = ()) -> KernelRow:
    here = machine()
    values = KernelValues(
        cold=times(10 * ratio),
        warm=times(8 * ratio),
        torch_cold=times(10),
        torch_warm=times(8),
        error=0.002,
        weight_bytes=10**6,
        limit_us=2.0,
        limit_share=0.4,
        options="warps 16",
    )
    return KernelRow(
        model=case.model or case.grid,
        checkpoint="vptq_few_tokens",
        measure=case.name,
        repeat=0,
        key=key_of(case, here),
        values=values,
        settings=case.settings(),
        environment=here,
        invalid=[*invalid],
        time="2026-01-31T12:00:00+00:00",
    )


def all_rows(ratio: float = 0.5, **options: object) -> list[KernelRow]:
    return [row_of(case, ratio) for case in cases(grid(**options))]
