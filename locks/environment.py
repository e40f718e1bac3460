"""Makes the locks and installs them: `environment.py lock`, `environment.py install
cpu|cuda|dev|lm-eval`; `environment.py check` says whether this Python can.

Runs on a bare Python: it makes the virtual environment, puts uv into it and lets uv do the rest.
uv does not read pip's settings, so they are handed on: index, find-links and certificates.
"""

from __future__ import annotations  # an older Python gets as far as the sentence that refuses it

import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path

UV = "uv==0.13.7"
CPU_TORCH = "torch==2.13.0+cpu"
DEVICES = ("cpu", "cuda")
LM_EVAL = "lm-eval"
DEV = "dev"
NOT_ON_A_CPU = ("torchvision", "torchaudio", "torchcodec", "triton")
HANDED_ON = {
    "index-url": "UV_DEFAULT_INDEX",
    "extra-index-url": "UV_INDEX",
    "find-links": "UV_FIND_LINKS",
    "cert": "SSL_CERT_FILE",
}
ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
# Hugging Face's `evaluate`, which lm-eval needs, has the name of a package of ours.
LM_EVAL_VENV = ROOT / ".venv-lm-eval"
OLDEST_PYTHON, NEWEST_PYTHON = (3, 11), (3, 13)
SECONDS_BETWEEN_LINES = 10.0
SECONDS_BETWEEN_LOOKS = 0.2


def main(arguments: list[str]) -> None:
    check_python(sys.version_info[:3])
    if arguments == ["check"]:
        return
    if arguments == ["lock"]:
        bootstrap()
        for device in DEVICES:
            lock(device)
        lock_dev()
        lock_lm_eval()
    elif arguments == ["install", LM_EVAL]:
        bootstrap()
        install_lm_eval()
    elif arguments == ["install", DEV]:
        install_dev()
    elif len(arguments) == 2 and arguments[0] == "install" and arguments[1] in DEVICES:
        bootstrap()
        install(arguments[1])
    else:
        sys.exit(__doc__)


def check_python(version: tuple[int, ...]) -> None:
    """Refuses a Python that the locked packages have no wheels for."""
    if not OLDEST_PYTHON <= version[:2] <= NEWEST_PYTHON:
        found = ".".join(map(str, version))
        sys.exit(
            f"error: Quantline needs Python 3.11, 3.12 or 3.13, and {sys.executable} is {found}; "
            "name another one with make PYTHON=python3.12"
        )


def bootstrap() -> None:
    """The virtual environment with uv in it."""
    if not PYTHON.exists():
        print("making .venv", flush=True)
        venv.create(VENV, with_pip=True)
    run([str(PYTHON), "-m", "pip", "install", "-qq", "--disable-pip-version-check", UV])


def lock(device: str) -> None:
    """Resolves everything anew; a CPU lock serves every Linux, a CUDA lock Linux on x86-64."""
    print(f"locking locks/{device}.txt", flush=True)
    command = compiling("pyproject.toml", name=device)
    command += ["--extra", device]
    command += ["--override", f"locks/overrides-{device}.txt"]
    if device == "cpu":
        command += ["--universal", *[f"--no-emit-package={package}" for package in NOT_ON_A_CPU]]
    else:
        command.append("--python-platform=x86_64-manylinux_2_28")
    uv(command, device)


def lock_dev() -> None:
    """Resolves what tests and lint need beside the packages that users install."""
    print(f"locking locks/{DEV}.txt", flush=True)
    command = [*compiling("--group", DEV, name=DEV), "--constraint", "locks/cpu.txt"]
    users = names_in("cpu") | names_in("cuda")
    uv([*command, "--universal", *[f"--no-emit-package={name}" for name in sorted(users)]], DEV)


def names_in(name: str) -> set[str]:
    """The packages that a lock names."""
    lock = (ROOT / "locks" / f"{name}.txt").read_text()
    return set(re.findall(r"^([\w.-]+)(?:\[[^]]*\])?==", lock, flags=re.MULTILINE))


def lock_lm_eval() -> None:
    """Resolves lm-eval and what it needs, for every Linux."""
    print(f"locking locks/{LM_EVAL}.txt", flush=True)
    uv([*compiling(f"locks/{LM_EVAL}.in", name=LM_EVAL), "--universal"], LM_EVAL)


def compiling(*source: str, name: str) -> list[str]:
    """The part of uv's command that all locks share."""
    command = ["pip", "compile", *source, "--quiet", "--upgrade", "--python-version=3.11"]
    command += ["--no-emit-index-url", "--no-emit-find-links"]
    command += ["--output-file", f"locks/{name}.txt"]
    return [*command, "--custom-compile-command", "make lock"]


def install(device: str) -> None:
    """Installs a lock as it stands, and Quantline itself from this folder.

    Bytecode is compiled now, so that no command pays for it later.
    """
    command = ["pip", "install", "--python", str(PYTHON), "--no-deps"]
    uv(
        [*command, "--compile-bytecode", "-r", f"locks/{device}.txt"],
        device,
        Progress(device, VENV),
    )
    uv([*command, "--quiet", "--editable", "."], device)


def install_dev() -> None:
    """Adds what tests and lint need to what users install."""
    command = ["pip", "install", "--python", str(PYTHON), "--no-deps"]
    uv([*command, "-r", f"locks/{DEV}.txt"], DEV, Progress(DEV, VENV))


def install_lm_eval() -> None:
    """An interpreter of its own for lm-eval, without Quantline and without torch.

    Bytecode is compiled as it is needed: most of what lm-eval asks for it never imports.
    """
    venv.create(LM_EVAL_VENV, clear=True)
    command = ["pip", "install", "--python", str(LM_EVAL_VENV / "bin" / "python"), "--no-deps"]
    uv([*command, "-r", f"locks/{LM_EVAL}.txt"], LM_EVAL, Progress(LM_EVAL, LM_EVAL_VENV))


class Progress:
    """One line for an installation: redrawn in a terminal, elsewhere repeated now and then."""

    def __init__(self, name: str, folder: Path) -> None:
        self.total = len(names_in(name))
        self.name, self.folder = name, folder
        self.begin = time.monotonic()
        self.due = self.begin
        self.redraws = sys.stdout.isatty()

    def show(self, doing: str, is_end: bool = False) -> None:
        """What uv does, and how far it is."""
        now = time.monotonic()
        if not (self.redraws or is_end) and now < self.due:
            return
        self.due = now + SECONDS_BETWEEN_LINES
        # A lock names packages for other machines too: fewer of them are installed.
        done = len(list(self.folder.glob("lib/python*/site-packages/*.dist-info")))
        counted = f"{done} packages" if is_end else f"{done} of up to {self.total} packages"
        line = f"{doing} locks/{self.name}.txt: {counted}, {now - self.begin:.0f} s"
        end = "\n" if is_end or not self.redraws else ""
        print(f"\r\033[K{line}" if self.redraws else line, end=end, flush=True)


def run_quietly(command: list[str], variables: dict[str, str], progress: Progress) -> None:
    """Runs the installer behind one line; shows what it said where it fails."""
    with tempfile.TemporaryFile("w+") as said:
        installer = subprocess.Popen(command, cwd=ROOT, env=variables, stdout=said, stderr=said)
        try:
            while installer.poll() is None:
                progress.show("installing")
                time.sleep(SECONDS_BETWEEN_LOOKS)
        finally:
            installer.terminate()
            installer.wait()
        progress.show("could not install" if installer.returncode else "installed", is_end=True)
        if installer.returncode:
            said.seek(0)
            sys.exit(
                f"{said.read()}error: {shlex.join(command)} failed with {installer.returncode}"
            )


def pip_offers(requirement: str) -> bool:
    """Whether pip's configured sources have it; looks without installing."""
    command = [
        str(PYTHON),
        "-m",
        "pip",
        "install",
        "--dry-run",
        "--no-deps",
        "--quiet",
        requirement,
    ]
    result = subprocess.run(command, capture_output=True, check=False)
    return result.returncode == 0


def pip_settings() -> dict[str, list[str]]:
    """pip's own settings, from its files and its environment variables; the latter come last."""
    command = [str(PYTHON), "-m", "pip", "config", "list"]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found: dict[str, list[str]] = {}
    for line in sorted(listed.splitlines(), key=lambda line: line.startswith(":env:")):
        name, _, value = line.partition("=")
        found[name.rsplit(".", 1)[-1]] = shlex.split(value)[0].split() if value else []
    return found


def uv(arguments: list[str], name: str, progress: Progress | None = None) -> None:
    """Runs uv for the lock of that name with pip's settings; behind one line, if there is one."""
    more, variables = settings_for_uv(name)
    command = [str(VENV / "bin" / "uv"), *arguments, *more]
    if progress is None:
        run(command, variables)
    else:
        run_quietly(command, variables, progress)


def settings_for_uv(name: str) -> tuple[list[str], dict[str, str]]:
    """uv's arguments and environment for the lock of that name, from pip's settings."""
    settings = pip_settings()
    variables = dict(os.environ)
    arguments: list[str] = []
    if name == "cuda":
        settings.pop("find-links", None)  # a CPU build of torch there would look newer
    elif name == "cpu" and not pip_offers(CPU_TORCH):
        arguments.append("--torch-backend=cpu")  # PyTorch's own index, for torch alone
    for setting, variable in HANDED_ON.items():
        if settings.get(setting):
            separator = "," if variable == "UV_FIND_LINKS" else " "
            variables.setdefault(variable, separator.join(settings[setting]))
    # pip takes the best version from all of its indexes; uv by default the first that has any.
    variables.setdefault("UV_INDEX_STRATEGY", "unsafe-best-match")
    variables.setdefault("UV_LINK_MODE", "copy")
    return arguments, variables


def run(command: list[str], variables: dict[str, str] | None = None) -> None:
    result = subprocess.run(command, cwd=ROOT, env=variables, check=False)
    if result.returncode:
        sys.exit(f"error: {shlex.join(command)} failed with {result.returncode}")


if __name__ == "__main__":
    main(sys.argv[1:])
