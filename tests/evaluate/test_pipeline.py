"""Real vLLM on the test model: speed and perplexity beside the original, and failures."""

import json
import shutil
from pathlib import Path

import pytest

from evaluate.pipeline import _fitting
from tests.conftest import Run


def rows(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.slow
def test_a_checkpoint_is_measured_beside_the_original(
    tiny_checkpoint: Path, run_command: Run, tmp_path: Path
) -> None:
    broken = Path(shutil.copytree(tiny_checkpoint, tmp_path / "broken"))
    (broken / "model.safetensors").write_bytes(b"not a model")
    result = run_command(
        "evaluate",
        "model=tiny",
        f"checkpoints=[{broken},{tiny_checkpoint}]",
        "scenario=[interactive,long_context]",
        "scenario.interactive.output_tokens=8",
        "accuracy=quick",
        "accuracy.tokens=1024",
        "accuracy.window=128",
        "repeats=2",
    )
    assert result.returncode == 3, result.stderr
    assert "error: broken: the engine stopped" in result.stderr
    assert "long_context: skipped, 16416 tokens are more than the model's 2048" in result.stderr

    found = rows(tmp_path / "results.jsonl")
    cells = [(row["checkpoint"], row["measure"], row["repeat"]) for row in found]
    assert cells == [
        (name, measure, repeat)
        for name in ("original", "w8a8_smooth_gptq")
        for measure, repeat in (("interactive", 0), ("interactive", 1), ("quick", 0))
    ]
    speed = [row["values"] for row in found if row["measure"] == "interactive"]
    assert all(values["input_tokens"] == 128 for values in speed)
    assert all(values["output_tokens"] == 8 for values in speed)
    assert all(0 < values["ttft_last_s"] < values["latency_s"] for values in speed)
    original, quantized = (row["values"] for row in found if row["measure"] == "quick")
    assert original["tokens"] == quantized["tokens"] == 1024 - 1024 / 128
    assert original["perplexity"] < 1024 / 8
    assert quantized["perplexity"] == pytest.approx(original["perplexity"], rel=0.03)


def test_a_scenario_that_does_not_fit_is_said_and_left_out(
    capsys: pytest.CaptureFixture[str],
) -> None:
    from conf.load_schema import ScenarioConfig

    cases = {"short": ScenarioConfig(1, 8, 8), "long": ScenarioConfig(1, 20, 8)}
    assert set(_fitting(cases, limit=20)) == {"short"}
    assert "scenario=long: skipped, 28 tokens" in capsys.readouterr().err
