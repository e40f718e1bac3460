"""Shared parts of the tests: composing, running a command, and models that are made once."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import setuptools  # noqa: F401  # it replaces distutils, and fails where torch's compiler was first
from filelock import FileLock

# Every test run has caches of its own, which the processes that it starts inherit: what an earlier
# version left in the user's cache must not answer for this one. The workers of pytest-xdist inherit
# the folder from the process that starts them, so that the test model is trained once. Who runs
# single tests again and again may name a folder, which is then kept.
RUN_FOLDER = "QUANTLINE_TEST_RUN"
IS_OURS_TO_REMOVE = RUN_FOLDER not in os.environ
if IS_OURS_TO_REMOVE:
    os.environ[RUN_FOLDER] = tempfile.mkdtemp(prefix="quantline-tests-")
CACHES = Path(os.environ[RUN_FOLDER]) / "cache"
# Where libraries look before they look at XDG_CACHE_HOME.
OTHER_CACHES = (
    *("HF_HOME", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_DATASETS_CACHE", "HF_ASSETS_CACHE"),
    *("HF_MODULES_CACHE", "TRANSFORMERS_CACHE", "TORCH_HOME", "VLLM_CACHE_ROOT", "PIP_CACHE_DIR"),
)
for variable in OTHER_CACHES:
    os.environ.pop(variable, None)
os.environ |= {
    "XDG_CACHE_HOME": str(CACHES),
    "QUANTLINE_CACHE": str(CACHES / "quantline"),
    "TRITON_HOME": str(CACHES),
}

# Models of tests are so small that a second thread only waits for the first: with it, and two test
# processes on two cores, a forward pass takes ten times as long. vLLM would bind the threads of all
# its engines to the same core.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")

# A run under nohup ignores SIGHUP, one in the background of a script SIGINT, and so would the
# commands that tests end with them.
signal.signal(signal.SIGHUP, signal.SIG_DFL)
signal.signal(signal.SIGINT, signal.default_int_handler)

from conf.compose import compose  # noqa: E402 (after the caches are set)
from conf.schema.commands import EvaluateConfig, QuantizeConfig  # noqa: E402
from conf.schema.model import ModelConfig  # noqa: E402
from evaluate.command import COMMAND as EVALUATE  # noqa: E402
from quantize.checkpoint.manifest import published  # noqa: E402
from quantize.command import COMMAND as QUANTIZE  # noqa: E402
from tests.command_here import Result, Run, call_here, run_here  # noqa: E402
from tests.fork_server import ForkServer  # noqa: E402

ROOT = Path(__file__).resolve().parent.parent
SEED = 0


@pytest.fixture
def run_command(tmp_path: Path) -> Run:
    """Runs `python -m COMMAND ...` in an empty folder, as a user would."""

    def run(*arguments: str, **variables: str) -> Result:
        return subprocess.run(
            [sys.executable, "-m", *arguments],
            cwd=tmp_path,
            env=os.environ | variables,
            capture_output=True,
            text=True,
            check=False,
        )

    return run


@pytest.fixture(scope="session", autouse=True)
def forked_workers() -> Iterator[None]:
    """Workers that a test's own process starts are forks of one that has imported vLLM."""
    server = ForkServer()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("conf.process.running.spawn", server.spawn)
        yield
    server.stop()


@pytest.fixture(autouse=True)
def _variables_stay() -> Iterator[None]:
    """What a test changes in the environment ends with it. vLLM sets variables when a test calls
    it in this process, and processes and rows of later tests would have them."""
    before = dict(os.environ)
    yield
    for name in os.environ.keys() - before.keys():
        del os.environ[name]
    os.environ.update(before)


@pytest.fixture
def command_here(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Run:
    """Runs `python -m COMMAND ...` in this process, in an empty folder: the usual way to test a
    command. `run_command` is for what a process of its own can show alone."""

    def run(*arguments: str, **variables: str) -> Result:
        return run_here(arguments, tmp_path, variables, capfd)

    return run


@pytest.fixture
def quantize_here(command_here: Run) -> Run:
    """`python -m quantize ...` in this process."""
    return partial(command_here, "quantize")


@pytest.fixture
def programs_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs that a command calls, as verifying or describing, run in this process, which has
    imported torch already."""
    monkeypatch.setattr("conf.process.running.call", call_here)
    monkeypatch.setattr("evaluate.measure.targets.call", call_here)


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package index: a folder that is pip's only source."""
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def quantize_config(*overrides: str) -> QuantizeConfig:
    config = compose(QUANTIZE, list(overrides))
    assert isinstance(config, QuantizeConfig)
    return config


def evaluate_config(*overrides: str) -> EvaluateConfig:
    config = compose(EVALUATE, list(overrides))
    assert isinstance(config, EvaluateConfig)
    return config


@pytest.fixture(scope="session")
def tiny() -> tuple[ModelConfig, Path]:
    """The trained test model: trained once in a test run."""
    from quantize.models.fetch import fetch

    model = quantize_config("model=tiny").model
    return model, fetch(model)


@pytest.fixture(scope="session")
def tiny_checkpoint(
    tiny: tuple[ModelConfig, Path], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """`tiny`, quantized with the default recipe on a little text: once in a test run."""
    from quantize.pipeline import quantize

    config = quantize_config("model=tiny", "calibration.samples=8", "calibration.length=128")
    if "PYTEST_XDIST_WORKER" not in os.environ:
        config.output_dir = str(tmp_path_factory.mktemp("checkpoints"))
        return quantize(config)
    # The workers of a run share the folder above their own.
    root = tmp_path_factory.getbasetemp().parent / "checkpoints"
    config.output_dir = str(root)
    with FileLock(root.with_suffix(".lock")):
        made = published(root, "tiny")
        return made[0] if made else quantize(config)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Every test draws the same numbers, whatever ran before it: torch's own first seed differs in
    each process. Before the fixtures, which draw, too."""
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(SEED)


def pytest_unconfigure() -> None:
    if IS_OURS_TO_REMOVE:
        shutil.rmtree(os.environ[RUN_FOLDER], ignore_errors=True)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    from conf.hardware import gpu_names

    # Files with the most slow tests first, so that no worker is left alone with one at the end. The
    # first worker trains the test model; the second begins with a file that does not wait for it.
    slow = Counter(item.path for item in items if item.get_closest_marker("slow"))
    first = slow.most_common(1)[0][0] if slow else None
    ranks = {first: -2, ROOT / "tests" / "evaluate" / "report" / "test_page.py": -1}
    items.sort(key=lambda item: (ranks.get(item.path, 0), -slow[item.path]))

    if not gpu_names():
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason="there is no NVIDIA GPU here"))
