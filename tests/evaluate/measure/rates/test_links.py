"""What cards send each other for a step."""

import pytest

from conf.schema.load import GpuConfig, ScenarioConfig
from evaluate.measure.rates.known import with_links
from evaluate.measure.rates.links import Links
from evaluate.measure.roofline import Cost, Rates, least_time


@pytest.mark.parametrize(
    ("links", "expected"),
    [
        (Links(), 0.0),
        (Links(tensor=2), 2 * 80 * 1.0 * 32 * 8192 * 2),
        (Links(tensor=8), 2 * 80 * 1.75 * 32 * 8192 * 2),
        (Links(pipeline=4), 3 * 32 * 8192 * 2),
    ],
)
def test_a_ring_sends_twice_the_activations_at_most(links: Links, expected: float) -> None:
    assert links.sent_bytes(tokens=32, hidden=8192, layers=80, value_bytes=2) == expected


def test_an_unknown_link_takes_no_time() -> None:
    assert Links(tensor=8).seconds(32, 8192, 80, 2) == 0.0
    assert Links(tensor=2, bytes_per_s=100.0).seconds(1, 10, 1, 2) == pytest.approx(0.4)


def test_a_slow_link_bounds_both_phases() -> None:
    work = Cost(1000, 0, 500, 0, 0, 0, "bf16", "bf16", hidden=10, layers=4)
    scenario = ScenarioConfig(input_tokens=5, output_tokens=3, batch=2)
    plain = Rates(100.0, {"bf16": 1e9})
    slow = with_links(plain, GpuConfig(link_gb_s=1e-9), {"tensor_parallel_size": 2})
    assert slow is not None
    found = least_time(work, scenario, slow)
    assert found.prefill_bound == found.decode_bound == "link"
    assert found.prefill_s == pytest.approx(2 * 4 * 10 * 10 * 2)
    assert found.decode_s == pytest.approx(2 * 2 * 4 * 2 * 10 * 2)
    fast = with_links(plain, GpuConfig(link_gb_s=450.0), {"tensor_parallel_size": 2})
    assert fast is not None
    assert least_time(work, scenario, fast) == least_time(work, scenario, plain)
    assert with_links(None, GpuConfig(), {}) is None
