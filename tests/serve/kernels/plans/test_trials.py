"""Products that took a process along."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from serve.kernels.plans import trials as trials_module
from serve.kernels.plans.planner import LayerRequest, Planner
from serve.kernels.plans.store import Identity, PlanStore
from serve.kernels.plans.trials import Trials
from serve.kernels.products.product import Unusable
from tests.serve.kernels.products_for_tests import Few, Plain, int8_weight

ENDS = """
import os, sys
from pathlib import Path
from serve.kernels.plans.trials import Trials
with Trials(Path(sys.argv[1])).trying("int8/48x64", ["few"]):
    os._exit(1)
"""


def end_a_process(plans: Path) -> None:
    subprocess.run([sys.executable, "-c", ENDS, str(plans)], check=False)


def test_a_product_is_blamed_when_its_process_is_gone(tmp_path: Path) -> None:
    trials = Trials(tmp_path / "plans.json")
    with trials.trying("int8/48x64", ["plain"]):
        assert trials.blamed("int8/48x64") == {}, "this process is alive"
    end_a_process(tmp_path / "plans.json")
    (file,) = tmp_path.iterdir()
    assert trials.blamed("int8/48x64") == {
        "few": f"an engine ended while it was tried; delete {file.name} to try it again"
    }
    assert trials.blamed("int8/64x64") == {}


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_an_error_that_the_gpu_survives_blames_nobody(
    tmp_path: Path, error: type[BaseException]
) -> None:
    with pytest.raises(error), Trials(tmp_path / "plans.json").trying("key", ["few"]):
        raise error("not for this shape")
    assert not list(tmp_path.iterdir())


def test_the_product_that_lost_the_gpu_is_blamed_and_none_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trials_module, "_is_gpu_alive", lambda: False)
    monkeypatch.setattr(Trials, "is_gpu_lost", False)
    for product in ("few", "many"):
        with pytest.raises(RuntimeError), Trials(tmp_path / "plans.json").trying("key", [product]):
            raise RuntimeError("an illegal memory access was encountered")
    (left,) = tmp_path.iterdir()
    assert json.loads(left.read_text())["products"] == ["few"]


def test_a_number_that_another_process_has_by_now(tmp_path: Path) -> None:
    trials = Trials(tmp_path / "plans.json")
    left = tmp_path / f"{trials.begin}{os.getpid()}-1.trial"
    left.write_text('{"key": "key", "products": ["few"]}')
    os.utime(left, (1, 1))
    assert list(trials.blamed("key")) == ["few"]
    left.write_text("no file of ours")
    assert trials.blamed("key") == {}


def test_a_blamed_product_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Identity, "path", property(lambda _: tmp_path / "plans.json"))
    end_a_process(tmp_path / "plans.json")
    monkeypatch.setattr(Few, "prepare", lambda *_: pytest.fail("it was run"))
    planner = Planner(lambda: PlanStore(Identity("gpu", "1", "1")), lambda _: 1.0)
    request = LayerRequest("int8/48x64", int8_weight(), [Plain(), Few()], "plain", torch.bfloat16)
    with pytest.raises(Unusable, match="few: an engine ended while it was tried"):
        planner.plan(request)
