"""Makes the locks and installs them: `environment.py lock`, `environment.py install
cpu|cuda|lm-eval`.

Runs on a bare Python: it makes the virtual environment, puts uv into it and lets uv do the rest.
uv does not read pip's settings, so they are handed on: index, find-links and certificates.
"""

import os
import shlex
import subprocess
import sys
import venv
from pathlib import Path

UV = "uv==0.13.7"
CPU_TORCH = "torch==2.13.0+cpu"
DEVICES = ("cpu", "cuda")
LM_EVAL = "lm-eval"
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
OLDEST_PYTHON = (3, 11)


def main(arguments: list[str]) -> None:
    if sys.version_info < OLDEST_PYTHON:
        found = ".".join(map(str, sys.version_info[:3]))
        sys.exit(f"error: Python 3.11 or newer is needed, this is {found}; make PYTHON=python3.11")
    if arguments == ["lock"]:
        bootstrap()
        for device in DEVICES:
            lock(device)
        lock_lm_eval()
    elif arguments == ["install", LM_EVAL]:
        bootstrap()
        install_lm_eval()
    elif len(arguments) == 2 and arguments[0] == "install" and arguments[1] in DEVICES:
        bootstrap()
        install(arguments[1])
    else:
        sys.exit(__doc__)


def bootstrap() -> None:
    """The virtual environment with uv in it."""
    if not PYTHON.exists():
        print("making .venv", flush=True)
        venv.create(VENV, with_pip=True)
    run([str(PYTHON), "-m", "pip", "install", "-qq", "--disable-pip-version-check", UV])


def lock(device: str) -> None:
    """Resolves everything anew; a CPU lock serves every Linux, a CUDA lock Linux on x86-64."""
    print(f"locking locks/{device}.txt", flush=True)
    command = compiling("pyproject.toml", device)
    command += ["--extra", device, "--extra", "dev"]
    command += ["--override", f"locks/overrides-{device}.txt"]
    if device == "cpu":
        command += ["--universal", *[f"--no-emit-package={package}" for package in NOT_ON_A_CPU]]
    else:
        command.append("--python-platform=x86_64-manylinux_2_28")
    uv(command, device)


def lock_lm_eval() -> None:
    """Resolves lm-eval and what it needs, for every Linux."""
    print(f"locking locks/{LM_EVAL}.txt", flush=True)
    uv([*compiling(f"locks/{LM_EVAL}.in", LM_EVAL), "--universal"], LM_EVAL)


def compiling(source: str, name: str) -> list[str]:
    """The part of uv's command that all locks share."""
    command = ["pip", "compile", source, "--quiet", "--upgrade", "--python-version=3.11"]
    command += ["--no-emit-index-url", "--no-emit-find-links"]
    command += ["--output-file", f"locks/{name}.txt"]
    return [*command, "--custom-compile-command", "make lock"]


def install(device: str) -> None:
    """Installs a lock as it stands, and Quantline itself from this folder.

    Bytecode is compiled now, so that no command pays for it later.
    """
    print(f"installing locks/{device}.txt", flush=True)
    command = ["pip", "install", "--python", str(PYTHON), "--no-deps"]
    uv([*command, "--compile-bytecode", "-r", f"locks/{device}.txt"], device)
    uv([*command, "--quiet", "--editable", "."], device)


def install_lm_eval() -> None:
    """An interpreter of its own for lm-eval, without Quantline and without torch.

    Bytecode is compiled as it is needed: most of what lm-eval asks for it never imports.
    """
    print(f"making {LM_EVAL_VENV.name} from locks/{LM_EVAL}.txt", flush=True)
    venv.create(LM_EVAL_VENV, clear=True)
    command = ["pip", "install", "--python", str(LM_EVAL_VENV / "bin" / "python"), "--no-deps"]
    uv([*command, "--quiet", "-r", f"locks/{LM_EVAL}.txt"], LM_EVAL)


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


def uv(arguments: list[str], name: str) -> None:
    """Runs uv for the lock of that name with pip's settings."""
    settings = pip_settings()
    variables = dict(os.environ)
    if name == "cuda":
        settings.pop("find-links", None)  # a CPU build of torch there would look newer
    elif name == "cpu" and not pip_offers(CPU_TORCH):
        arguments = [*arguments, "--torch-backend=cpu"]  # PyTorch's own index, for torch alone
    for setting, variable in HANDED_ON.items():
        if settings.get(setting):
            separator = "," if variable == "UV_FIND_LINKS" else " "
            variables.setdefault(variable, separator.join(settings[setting]))
    # pip takes the best version from all of its indexes; uv by default the first that has any.
    variables.setdefault("UV_INDEX_STRATEGY", "unsafe-best-match")
    variables.setdefault("UV_LINK_MODE", "copy")
    run([str(VENV / "bin" / "uv"), *arguments], variables)


def run(command: list[str], variables: dict[str, str] | None = None) -> None:
    result = subprocess.run(command, cwd=ROOT, env=variables, check=False)
    if result.returncode:
        sys.exit(f"error: {shlex.join(command)} failed with {result.returncode}")


if __name__ == "__main__":
    main(sys.argv[1:])
