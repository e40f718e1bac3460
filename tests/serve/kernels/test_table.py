"""`python -m serve.kernels`."""

from pathlib import Path

import pytest

from conf.cache import rates_file
from serve.kernels import table
from serve.kernels.plans import limit
from serve.kernels.plans.limit import Rates
from serve.kernels.plans.plan import Plan, Step, Timing
from serve.kernels.plans.store import Identity, PlanStore, StoredPlan
from tests.conftest import Run

GPU = "NVIDIA H200"
PLAN = Plan(
    (Step(16, "few", (("block", 64),)), Step(None, "own")),
    (
        Timing(1, "few", (("block", 64),), 25.0, 100_000_000),
        Timing(1, "few", (("block", 128),), 30.0, 100_000_000),
        Timing(1, "own", (), 40.0, 100_000_000),
        Timing(512, "own", (), 250.0, 100_000_000),
    ),
)


@pytest.fixture
def plans(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUANTLINE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(table, "NARROWEST_TABLE", 200)
    store = PlanStore(Identity(GPU, "2.11", "0.25.1"))
    store.keep(StoredPlan("int8/24576x4096", ("few", "own"), PLAN, 24576, 4096, "int8"))


def test_without_plans_it_says_how_they_come(command_here: Run, tmp_path: Path) -> None:
    result = command_here("serve.kernels", QUANTLINE_CACHE=str(tmp_path / "empty"))
    assert result.returncode == 0
    assert "there are no plans in" in result.stderr
    assert "engine.kernels=auto" in result.stderr


def test_each_candidate_and_its_share_of_the_limit(
    plans: None, command_here: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limit, "gpu_names", lambda: [GPU])
    monkeypatch.setattr(limit, "gpu_cards", lambda: ["0123"])
    path = rates_file(GPU, ["0123"])
    path.write_text('{"bandwidth": 5e12, "products": {"int8": 1e15}, "device": "cuda"}')
    result = command_here("serve.kernels")
    rows = [line.split("│") for line in result.stdout.splitlines() if "24576x4096" in line]
    cells = [[cell.strip() for cell in row[1:-1]] for row in rows]
    assert cells[0] == ["int8/24576x4096", "1", "few", "block=64", "25.0", "80%", "own 40.0"]
    assert cells[1] == ["int8/24576x4096", "512", "own", "", "250.0", "41%", ""]
    assert "5,000 GB/s and dense products, measured on this machine" in result.stdout


def test_filters(plans: None, command_here: Run) -> None:
    result = command_here("serve.kernels", "tokens=[512]")
    assert result.stdout.count("24576x4096") == 1
    nothing = command_here("serve.kernels", "layers=fp8")
    assert "no plan fits layers=fp8" in nothing.stderr
    wrong = command_here("serve.kernels", "layer=fp8")
    assert (wrong.returncode, "Did you mean layers?" in wrong.stderr) == (2, True)


def test_plans_of_another_machine_have_the_limit_of_the_datasheet(
    plans: None, command_here: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where published plans are unpacked on a machine without a GPU."""
    monkeypatch.setattr(limit, "gpu_names", list)
    rates_file(GPU, []).write_text('{"bandwidth": 5e12, "products": {"int8": 1e15}}')
    result = command_here("serve.kernels", "tokens=[1]")
    assert "4,800 GB/s and dense products, by the GPU's datasheet" in result.stdout
    (row,) = [line.split("│") for line in result.stdout.splitlines() if "24576x4096" in line]
    assert row[6].strip() == "83%", "100 MB in 25 µs"


def test_a_gpu_that_nobody_knows_has_no_limit(
    tmp_path: Path, command_here: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QUANTLINE_CACHE", str(tmp_path / "cache"))
    store = PlanStore(Identity("NVIDIA A1000", "2.11", "0.25.1"))
    store.keep(StoredPlan("int8/24576x4096", ("few", "own"), PLAN, 24576, 4096, "int8"))
    result = command_here("serve.kernels")
    assert "no limit is known: neither measured rates nor the datasheet" in result.stdout
    assert "24576x4096" in result.stdout


def test_the_datasheet_is_the_second_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limit, "gpu_names", lambda: [GPU])
    monkeypatch.setattr(limit, "gpu_cards", lambda: ["none-of-ours"])
    rates = limit.rates_of(GPU)
    assert rates is not None
    assert rates.source == "datasheet"
    assert rates.bandwidth > 1e12
    assert limit.rates_of("NVIDIA A100") is None


def test_the_limit_is_reading_or_multiplying() -> None:
    rates = Rates(1e12, {"int8": 1e15})
    assert rates.least_microseconds(1, 1000, 1000, 10**6, "int8") == pytest.approx(1.004)
    many = rates.least_microseconds(10**4, 1000, 1000, 10**6, "int8")
    assert many == pytest.approx(41.0)
    assert rates.least_microseconds(10**6, 1000, 1000, 10**6, "int8") == pytest.approx(4001.0)
    slow = Rates(1e12, {"int8": 1e12})
    assert slow.least_microseconds(10**4, 1000, 1000, 10**6, "int8") == pytest.approx(20000)


@pytest.mark.parametrize("damage", ["0", "-1", "1e400", "NaN", '"fast"', "null"])
def test_a_damaged_time_is_no_plan(plans: None, command_here: Run, damage: str) -> None:
    path = Identity(GPU, "2.11", "0.25.1").path
    path.write_text(path.read_text().replace('"microseconds": 25.0', f'"microseconds": {damage}'))
    result = command_here("serve.kernels")
    assert result.returncode == 0, result.stderr
    assert "there are no plans in" in result.stderr
    assert "24576x4096" not in result.stdout


def test_a_truncated_file_is_no_plan(plans: None, command_here: Run) -> None:
    path = Identity(GPU, "2.11", "0.25.1").path
    path.write_bytes(path.read_bytes()[:200])
    result = command_here("serve.kernels")
    assert (result.returncode, result.stdout) == (0, "")


@pytest.mark.parametrize("rates", ['{"bandwidth": 0}', '{"bandwidth": 1, "products": {"int8": 0}}'])
def test_damaged_rates_are_not_used(
    plans: None, command_here: Run, monkeypatch: pytest.MonkeyPatch, rates: str
) -> None:
    monkeypatch.setattr(limit, "gpu_names", lambda: [GPU])
    monkeypatch.setattr(limit, "gpu_cards", lambda: ["0123"])
    rates_file(GPU, ["0123"]).write_text(rates)
    result = command_here("serve.kernels")
    assert result.returncode == 0, result.stderr
    assert "24576x4096" in result.stdout


def test_names_are_shown_as_they_are(plans: None, command_here: Run) -> None:
    path = Identity(GPU, "2.11", "0.25.1").path
    path.write_text(path.read_text().replace("int8/24576", "[red]int8[/x] :fire: 24576"))
    assert "[red]int8[/x] :fire: 24576" in command_here("serve.kernels").stdout
