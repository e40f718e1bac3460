"""Makes the locks and installs them: `environment.py lock`, `environment.py install
cpu|cuda|dev|cluster|lm-eval|triton`; `environment.py check` says whether this Python can.

Runs on a bare Python: it makes the virtual environment, puts uv into it and lets uv do the rest.
uv does not read pip's settings, so they are handed on: index, find-links and certificates.
Every file that is installed, uv and build tools among them, must have a hash that a lock records.
"""

from __future__ import annotations  # an older Python gets as far as the sentence that refuses it

import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path

CPU_TORCH = "torch==2.13.0+cpu"
# sha256sum of its wheels. The main index does not have them, and PyTorch's own index may be out of
# reach where the locks are made.
CPU_TORCH_SUMS = "torch-cpu.sha256"
DEVICES = ("cpu", "cuda")
LM_EVAL = "lm-eval"
TRITON = "triton"
DEV = "dev"
CLUSTER = "cluster"
UV = "uv"
BUILD = "build"  # what builds packages that have no wheel, and Quantline itself
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
# Triton's interpreter runs the kernels' tests on a CPU. It is not in .venv: vLLM's CPU build would
# find it and behave as if there were a GPU.
TRITON_FOLDER = ROOT / ".triton"
OLDEST_PYTHON, NEWEST_PYTHON = (3, 11), (3, 13)
SECONDS_BETWEEN_LINES = 10.0
SECONDS_BETWEEN_LOOKS = 0.2
ANOTHER_FILE = re.compile(r"Hash mismatch for `([^`]+)`")


def main(arguments: list[str]) -> None:
    check_python(sys.version_info[:3])
    if arguments == ["check"]:
        return
    if arguments == ["lock"]:
        bootstrap()
        for device in DEVICES:
            lock(device)
        lock_more(DEV, "--group", DEV)
        lock_more(CLUSTER, f"locks/{CLUSTER}.in")
        for name in (LM_EVAL, TRITON, UV, BUILD):
            lock_list(name)
        for name in (*DEVICES, DEV, CLUSTER, LM_EVAL, TRITON, UV, BUILD):
            add_hashes(name)
    elif arguments == ["install", LM_EVAL]:
        bootstrap()
        install_lm_eval()
    elif arguments == ["install", TRITON]:
        bootstrap()
        install_triton()
    elif arguments in (["install", DEV], ["install", CLUSTER]):
        install_more(arguments[1])
    elif len(arguments) == 2 and arguments[0] == "install" and arguments[1] in DEVICES:
        bootstrap()
        install(arguments[1])
    elif arguments in (["-h"], ["--help"]):
        print(__doc__)
    else:
        sys.exit(f"error: {shlex.join(arguments) or 'no arguments'}: see environment.py --help")


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
    command = [str(PYTHON), "-m", "pip", "install", "-qq", "--disable-pip-version-check"]
    run([*command, "--no-deps", "--require-hashes", "-r", f"locks/{UV}.txt"])


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


def lock_more(name: str, *source: str) -> None:
    """Resolves what tests and lint, or launchers, need beside the packages that users install."""
    print(f"locking locks/{name}.txt", flush=True)
    command = [*compiling(*source, name=name), "--constraint", "locks/cpu.txt"]
    users = names_in("cpu") | names_in("cuda")
    uv([*command, "--universal", *[f"--no-emit-package={user}" for user in sorted(users)]], name)


def names_in(name: str) -> set[str]:
    """The packages that a lock names."""
    lock = (ROOT / "locks" / f"{name}.txt").read_text()
    return set(re.findall(r"^([\w.-]+)(?:\[[^]]*\])?==", lock, flags=re.MULTILINE))


def lock_list(name: str) -> None:
    """Resolves the packages of a .in file and what they need, for every Linux."""
    print(f"locking locks/{name}.txt", flush=True)
    uv([*compiling(f"locks/{name}.in", name=name), "--universal"], name)


def add_hashes(name: str) -> None:
    """Adds to a lock the hashes of the files that a supported platform can install.

    uv lists the files of the main index alone: the other sources may have one platform's only.
    """
    import hashes  # reads TOML, which a Python that is refused cannot

    print(f"hashing locks/{name}.txt", flush=True)
    path = ROOT / "locks" / f"{name}.txt"
    lock = path.read_text()
    _, variables = settings_for_uv(name)
    for source in ("UV_INDEX", "UV_FIND_LINKS"):
        variables.pop(source, None)
    with tempfile.TemporaryDirectory() as folder:
        pins, listing = Path(folder) / "pins.txt", Path(folder) / "pylock.toml"
        pins.write_text(lock.replace(f"{CPU_TORCH}\n", ""))
        command = ["pip", "compile", str(pins), "--quiet", "--no-deps", "--universal"]
        command += ["--python-version=3.11", "--output-file", str(listing)]
        run([str(VENV / "bin" / "uv"), *command], variables)
        files = hashes.files_listed(listing.read_text())
    sums = (ROOT / "locks" / CPU_TORCH_SUMS).read_text()
    files |= hashes.files_summed(hashes.Pin(*CPU_TORCH.split("==")), sums)
    pythons = range(OLDEST_PYTHON[1], NEWEST_PYTHON[1] + 1)
    path.write_text(hashes.add_hashes(lock, files, pythons))


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
    uv(
        [*installing(PYTHON), "--compile-bytecode", *locked(device)],
        device,
        Progress(device, VENV),
    )
    uv([*installing(PYTHON), "--quiet", "--editable", "."], device)


def install_more(name: str) -> None:
    """Adds what tests and lint, or launchers, need to what users install."""
    uv([*installing(PYTHON), *locked(name)], name, Progress(name, VENV))


def install_lm_eval() -> None:
    """An interpreter of its own for lm-eval, without Quantline and without torch.

    Bytecode is compiled as it is needed: most of what lm-eval asks for it never imports.
    """
    venv.create(LM_EVAL_VENV, clear=True)
    command = [*installing(LM_EVAL_VENV / "bin" / "python"), *locked(LM_EVAL)]
    uv(command, LM_EVAL, Progress(LM_EVAL, LM_EVAL_VENV))


def install_triton() -> None:
    """A folder with Triton alone, which only the tests of kernels put on their path."""
    shutil.rmtree(TRITON_FOLDER, ignore_errors=True)
    command = [*installing(PYTHON), "--target", str(TRITON_FOLDER), *locked(TRITON)]
    uv(command, TRITON, Progress(TRITON, TRITON_FOLDER))


def installing(python: Path) -> list[str]:
    """The part of uv's command that all installations share.

    Nothing is resolved. A build takes only tools whose hashes are locked.
    """
    command = ["pip", "install", "--python", str(python), "--no-deps"]
    command += ["--build-constraint", f"locks/{BUILD}.txt", "--require-build-hashes"]
    return [*command, "--preview-features", "build-dependency-hashes"]


def locked(name: str) -> list[str]:
    """uv's arguments for the packages of a lock: no file without a hash, none with another."""
    return ["--require-hashes", "-r", f"locks/{name}.txt"]


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
        places = ("*.dist-info", "lib/python*/site-packages/*.dist-info")
        done = sum(len(list(self.folder.glob(place))) for place in places)
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
            message = said.read()
            failure = f"error: {shlex.join(command)} failed with {installer.returncode}"
            sys.exit(f"{message}{refusal(message, progress.name)}{failure}")


def refusal(message: str, name: str) -> str:
    """Says what a wrong hash means, where that is why uv failed."""
    return "".join(
        f"error: {package} was not installed: its file has another SHA-256 than locks/{name}.txt "
        "records; was the file replaced, or do pip's settings name a wrong index?\n"
        for package in ANOTHER_FILE.findall(message)
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
    return arguments, variables


def run(command: list[str], variables: dict[str, str] | None = None) -> None:
    result = subprocess.run(command, cwd=ROOT, env=variables, check=False)
    if result.returncode:
        sys.exit(f"error: {shlex.join(command)} failed with {result.returncode}")


if __name__ == "__main__":
    main(sys.argv[1:])
