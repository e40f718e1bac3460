"""Hashes: which files a lock accepts, and that the installer refuses any other."""

import hashlib
import io
import os
import re
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.test_installer import installer, load

LOCKS = ("cpu", "cuda", "dev", "cluster", "lm-eval", "uv", "build")
PYTHONS = range(11, 14)
Install = Callable[[str], set[str]]


@pytest.mark.parametrize(
    "tags",
    [
        "py3-none-any",
        "py2.py3-none-any",
        "py312-none-any",
        "cp311-cp311-manylinux_2_28_x86_64",
        "cp313-cp313-manylinux_2_17_aarch64.manylinux2014_aarch64",
        "cp312-cp312-manylinux2010_x86_64.musllinux_1_1_x86_64",
        "cp311-cp311-linux_x86_64",
        "cp38-abi3-manylinux1_x86_64",
        "cp312-abi3-manylinux_2_39_aarch64",
        "cp39.cp310.cp311-none-manylinux_2_28_x86_64",
        "1-cp311-cp311-manylinux_2_28_x86_64",
    ],
)
def test_a_wheel_for_a_supported_platform_is_accepted(tags: str) -> None:
    assert load("hashes").fits(f"a_b-1.0-{tags}.whl", PYTHONS)


@pytest.mark.parametrize(
    "tags",
    [
        "py2-none-any",
        "py314-none-any",
        "cp310-cp310-manylinux_2_28_x86_64",
        "cp314-cp314-manylinux_2_28_x86_64",
        "cp313-cp313t-manylinux_2_28_x86_64",
        "cp314-abi3-manylinux_2_28_x86_64",
        "pp311-pypy311_pp73-manylinux_2_28_x86_64",
        "cp311-cp311-musllinux_1_2_x86_64",
        "cp311-cp311-macosx_11_0_arm64",
        "cp311-cp311-win_amd64",
        "cp311-cp311-manylinux_2_39_riscv64",
        "cp311-cp311-manylinux_2_17_i686",
        "cp310-none-manylinux_2_28_x86_64",
    ],
)
def test_a_wheel_for_another_platform_is_not(tags: str) -> None:
    assert not load("hashes").fits(f"a_b-1.0-{tags}.whl", PYTHONS)


LISTING = """
lock-version = "1.0"
[[packages]]
name = "both"
version = "1.0"
sdist = { url = "https://a.example/f/both-1.0.tar.gz", hashes = { sha256 = "a0" } }
wheels = [
    { url = "https://a.example/both-1.0-cp311-cp311-win_amd64.whl", hashes = { sha256 = "a1" } },
    { url = "https://a.example/both-1.0-cp313-cp313-linux_x86_64.whl", hashes = { sha256 = "a3" } },
    { url = "https://a.example/both-1.0-cp311-cp311-linux_x86_64.whl", hashes = { sha256 = "a2" } },
]
[[packages]]
name = "both"
version = "2.0+local"
wheels = [{ url = "file:///w/both-2.0%2Blocal-py3-none-any.whl", hashes = { sha256 = "b0" } }]
[[packages]]
name = "source"
version = "1.0"
sdist = { url = "https://a.example/source-1.0.tar.gz", hashes = { sha256 = "c0" } }
wheels = [{ url = "https://a.example/source-1.0-py2-none-any.whl", hashes = { sha256 = "c1" } }]
[[packages]]
name = "windows"
version = "1.0"
wheels = [{ url = "https://a.example/windows-1.0-py3-none-win32.whl", hashes = { sha256 = "d0" } }]
"""
LOCK = """\
# The header
both==1.0 ; python_full_version < '3.12'
    # via source
both==2.0+local ; python_full_version >= '3.12'
source[extra]==1.0
windows==1.0 ; sys_platform == 'win32'
    # via both

# both
"""
HASHED = """\
# The header
both==1.0 ; python_full_version < '3.12' \\
    --hash=sha256:a2 \\
    --hash=sha256:a3
    # via source
both==2.0+local ; python_full_version >= '3.12' \\
    --hash=sha256:b0
source[extra]==1.0 \\
    --hash=sha256:c0
windows==1.0 ; sys_platform == 'win32' \\
    --hash=sha256:d0
    # via both

# both
"""


def test_a_lock_gets_the_hashes_of_files_that_can_be_installed() -> None:
    """Wheels; the source where no wheel fits; all files where there is neither."""
    hashes = load("hashes")
    assert hashes.add_hashes(LOCK, hashes.files_listed(LISTING), PYTHONS) == HASHED


def test_a_pin_without_a_file_is_an_error() -> None:
    hashes = load("hashes")
    files = hashes.files_listed(LISTING.replace('version = "2.0+local"', 'version = "2.0"'))
    with pytest.raises(SystemExit, match=r"^error: there is no file of both==2\.0\+local to hash$"):
        hashes.add_hashes(LOCK, files, PYTHONS)


def test_sums_of_another_version_do_not_count() -> None:
    hashes = load("hashes")
    sums = "aa  torch-2.0+cpu-cp311-cp311-linux_x86_64.whl\nbb  torch-2.0-py3-none-any.whl\n"
    pin = hashes.Pin("torch", "2.0+cpu")
    assert [file.sha256 for file in hashes.files_summed(pin, sums)[pin]] == ["aa"]
    later = hashes.Pin("torch", "2.1+cpu")
    assert hashes.files_summed(later, sums) == {later: []}


def hashes_in(lock: str) -> list[tuple[str, list[str]]]:
    """The pins of a lock, and the hashes below each."""
    text = (ROOT / "locks" / f"{lock}.txt").read_text()
    entries = re.findall(r"^([^\s#].*\n(?:    --hash.*\n)*)", text, flags=re.MULTILINE)
    digest = r" \\\n    --hash=sha256:([0-9a-f]{64})(?=\s)"
    return [(entry.split()[0], re.findall(digest, entry)) for entry in entries]


@pytest.mark.parametrize("lock", LOCKS)
def test_every_pin_has_a_hash(lock: str) -> None:
    entries = hashes_in(lock)
    assert {pin.partition("==")[0].partition("[")[0] for pin, _ in entries} == (
        installer().names_in(lock)
    )
    assert [pin for pin, digests in entries if not digests] == []


def test_torchs_cpu_build_has_a_hash_for_every_platform() -> None:
    environment = installer()
    sums = (ROOT / "locks" / environment.CPU_TORCH_SUMS).read_text().splitlines()
    (digests,) = [digests for pin, digests in hashes_in("cpu") if pin == environment.CPU_TORCH]
    assert sorted(digests) == sorted(line.split()[0] for line in sums)
    wheel = environment.CPU_TORCH.replace("==", "-")
    assert {line.split()[1] for line in sums} == {
        f"{wheel}-cp3{minor}-cp3{minor}-manylinux_2_28_{machine}.whl"
        for minor in PYTHONS
        for machine in load("hashes").MACHINES
    }


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An index in a folder, as pip's only source."""
    for name in [name for name in os.environ if name.startswith(("PIP_", "UV_"))]:
        monkeypatch.delenv(name)
    folder = tmp_path / "index"
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_INDEX_URL", folder.as_uri())
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "cache"))
    return folder


def put(index: Path, package: str, name: str, content: bytes) -> str:
    """Puts a file on the index, and returns its hash."""
    page = index / package
    page.mkdir(parents=True, exist_ok=True)
    (page / name).write_bytes(content)
    digest = hashlib.sha256(content).hexdigest()
    (page / "index.html").write_text(f'<a href="{name}#sha256={digest}">{name}</a>')
    return digest


def put_wheel(index: Path, package: str, code: str = "") -> str:
    """Puts a wheel of one empty module on the index, and returns its hash."""
    about = f"{package}-1.0.dist-info"
    files = {
        f"{package}.py": code,
        f"{about}/METADATA": f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n",
        f"{about}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{about}/RECORD": "",
    }
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as wheel:
        for name, text in files.items():
            wheel.writestr(name, text)
    return put(index, package, f"{package}-1.0-py3-none-any.whl", content.getvalue())


def put_source(index: Path, package: str, tool: str) -> str:
    """Puts a source archive on the index that only this tool can build; returns its hash."""
    text = f"[build-system]\nrequires = ['{tool}']\nbuild-backend = '{tool}'\n".encode()
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz") as source:
        entry = tarfile.TarInfo(f"{package}-1.0/pyproject.toml")
        entry.size = len(text)
        source.addfile(entry, io.BytesIO(text))
    return put(index, package, f"{package}-1.0.tar.gz", content.getvalue())


def pinned(package: str, *digests: str) -> str:
    return " \\\n    --hash=sha256:".join([f"{package}==1.0", *digests]) + "\n"


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Installs a lock with the real installer, and returns the installed modules."""
    environment = installer()
    (tmp_path / "locks").mkdir()
    monkeypatch.setattr(environment, "ROOT", tmp_path)
    monkeypatch.setattr(environment, "LM_EVAL_VENV", tmp_path / "venv")

    def run(lock: str) -> set[str]:
        (tmp_path / "locks" / "lm-eval.txt").write_text(lock)
        (tmp_path / "locks" / "build.txt").write_text(pinned("another", "0" * 64))
        environment.install_lm_eval()
        return {path.name for path in tmp_path.glob("venv/lib/*/site-packages/*.py")}

    return run


def test_a_file_with_a_locked_hash_is_installed(index: Path, install: Install) -> None:
    digest = put_wheel(index, "tiny")
    assert install(pinned("tiny", "0" * 64, digest)) == {"tiny.py"}


def test_a_changed_file_is_refused_by_name(index: Path, install: Install, tmp_path: Path) -> None:
    digest = put_wheel(index, "tiny")
    put_wheel(index, "tiny", code="changed = True")
    with pytest.raises(SystemExit) as error:
        install(pinned("tiny", digest))
    message = (
        "error: tiny==1.0 was not installed: its file has another SHA-256 than locks/lm-eval.txt"
    )
    assert message in str(error.value)
    assert digest in str(error.value)
    assert not list(tmp_path.glob("venv/lib/*/site-packages/tiny*"))


def test_a_pin_without_a_hash_is_refused_by_name(index: Path, install: Install) -> None:
    put_wheel(index, "tiny")
    with pytest.raises(SystemExit, match=r"(?s)must have a hash.*for: tiny==1\.0"):
        install(pinned("tiny"))


def test_a_build_tool_without_a_hash_is_refused_by_name(index: Path, install: Install) -> None:
    put_wheel(index, "tool")
    digest = put_source(index, "tiny", tool="tool")
    with pytest.raises(SystemExit, match="no trusted hash was provided for: `tool`"):
        install(pinned("tiny", digest))
