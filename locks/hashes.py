"""Adds hashes to a lock: the SHA-256 of every file that a supported platform can install.

An index has up to 80 files of one version, for Windows, macOS, musl and other Pythons. The hashes
of all of them would make the locks five times as large.
"""

import re
import sys
import tomllib
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

MACHINES = ("x86_64", "aarch64")
WHEEL = ".whl"
PIN = re.compile(r"^([\w.-]+)(?:\[[^]]*\])?==([^\s;]+).*$", flags=re.MULTILINE)
PYTHON_TAG = re.compile(r"(py|cp)3(\d*)")
LINUX_TAG = re.compile(rf"(many)?linux(1|2010|2014|_\d+_\d+)?_({'|'.join(MACHINES)})")


@dataclass(frozen=True)
class Pin:
    """A package and the version that a lock names."""

    name: str
    version: str


@dataclass(frozen=True)
class File:
    """A wheel or a source archive on an index."""

    name: str
    sha256: str


Files = dict[Pin, list[File]]


def files_listed(pylock: str) -> Files:
    """The files of every package in a pylock.toml."""
    return {
        Pin(package["name"], package["version"]): [
            File(unquote(urlsplit(entry["url"]).path).rsplit("/", 1)[-1], entry["hashes"]["sha256"])
            for entry in [*package.get("wheels", []), package.get("sdist")]
            if entry
        ]
        for package in tomllib.loads(pylock)["packages"]
    }


def files_summed(pin: Pin, sums: str) -> Files:
    """The files of one package in a listing of sha256sum, which may also hold other versions."""
    lines = [line.split() for line in sums.splitlines()]
    wheels = f"{pin.name}-{pin.version}-"
    return {pin: [File(name, sha256) for sha256, name in lines if name.startswith(wheels)]}


def add_hashes(lock: str, files: Files, pythons: range) -> str:
    """The lock with hashes below each pin; `pythons` are the supported minor versions."""

    def hashed(line: re.Match[str]) -> str:
        pin = Pin(line[1], line[2])
        if not files.get(pin):
            sys.exit(f"error: there is no file of {pin.name}=={pin.version} to hash")
        hashes = sorted({file.sha256 for file in installable(files[pin], pythons)})
        return " \\\n    --hash=sha256:".join([line[0], *hashes])

    return PIN.sub(hashed, lock)


def installable(files: list[File], pythons: range) -> list[File]:
    """The files to accept: wheels; without wheels the source; without either (a package for
    another system, which its marker keeps out) all files."""
    wheels = [file for file in files if file.name.endswith(WHEEL)]
    sources = [file for file in files if not file.name.endswith(WHEEL)]
    return [wheel for wheel in wheels if fits(wheel.name, pythons)] or sources or wheels


def fits(wheel: str, pythons: range) -> bool:
    """Whether a supported platform can install the wheel, by the tags in its name."""
    interpreters, abis, systems = wheel.removesuffix(WHEEL).rsplit("-", 3)[1:]
    return any(
        _python_fits(interpreter, abi, pythons)
        for interpreter in interpreters.split(".")
        for abi in abis.split(".")
    ) and any(system == "any" or LINUX_TAG.fullmatch(system) for system in systems.split("."))


def _python_fits(interpreter: str, abi: str, pythons: range) -> bool:
    tag = PYTHON_TAG.fullmatch(interpreter)
    if tag is None:
        return False
    minor = int(tag[2] or 0)
    if abi == "abi3" or (abi == "none" and tag[1] == "py"):
        return minor in range(pythons.stop)  # also works on later Pythons
    return abi in (interpreter, "none") and minor in pythons
