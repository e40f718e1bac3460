"""Every command in the documents is run, or composed where it needs a GPU, a hub or a server."""

import re
import shlex
import subprocess
from pathlib import Path

import pytest

from tests.conftest import ROOT, Run

DOCUMENTS = [
    ROOT / "README.md",
    ROOT / "recipes" / "README.md",
    *sorted((ROOT / "docs").glob("*.md")),
]
MAKE_TARGETS = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)


def commands(path: Path) -> list[str]:
    """Lines of the sh and console blocks, without prompts, output and comments."""
    found = []
    for kind, block in re.findall(r"```(sh|console)\n(.*?)```", path.read_text(), flags=re.DOTALL):
        lines = block.replace("\\\n", " ").splitlines()
        if kind == "console":
            lines = [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]
        found += [re.sub(r"\s+#.*", "", line).strip() for line in lines if line.strip()]
    return found


def shown_files() -> dict[str, str]:
    """Files that a document shows whole, with their path as the first line."""
    blocks = [
        block
        for path in DOCUMENTS
        for block in re.findall(r"```yaml\n(.*?)```", path.read_text(), flags=re.DOTALL)
    ]
    named = [(re.match(r"# (\S+\.yaml)\n", block), block) for block in blocks]
    return {name[1]: block for name, block in named if name}


ALL = [(path, command) for path in DOCUMENTS for command in commands(path)]
VERIFY = [command for _, command in ALL if "quantize.verify" in command]
OURS = [
    command
    for _, command in ALL
    if command not in VERIFY and re.search(r"python -m (quantize|evaluate|serve)\b", command)
]


def test_the_readme_has_its_two_commands() -> None:
    made = [line for line in commands(ROOT / "README.md") if line.startswith("make")]
    assert made[:2] == ["make demo", "make test"]


@pytest.mark.parametrize("command", [command for _, command in ALL if command.startswith("make")])
def test_every_make_target_exists(command: str) -> None:
    words = [word for word in shlex.split(command)[1:] if "=" not in word]
    assert set(words) <= set(MAKE_TARGETS)
    subprocess.run(["make", "--dry-run", *shlex.split(command)[1:]], cwd=ROOT, check=True)


@pytest.mark.parametrize("command", dict.fromkeys(OURS))
def test_every_command_of_ours_composes(command: str, command_here: Run, tmp_path: Path) -> None:
    """With the folders and files that it names made up."""
    variables = dict(re.findall(r"(QUANTLINE_\w+)=(\S+)", command))
    for folder in variables.values():
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "gentle.yaml").write_text("defaults: [w8a8_smooth_gptq]\n")
    for name, text in shown_files().items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    words = shlex.split(command.partition(" > ")[0])  # the shell writes to a file
    arguments = words[words.index("-m") + 1 :]
    if "-m" in arguments:  # a sweep: each of its choices
        arguments.remove("-m")
        swept = [word for word in arguments if "," in word and "=[" not in word]
        sweep = swept[0] if swept else arguments[-1]
        key, values = sweep.split("=", 1)
        composed = [
            [f"{key}={value}" if word == sweep else word for word in arguments]
            for value in values.split(",")
        ]
    else:
        composed = [arguments]
    for case in composed:
        result = command_here(*case, "--cfg", "job", **variables)
        wrong = "smoth" in command
        assert result.returncode == (2 if wrong else 0), result.stderr
        if wrong:
            assert result.stderr.strip() in (ROOT / "README.md").read_text()


def chosen_scenarios(command: str) -> list[str]:
    names = re.search(r"scenario=\[?([\w,]+)", command)
    return names[1].split(",") if names else []


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [line for line in commands(ROOT / "README.md") if "quick" in line or "prompt=" in line],
)
def test_what_needs_no_gpu_runs_on_the_test_model(
    command: str, run_command: Run, tiny_checkpoint: Path
) -> None:
    root = tiny_checkpoint.parent.parent
    fewer = [
        *("repeats=1", "checkpoints=[]", "accuracy.tokens=512", "accuracy.window=128"),
        *("accuracy.continuations=2", "accuracy.continued_tokens=8"),
        *(f"scenario.{name}.output_tokens=8" for name in chosen_scenarios(command)),
    ]
    smaller = fewer if "evaluate" in command else []
    words = shlex.split(command)[2:]
    result = run_command(*words, "model=tiny", f"checkpoint_root={root}", *smaller)
    assert result.returncode == 0, result.stderr
    assert len(result.stdout.strip()) > 20  # an answer, or a report's


@pytest.mark.slow
@pytest.mark.parametrize("command", VERIFY)
def test_a_checkpoint_is_proven_as_the_documents_say(
    command: str, command_here: Run, tiny_checkpoint: Path
) -> None:
    words = shlex.split(command)
    assert words[:3] == ["python", "-m", "quantize.verify"]
    assert command_here(*words[2:-1], str(tiny_checkpoint)).returncode == 0


@pytest.mark.slow
def test_the_readmes_own_recipe_runs(command_here: Run, tmp_path: Path) -> None:
    lines = commands(ROOT / "README.md")
    start = next(number for number, line in enumerate(lines) if line.startswith("mkdir"))
    for line in lines[start : start + 2]:
        subprocess.run(line, shell=True, cwd=tmp_path, check=True)
    variable, *words = shlex.split(lines[start + 2])
    name, folder = variable.split("=")
    result = command_here(*words[2:], "calibration.samples=8", **{name: folder})
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == "checkpoints/tiny/gentle"
