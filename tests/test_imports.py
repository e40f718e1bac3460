"""Who may import or start whom, and that nothing heavy is imported before a config is accepted."""

import ast
import subprocess
import sys
from functools import cache
from graphlib import TopologicalSorter
from itertools import pairwise
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
OURS = ("conf", "quantize", "serve", "evaluate", "quantline")
MANIFEST, PROGRAMS = "quantize.checkpoint.manifest", "quantize.programs"
MARKS = "quantize.checkpoint.verified_marks"
VPTQ = "quantize.vptq"
FLOAT32 = "quantize.models.float32"
# The parts of the house, and for each the parts that its modules may import. A module belongs to
# the part with the longest name that begins its own.
IMPORTS: dict[str, set[str]] = {
    "conf": set(),
    # What quantize promises others: the manifest of a checkpoint, whether it was verified here, and
    # the work of its processes.
    "quantize.checkpoint.claims": {"conf"},
    "quantize.checkpoint.manifest_parts": {"conf"},
    MANIFEST: {"conf", "quantize.checkpoint.claims", "quantize.checkpoint.manifest_parts"},
    MARKS: {"conf", MANIFEST},
    PROGRAMS: {"conf"},
    # VPTQ in plain torch, for checks and for engines without a kernel for it.
    VPTQ: {"conf"},
    # Machines that are slow in bf16 load models in float32, to quantize and to measure them.
    FLOAT32: {"conf"},
    "quantize.models": {"conf", PROGRAMS, VPTQ, FLOAT32},
    "quantize": {
        *("conf", "quantize.checkpoint.claims", "quantize.checkpoint.manifest_parts"),
        *(MANIFEST, MARKS, PROGRAMS, "quantize.models", VPTQ, FLOAT32),
    },
    # vLLM loads it in processes that know nothing else of ours.
    "serve.kernels": {"conf", VPTQ},
    "serve.engine": {"conf", MANIFEST, PROGRAMS, "serve.kernels"},
    "serve": {
        *("conf", MANIFEST, MARKS, PROGRAMS, "serve.engine", "serve.kernels"),
        "evaluate.report.programs",
    },
    # Results and reports know nothing of engines: they read rows.
    "evaluate.accuracy.verdicts": set(),
    "evaluate.results": {"conf", "evaluate.accuracy.verdicts"},
    "evaluate.measure.text_view": {"conf"},
    "evaluate.measure.profiles": {"conf", "evaluate.results"},
    "evaluate.accuracy.divergence": {
        *("conf", "evaluate.accuracy.verdicts", "evaluate.measure.text_view", "evaluate.results"),
    },
    "evaluate.accuracy.judging": {
        *("conf", "evaluate.accuracy.divergence", "evaluate.measure.text_view", "evaluate.results"),
    },
    # Arithmetic on two lists of answers, and on two accuracy rows.
    "evaluate.accuracy.answers": {"conf", "evaluate.accuracy.divergence", "evaluate.results"},
    "evaluate.accuracy.pairs": {
        *("conf", "evaluate.accuracy.verdicts", "evaluate.accuracy.divergence"),
        *("evaluate.accuracy.answers", "evaluate.results"),
    },
    "evaluate.accuracy.ranks": {
        *("conf", "evaluate.accuracy.answers", "evaluate.accuracy.divergence"),
        *("evaluate.accuracy.pairs", "evaluate.results"),
    },
    "evaluate.report.programs": {"conf"},
    "evaluate.report": {
        *("conf", "evaluate.results", "evaluate.accuracy.verdicts", "evaluate.accuracy.judging"),
        "evaluate.accuracy.ranks",
        *("evaluate.accuracy.divergence", "evaluate.measure.profiles", "evaluate.report.programs"),
    },
    # Starting an engine and what may be loaded into one are serve's to say.
    "evaluate.measure": {
        *("conf", MANIFEST, PROGRAMS, VPTQ, FLOAT32, "serve", "serve.engine", "serve.kernels"),
        "evaluate.results",
        *("evaluate.measure.text_view", "evaluate.measure.profiles"),
    },
    "evaluate.accuracy": {
        *("conf", PROGRAMS, "serve", "serve.engine", "serve.kernels", "evaluate.results"),
        *("evaluate.report", "evaluate.measure", "evaluate.measure.text_view"),
        "evaluate.accuracy.verdicts",
        *("evaluate.accuracy.divergence", "evaluate.accuracy.judging", "evaluate.accuracy.answers"),
    },
    "evaluate": {
        *("conf", MANIFEST, "serve", "serve.engine", "serve.kernels", "evaluate.results"),
        *(
            "evaluate.report",
            "evaluate.measure",
            "evaluate.measure.text_view",
            "evaluate.measure.profiles",
        ),
        *("evaluate.accuracy", "evaluate.accuracy.judging", "evaluate.accuracy.verdicts"),
    },
    # Comparisons read results, as reports do.
    "evaluate.compare": {
        *("conf", "evaluate.results", "evaluate.report"),
        *("evaluate.accuracy.divergence", "evaluate.accuracy.pairs"),
    },
    # The commands as functions.
    "quantline": {"conf", "quantize", MANIFEST, "evaluate", "evaluate.results", "evaluate.report"},
}
# The parts whose modules each part may start as processes of their own.
STARTS: dict[str, set[str]] = {
    "serve.engine": {"quantize.models"},
    "serve": {"quantize", "evaluate.report"},
    "evaluate.measure": {"quantize", "evaluate.measure"},
    "evaluate.accuracy": {"quantize", "evaluate.accuracy"},
    "evaluate.report": {"evaluate.report"},
    "evaluate": {"evaluate.measure"},
}
# Of serve, an evaluation needs no more than these.
NEEDED_OF_SERVE = {"serve.checks", "serve.tensors", "serve.engine", "serve.kernels"}
HEAVY = {
    "torch",
    "transformers",
    "vllm",
    "llmcompressor",
    "compressed_tensors",
    "datasets",
    "numpy",
}


def name_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {
    name_of(path): path for package in OURS for path in sorted((ROOT / package).rglob("*.py"))
}


def part_of(module: str) -> str:
    parts = [part for part in IMPORTS if module == part or module.startswith(f"{part}.")]
    return max(parts, key=len)


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def imported(path: Path) -> set[str]:
    """Every name that a file imports, wherever the import stands."""
    found: set[str] = set()
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def imported_modules(path: Path) -> set[str]:
    """The modules of ours among them."""
    found = set()
    for name in imported(path):
        while name and name not in MODULES:
            name = name.rpartition(".")[0]
        found.add(name)
    return found - {""}


@cache
def declared_programs() -> dict[str, str]:
    """Programs by the full names of their contracts, and the module that each of them starts."""
    found = {}
    for module, path in MODULES.items():
        for node in tree_of(path).body:
            if isinstance(node, ast.Assign):
                target, value = node.targets[0], node.value
            elif isinstance(node, ast.AnnAssign) and node.value is not None:
                target, value = node.target, node.value
            else:
                continue
            if isinstance(value, ast.Call) and ast.unparse(value.func) == "Program":
                (first, *_) = value.args
                assert isinstance(first, ast.Constant), f"{path}: a program that has no plain name"
                found[f"{module}.{ast.unparse(target)}"] = str(first.value)
    return found


def named_after_m(path: Path) -> set[str]:
    """Modules of ours that follow `-m` in a list of words: a command line."""
    found = set()
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.List):
            words = [part.value if isinstance(part, ast.Constant) else "" for part in node.elts]
            after = [str(word) for flag, word in pairwise(words) if flag == "-m"]
            found |= {word for word in after if word.split(".")[0] in OURS}
    return found


def started(module: str) -> set[str]:
    """The modules that a module starts: by the programs that it imports, and by command lines. The
    one that does the work imports the contract, too, and starts nothing by that."""
    path, programs = MODULES[module], declared_programs()
    own = {name for name in programs if name.rpartition(".")[0] == module}
    by_contract = {programs[name] for name in (imported(path) | own) & programs.keys()}
    if own and "conf.process.running" not in {n.rpartition(".")[0] for n in imported(path)}:
        by_contract = set()  # it only declares them
    return (by_contract | named_after_m(path)) - {module, f"{module.removesuffix('.__main__')}"}


def misplaced(module: str, names: set[str], allowed: dict[str, set[str]]) -> set[str]:
    """What a module must not reach."""
    part = part_of(module)
    reachable = {part, *allowed.get(part, set())}
    return {name for name in names if part_of(name) not in reachable}


@pytest.mark.parametrize("module", MODULES)
def test_a_module_imports_only_what_the_house_plan_allows(module: str) -> None:
    assert misplaced(module, imported_modules(MODULES[module]), IMPORTS) == set()


@pytest.mark.parametrize("module", MODULES)
def test_a_module_starts_only_what_the_house_plan_allows(module: str) -> None:
    assert misplaced(module, started(module), STARTS) == set()


def test_the_house_plan_has_no_circles_of_imports_or_processes() -> None:
    plan = {part: IMPORTS[part] | STARTS.get(part, set()) - {part} for part in IMPORTS}
    assert len(list(TopologicalSorter(plan).static_order())) == len(plan)


def test_modules_have_no_circles() -> None:
    graph = {name: imported_modules(path) - {name} for name, path in MODULES.items()}
    assert len(list(TopologicalSorter(graph).static_order())) == len(graph)


def test_an_evaluation_needs_little_of_serve() -> None:
    for module, path in MODULES.items():
        if module.split(".")[0] == "evaluate":
            of_serve = {n for n in imported_modules(path) if n.split(".")[0] == "serve"}
            wrong = {n for n in of_serve if not n.startswith(tuple(NEEDED_OF_SERVE))}
            assert wrong == set(), module


def test_every_program_is_a_module_that_fulfils_its_contract() -> None:
    programs = declared_programs()
    assert len(programs) >= 8
    for contract, module in programs.items():
        path = MODULES.get(f"{module}.__main__") or MODULES[module]
        name = contract.rpartition(".")[2]
        assert contract in imported(path), f"{module} does not import {contract}"
        assert f"run_program({name}, " in path.read_text()


def test_our_processes_are_started_in_one_place() -> None:
    """A process of ours that is started by hand has no life line and loses its errors."""
    calls = {
        module
        for module, path in MODULES.items()
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.Attribute)
        and ast.unparse(node) in ("subprocess.run", "subprocess.Popen")
    }
    foreign = {
        "serve.engine.process": "vLLM's server, which has a way of its own to end",
        "conf.files.wheels": "pip",
        "conf.launch.runners.slurm_commands": "Slurm's own commands",
        "evaluate.measure.environment": "git",
        "evaluate.accuracy.questions.sandbox": "programs that a model wrote, in namespaces",
        "evaluate.accuracy.tasks.harness": "the version of lm-eval in another interpreter",
        "evaluate.traffic_check.vllm_bench": "vllm bench serve",
    }
    assert calls - {"conf.process.running"} == foreign.keys()


def test_the_rules_notice_what_is_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    late = tmp_path / "late.py"
    late.write_text(
        "def late():\n    from quantize.pipeline import quantize\n"
        "    command = [sys.executable, '-m', 'evaluate.pipeline', 'x']\n"
    )
    monkeypatch.setitem(MODULES, "serve.late", late)
    assert misplaced("serve.late", imported_modules(late), IMPORTS) == {"quantize.pipeline"}
    assert misplaced("serve.late", started("serve.late"), STARTS) == {"evaluate.pipeline"}
    later = tmp_path / "later.py"
    later.write_text("from evaluate.measure.events import WORKER\n")
    monkeypatch.setitem(MODULES, "serve.late", later)
    assert misplaced("serve.late", started("serve.late"), STARTS) == {"evaluate.measure.worker"}


def test_conf_names_no_heavy_package_but_datasets() -> None:
    for path in (ROOT / "conf").rglob("*.py"):
        heavy = {module.split(".")[0] for module in imported(path)} & HEAVY
        assert heavy <= {"datasets"}, path


@pytest.mark.parametrize(
    "command",
    [
        *("quantize", "evaluate", "evaluate.compare", "evaluate.report", "evaluate.kernels"),
        *("evaluate.traffic_check", "evaluate.tune", "serve", "quantize.benchmark"),
    ],
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
