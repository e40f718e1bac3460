"""Who may import whom, and that nothing heavy is imported before a config is accepted."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
OURS = ("conf", "quantize", "serve", "evaluate")
ALLOWED = {
    "conf": {"conf"},
    "quantize": {"conf", "quantize"},
    "serve": {"conf", "quantize.checkpoint.manifest", "serve"},
    # Starting an engine and what may be loaded into one are serve's to say.
    "evaluate": {
        *("conf", "quantize.checkpoint.manifest", "evaluate"),
        *("serve.engine.launch", "serve.engine.client", "serve.checks", "serve.tensors"),
        *("serve.engine.process", "serve.engine.endings"),
    },
}
HEAVY = {
    "torch",
    "transformers",
    "vllm",
    "llmcompressor",
    "compressed_tensors",
    "datasets",
    "numpy",
}
MODULES = sorted(path for package in OURS for path in (ROOT / package).rglob("*.py"))


def imported(path: Path) -> set[str]:
    """Every module that a file names in an import, wherever the import stands."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def is_allowed(module: str, package: str) -> bool:
    return any(module == name or module.startswith(f"{name}.") for name in ALLOWED[package])


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_package_imports_only_what_the_house_plan_allows(path: Path) -> None:
    package = path.relative_to(ROOT).parts[0]
    ours = {module for module in imported(path) if module.split(".")[0] in OURS}
    assert {module for module in ours if not is_allowed(module, package)} == set()


def test_the_rule_notices_a_wrong_import(tmp_path: Path) -> None:
    file = tmp_path / "wrong.py"
    file.write_text("def late():\n    from quantize.pipeline import quantize\n")
    assert not all(is_allowed(module, "serve") for module in imported(file))


def test_conf_names_no_heavy_package_but_datasets() -> None:
    for path in (ROOT / "conf").glob("*.py"):
        heavy = {module.split(".")[0] for module in imported(path)} & HEAVY
        assert heavy <= {"datasets"}, path


@pytest.mark.parametrize(
    "command", ["quantize", "evaluate", "evaluate.compare", "evaluate.report", "serve"]
)
def test_nothing_heavy_is_imported_before_a_config_is_accepted(command: str) -> None:
    script = (
        f"import sys, runpy; sys.argv = ['{command}', '--cfg', 'job']\n"
        f"try: runpy.run_module('{command}', run_name='__main__')\n"
        "except SystemExit: pass\n"
        f"print('HEAVY', sorted(set({sorted(HEAVY)}) & set(sys.modules)))"
    )
    result = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert result.stdout.splitlines()[-1] == "HEAVY []"


def test_recipes_hold_no_python() -> None:
    assert list((ROOT / "recipes").rglob("*.py")) == []
