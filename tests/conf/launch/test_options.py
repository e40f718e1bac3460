"""Options of launchers: what is refused before anything runs, and why."""

import importlib.util
import shutil

import pytest

from conf.errors import QuantlineError
from conf.launch.options import LauncherConfig
from conf.launch.runners import Resources, start_runner
from conf.launch.runners.ray_tasks import check_address, sent_variables
from tests.conftest import Run


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("launcher=slrum",), "launcher=slrum: there is no 'slrum'. Did you mean slurm?"),
        (("launcher=local", "launcher.partiton=x"), "Did you mean launcher.partition?"),
        (("launcher=local", "launcher.workers=0"), "launcher.workers=0: must be at least 1"),
        (("launcher=slurm", "launcher.minutes=0"), "launcher.minutes=0: must be at least 1"),
        (
            ("launcher=ray", "launcher.partition=gpu"),
            "launcher.partition works only with launcher=slurm, not with launcher=ray",
        ),
        (
            ("launcher=slurm", "'launcher.account=a b'"),
            "launcher.account='a b': is no name that Slurm could have",
        ),
        (
            ("launcher=ray", "launcher.address=auto", "launcher.workers=2"),
            "launcher.workers: a running Ray cluster has its own size",
        ),
        (("launcher=local,ray",), "launcher: cannot be swept"),
        (
            ("launcher=local", "weights=random", "recipes=[fp8_dynamc]"),
            "recipes=fp8_dynamc: there is no 'fp8_dynamc'. Did you mean fp8_dynamic?",
        ),
        (
            ("launcher=local", "checkpoints=[nowhere]"),
            "checkpoints=nowhere: there is no model in that folder",
        ),
        (
            ("launcher=local", "engine=vllm_server", "engine.url=http://x:1"),
            "engine.url=http://x:1: names one running server, so there is nothing to spread",
        ),
    ],
)
def test_a_wrong_option_is_named_before_a_job_runs(
    command_here: Run, arguments: tuple[str, ...], expected: str
) -> None:
    result = command_here("evaluate", "-m", "model=tiny", *(text.strip("'") for text in arguments))
    assert result.returncode == 2, result.stderr
    assert expected in result.stderr
    assert "launcher=" not in result.stdout


def test_a_launcher_needs_a_sweep(command_here: Run) -> None:
    result = command_here("quantize", "launcher=local")
    assert result.returncode == 2
    assert "launcher=local: works only for a sweep; add -m" in result.stderr


@pytest.mark.parametrize(("kind", "package"), [("slurm", "submitit"), ("ray", "ray")])
def test_a_missing_package_is_named_with_its_command(
    kind: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(QuantlineError, match=f"needs the package {package}.*make setup-cluster"):
        start_runner(LauncherConfig(kind), Resources(1))


def test_slurm_without_its_commands_is_an_environment_failure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from conf.launch.runners.slurm import SlurmRunner

    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(QuantlineError, match="there is no command sbatch here") as failure:
        SlurmRunner(LauncherConfig("slurm"), Resources(1))
    assert failure.value.exit_code == 3


def test_no_secret_is_sent_to_another_node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hidden")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HOME_OF_THIS", "x")
    sent = sent_variables()
    assert sent["HF_HUB_OFFLINE"] == "1"
    assert not {"HF_TOKEN", "HOME_OF_THIS"} & sent.keys()


@pytest.mark.parametrize("address", ["127.0.0.1:1", "no.such.host.invalid:6379", "127.0.0.1:99999"])
def test_an_address_where_nobody_listens_is_named_at_once(address: str) -> None:
    with pytest.raises(QuantlineError, match=f"launcher.address={address}") as raised:
        check_address(address)
    assert raised.value.exit_code == 3
