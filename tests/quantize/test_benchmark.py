"""The figures that the benchmark prints."""

from quantize.benchmark.measuring import Measured, QuantizationCost


def test_the_peak_is_printed_for_every_depth() -> None:
    figures = QuantizationCost(
        {2: Measured(3.0, 20.004, None), 6: Measured(7.0, 20.006, None)}
    ).figures()
    assert figures["seconds_per_layer"] == 1.0
    assert figures["peak_gpu_gib"] == 20.01
    assert figures["peak_gpu_gib_by_depth"] == {2: 20.0, 6: 20.01}
