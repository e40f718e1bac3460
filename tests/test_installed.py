"""The wheel beside Hugging Face's `evaluate`, and our commands in folders with names like ours."""

import re
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from tests.conftest import ROOT, Result, Run
from tests.test_installer import installer, locked

NAMES_LIKE_OURS = ("conf", "quantize", "evaluate", "serve", "quantline")
RAISES = "raise SystemExit('this is the file in the user's folder')\n"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "pip", "wheel", "-qq", "--no-deps", "-w", str(folder), str(ROOT)]
    subprocess.run(build, check=True)
    return next(folder.glob("quantline-*.whl"))


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh environment with the wheel and Hugging Face's `evaluate`; the large packages are
    those of this one, read from where they are. Returns its folder of commands."""
    folder = tmp_path_factory.mktemp("environment") / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    python = folder / "bin" / "python"
    locks = installer()
    _, variables = locks.settings_for_uv("lm-eval")
    theirs = f"evaluate=={locked('lm-eval')['evaluate']}"
    command = [str(locks.VENV / "bin" / "uv"), "pip", "install", "--quiet", "--no-deps"]
    command += ["--python", str(python), str(wheel), theirs]
    subprocess.run(command, env=variables, check=True)
    packages = next((folder / "lib").glob("python*/site-packages"))
    (packages / "large.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return folder / "bin"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A user's folder in which everything of ours has a namesake."""
    for name in NAMES_LIKE_OURS:
        (tmp_path / f"{name}.py").write_text(RAISES)
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(RAISES)
    return tmp_path


def run(folder: Path, *words: str | Path) -> Result:
    variables = {"PATH": "/usr/bin:/bin", "HOME": str(folder), "QUANTLINE_CACHE": str(folder / "c")}
    return subprocess.run(
        [str(word) for word in words],
        cwd=folder,
        env=variables,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.network
def test_the_wheel_holds_one_package(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as content:
        names = content.namelist()
    assert {re.sub(r"-.*", "", name.split("/")[0]) for name in names} == {"quantline"}
    for package in ("conf", "quantize", "evaluate", "serve", "recipes"):
        ours = {
            path.relative_to(ROOT).as_posix()
            for path in (ROOT / package).rglob("*")
            if path.is_file() and "__pycache__" not in path.parts
        }
        assert {f"quantline/{name}" for name in ours} <= set(names)
    assert {"quantline/__main__.py", "quantline/api.py", "quantline/py.typed"} <= set(names)


@pytest.mark.network
@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["--version"], 0, "quantline 0.1.0"),
        (["--help"], 0, "quantline COMMAND [OPTION=VALUE] ..."),
        (["quantise"], 2, "there is no 'quantise'. Did you mean quantize?"),
        (["quantize", "--help"], 0, "quantline quantize [GROUP=NAME] [OPTION=VALUE] ..."),
        (["quantize", "--version"], 0, "quantline 0.1.0"),
        (["evaluate", "--help"], 0, "  quantline evaluate scenario=high_concurrency"),
        (["evaluate", "--cfg", "job"], 0, "name: smollm2-135m"),
        (["evaluate.report", "--help"], 0, "quantline report [GROUP=NAME] [OPTION=VALUE] ..."),
        (["compare", "--help"], 0, "quantline compare [OPTION=VALUE] ..."),
        (["serve", "model=tiny"], 2, "make one with `quantline quantize model=tiny`"),
    ],
)
def test_commands_work_from_the_wheel(
    environment: Path, folder: Path, words: list[str], code: int, said: str
) -> None:
    result = run(folder, environment / "quantline", *words)
    assert result.returncode == code, result.stderr
    assert said in result.stdout + result.stderr


@pytest.mark.network
def test_the_api_is_imported_from_the_wheel(environment: Path, tmp_path: Path) -> None:
    """Its functions have the names of packages in the wheel, and of Hugging Face's `evaluate`."""
    script = (
        "from quantline import evaluate, quantize, recommend, QuantlineError\n"
        "try: quantize(recipe='nope')\n"
        "except QuantlineError as error: print(error)\n"
        "print(evaluate.__module__, recommend.__module__)"
    )
    result = run(tmp_path, environment / "python", "-c", script)
    assert result.returncode == 0, result.stderr
    message, modules = result.stdout.splitlines()
    assert message.startswith("recipe=nope: there is no 'nope'.")
    assert modules == "quantline.api quantline.api"


ENTRY_POINT = """
import sys
from importlib.metadata import entry_points
(point,) = [p for p in entry_points(group="vllm.general_plugins") if p.name == "quantline"]
path = list(sys.path)
register = point.load()
import importlib
sys.modules["vllm"] = type(sys)("vllm")  # large, and not what is tested
platforms = sys.modules["vllm.platforms"] = type(sys)("vllm.platforms")
class Platform:
    is_cuda = staticmethod(lambda: True)
platforms.current_platform = Platform
for _ in range(2):
    register()
import serve.kernels.plugin, conf.cache, evaluate
assert sys.path == path
print(point.value, serve.kernels.plugin.__file__, evaluate.__file__)
"""


@pytest.mark.network
def test_vllm_finds_our_kernels_in_the_wheel(environment: Path, tmp_path: Path) -> None:
    """Also that Hugging Face's `evaluate` stays the one that vLLM's process imports."""
    result = run(tmp_path, environment / "python", "-c", ENTRY_POINT)
    assert result.returncode == 0, result.stderr
    value, plugin, evaluate = result.stdout.split()
    assert value == "quantline:register_kernels"
    assert plugin.endswith("/quantline/serve/kernels/plugin.py")
    assert evaluate.endswith("site-packages/evaluate/__init__.py")
    assert "vLLM's own kernels are used" not in result.stderr


@pytest.mark.network
def test_vllm_finds_our_kernels_in_an_editable_install(tmp_path: Path) -> None:
    """From the metadata that an editable install of this checkout gets."""
    build = [sys.executable, "-m", "pip", "install", "-qq", "--no-deps", "--target", str(tmp_path)]
    subprocess.run([*build, "--editable", str(ROOT)], check=True)
    metadata = next(tmp_path.glob("quantline-*.dist-info"))
    points = (metadata / "entry_points.txt").read_text()
    assert "[vllm.general_plugins]\nquantline = quantline:register_kernels" in points
    assert (next(tmp_path.glob("*.pth"))).read_text().strip() == str(ROOT)


@pytest.mark.slow
@pytest.mark.network
def test_the_wheels_processes_find_each_other(
    environment: Path, folder: Path, tiny_checkpoint: Path
) -> None:
    """Quantizing's imports, and verifying in a process of its own."""
    plan = run(folder, environment / "quantline", "quantize", "model=tiny", "preflight=only")
    assert plan.returncode == 0, plan.stderr
    assert "14 modules" in plan.stderr
    options = [f"checkpoint={tiny_checkpoint}", "dry_run=true"]
    served = run(folder, environment / "quantline", "serve", *options)
    assert served.returncode == 0, served.stderr
    assert "--middleware serve.middleware.ServerMiddleware" in served.stdout
    assert served.stdout.startswith("PYTHONPATH=")


@pytest.mark.slow
@pytest.mark.network
def test_evaluate_is_hugging_faces_in_the_same_environment(
    environment: Path, tmp_path: Path
) -> None:
    script = "import evaluate; print(evaluate.__file__, evaluate.__version__)"
    result = run(tmp_path, environment / "python", "-c", script)
    place, version = result.stdout.split()
    assert Path(place).is_relative_to(environment.parent)
    assert version == locked("lm-eval")["evaluate"]


@pytest.mark.parametrize("command", ["quantize", "evaluate", "evaluate.report", "serve"])
def test_names_in_a_teams_folder_do_not_hide_ours(
    command: str, run_command: Run, tmp_path: Path
) -> None:
    """`python -m`, with all namesakes but the command's own: that one Python takes first."""
    for name in set(NAMES_LIKE_OURS) - {command.split(".")[0]}:
        (tmp_path / f"{name}.py").write_text(RAISES)
    package = tmp_path / "conf"
    package.mkdir()
    for content in (None, RAISES):
        if content is not None:
            (package / "__init__.py").write_text(content)
        result = run_command(command, "--cfg", "job")
        assert result.returncode == 0, result.stderr


def test_processes_do_not_take_their_modules_from_a_teams_folder(
    run_command: Run, tmp_path: Path, tiny_checkpoint: Path
) -> None:
    """serve verifies in a process that it starts with `-m quantize.verify`."""
    for name in ("conf", "quantize", "evaluate", "quantline"):
        (tmp_path / f"{name}.py").write_text(RAISES)
    options = [f"checkpoint={tiny_checkpoint}", "dry_run=true"]
    result = run_command("serve", *options, QUANTLINE_CACHE=str(tmp_path / "cache"))
    assert result.returncode == 0, result.stderr
