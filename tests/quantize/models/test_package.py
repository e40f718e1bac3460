"""Wheels of a packaged model: downloaded once, checked, joined; no code of theirs is run."""

import io
import shutil
import tarfile
from collections import namedtuple
from collections.abc import Callable
from pathlib import Path

import pytest

from conf.errors import QuantlineError
from conf.files import wheels
from conf.schema.package import PackageSource, WheelSource
from quantize.models import package as packages
from quantize.models.package import check_space, joined_file
from tests.conftest import quantize_config
from tests.quantize.models.packaged import cut, sha256, write_wheel

CONTENT = bytes(range(256)) * 40


@pytest.fixture
def downloads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The requirements that pip is asked for."""
    asked: list[str] = []
    download = wheels._download

    def counted(requirement: str, folder: Path) -> Path:
        asked.append(requirement)
        return download(requirement, folder)

    monkeypatch.setattr(wheels, "_download", counted)
    return asked


def keep(package: PackageSource, index: Path, folder: Path) -> None:
    """Puts the wheels where an earlier run would have left them."""
    folder.mkdir(parents=True, exist_ok=True)
    for wheel in package.wheels:
        name = wheel.requirement.replace("-", "_").replace("==", "-")
        shutil.copy(index / f"{name}-py3-none-any.whl", folder / f"{wheel.sha256}.whl")


def test_parts_are_downloaded_and_joined_in_order(
    index: Path, tmp_path: Path, downloads: list[str]
) -> None:
    """A rerun downloads only what is missing, or was cut short."""
    package, folder = cut(CONTENT, index), tmp_path / "downloads"
    keep(package, index, folder)
    missing, truncated = (folder / f"{wheel.sha256}.whl" for wheel in package.wheels[1:])
    missing.unlink()
    truncated.write_bytes(truncated.read_bytes()[:100])
    assert joined_file(package, folder).read_bytes() == CONTENT
    assert downloads == ["micro-part1==1.0", "micro-part2==1.0"]
    joined_file(package, folder)
    assert len(downloads) == 2
    assert not (folder / wheels.INCOMING).exists()


def test_a_wheel_with_another_hash_is_not_used(index: Path, tmp_path: Path) -> None:
    package, folder = cut(CONTENT, index), tmp_path / "downloads"
    write_wheel(index, "micro_part0", {package.wheels[0].file: b"other"})
    with pytest.raises(QuantlineError, match=r"micro_part0-1.0.*the hash is .* expected") as error:
        joined_file(package, folder)
    assert error.value.exit_code == 3
    assert not folder.exists()


def test_a_missing_wheel_is_named(index: Path, tmp_path: Path) -> None:
    package = cut(CONTENT, index)
    (index / "micro_part0-1.0-py3-none-any.whl").unlink()
    message = r"micro-part0==1.0 could not be downloaded: no package index of pip has"
    with pytest.raises(QuantlineError, match=message) as error:
        joined_file(package, tmp_path / "downloads")
    assert error.value.exit_code == 3


def test_an_index_that_does_not_answer_is_named(
    index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = cut(CONTENT, index)
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.delenv("PIP_FIND_LINKS")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_RETRIES", "1")
    with pytest.raises(QuantlineError, match="a package index cannot be reached") as error:
        joined_file(package, tmp_path / "downloads")
    assert error.value.exit_code == 3


def test_a_source_distribution_is_never_built(index: Path, tmp_path: Path) -> None:
    package = cut(CONTENT, index, parts=1)
    (index / "micro_part0-1.0-py3-none-any.whl").unlink()
    marker = tmp_path / "ran"
    code = f"open({str(marker)!r}, 'w')\nfrom setuptools import setup\nsetup(name='micro-part0')"
    with tarfile.open(index / "micro_part0-1.0.tar.gz", "w:gz") as archive:
        entry = tarfile.TarInfo("micro_part0-1.0/setup.py")
        entry.size = len(code)
        archive.addfile(entry, io.BytesIO(code.encode()))
    with pytest.raises(QuantlineError, match="could not be downloaded"):
        joined_file(package, tmp_path / "downloads")
    assert not marker.exists()


# ---- wheels with the right hash and the wrong content -----------------------------------------


def other_order(package: PackageSource) -> None:
    package.wheels.reverse()


def other_file(package: PackageSource) -> None:
    package.wheels[1].file = "micro_part1/data/prat.bin"


def part_missing(package: PackageSource) -> None:
    package.wheels.pop()


def too_large(package: PackageSource) -> None:
    package.bytes = len(CONTENT) - 1


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (other_order, "the joined file's hash is .*; check the order of model.package.wheels"),
        (other_file, r"there is no 'micro_part1/data/prat.bin'.* Did you mean .*/part.bin\?"),
        (part_missing, "the joined file has 6828 bytes, 10240 are expected"),
        (too_large, "part.bin is larger than the 3411 bytes"),
    ],
)
def test_a_wrong_list_of_wheels_is_refused(
    index: Path, tmp_path: Path, damage: Callable[[PackageSource], None], message: str
) -> None:
    package = cut(CONTENT, index)
    keep(package, index, tmp_path / "downloads")
    damage(package)
    with pytest.raises(QuantlineError, match=message) as error:
        joined_file(package, tmp_path / "downloads")
    assert error.value.exit_code == 2


def single(path: Path, file: str, size: int, folder: Path) -> PackageSource:
    """A package of one kept wheel."""
    digest = sha256(path.read_bytes())
    folder.mkdir()
    shutil.copy(path, folder / f"{digest}.whl")
    return PackageSource(
        wheels=[WheelSource("one==1.0", digest, file)], sha256="0" * 64, bytes=size,
        quantization="Q4_K_M", license="none",
    )  # fmt: skip


def test_a_file_that_swells_is_cut_off(tmp_path: Path) -> None:
    """64 MB of zeros in a wheel of 64 KB."""
    wheel = write_wheel(tmp_path / "index", "one", {"part.bin": bytes(64_000_000)})
    package = single(wheel, "part.bin", 1000, tmp_path / "downloads")
    with pytest.raises(QuantlineError, match="larger than the 1000 bytes"):
        joined_file(package, tmp_path / "downloads")
    assert (tmp_path / "downloads" / packages.JOINED).stat().st_size == 0


def test_the_path_inside_of_a_wheel_is_not_followed(tmp_path: Path) -> None:
    wheel = write_wheel(tmp_path / "index", "one", {"../../escaped.bin": b"abc"})
    package = single(wheel, "../../escaped.bin", 3, tmp_path / "downloads")
    package.sha256 = sha256(b"abc")
    assert joined_file(package, tmp_path / "downloads").read_bytes() == b"abc"
    assert not list(tmp_path.parent.rglob("escaped.bin"))


def test_a_wheel_that_is_no_archive_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "one.whl"
    path.write_bytes(b"no archive")
    package = single(path, "part.bin", 3, tmp_path / "downloads")
    with pytest.raises(QuantlineError, match=r"one==1.0: part.bin cannot be read") as error:
        joined_file(package, tmp_path / "downloads")
    assert error.value.exit_code == 2


# ---- the disk, and the options --------------------------------------------------------------


def test_a_full_disk_is_an_environment_failure(index: Path, tmp_path: Path) -> None:
    package, folder = cut(CONTENT, index), tmp_path / "downloads"
    keep(package, index, folder)
    (folder / packages.JOINED).symlink_to("/dev/full")
    with pytest.raises(QuantlineError, match=r"could not be written .No space left") as error:
        joined_file(package, folder)
    assert error.value.exit_code == 3


def test_too_little_space_is_known_before_the_download(
    index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = cut(CONTENT, index)
    usage = namedtuple("usage", ["free"])
    monkeypatch.setattr(packages.shutil, "disk_usage", lambda _: usage(3 * 10**9))
    check_space(package, tmp_path, 2 * 10**9)
    with pytest.raises(QuantlineError, match=r"4.0 GB are needed .* 3.0 GB are free") as error:
        check_space(package, tmp_path, 4 * 10**9)
    assert error.value.exit_code == 3


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("sha256", "12", "64 hexadecimal digits"),
        ("quantization", "four", "must be a name as Q4_K_M"),
        ("wheels", "[]", "name at least one wheel"),
        ("wheels", "[{requirement: --pre, sha256: a, file: b}]", "an exact version"),
        ("wheels", "[{requirement: 'name==1', sha256: a, file: b}]", "64 hexadecimal digits"),
        ("wheels", "[{requirement: 'name==1', file: ''}]", r"wheels\[0\].file=''.* not be empty"),
        ("bytes", "0", "must be at least 1"),
    ],
)
def test_options_of_a_package_are_checked(field: str, value: str, message: str) -> None:
    with pytest.raises(QuantlineError, match=message) as error:
        quantize_config(f"model.package.{field}={value}")
    assert error.value.exit_code == 2


@pytest.mark.parametrize("name", ["smollm2-135m", "qwen2.5-coder-0.5b", "qwen2.5-coder-1.5b"])
def test_listed_packages_are_pinned(name: str) -> None:
    """Every wheel has its own hash, requirement and file."""
    package = quantize_config(f"model={name}").model.package
    assert package is not None
    for field in ("requirement", "sha256", "file"):
        values = [getattr(wheel, field) for wheel in package.wheels]
        assert len(set(values)) == len(values)
    assert package.bits == 4
