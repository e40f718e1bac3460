"""Whether vLLM finds our plugin, and a folder that lets it where it does not.

vLLM looks for plugins in the metadata of installed packages. A checkout that is used without being
installed, or was installed by an older version, has none: our commands then add a folder with the
metadata to the import path of vLLM's processes.
"""

from functools import cache
from importlib.metadata import entry_points
from pathlib import Path

from conf import ROOT, VERSION
from conf.cache import cache_root
from conf.files.write_whole import write_once

GROUP, NAME, TARGET = "vllm.general_plugins", "quantline", "quantline:register_kernels"
FILES = {
    "METADATA": f"Metadata-Version: 2.1\nName: quantline-kernels\nVersion: {VERSION}\n",
    "entry_points.txt": f"[{GROUP}]\n{NAME} = {TARGET}\n",
}


def is_installed() -> bool:
    """Whether an installed package has our entry point."""
    return any(point.value == TARGET for point in entry_points(group=GROUP, name=NAME))


@cache
def plugin_path() -> tuple[str, ...]:
    """The folders that vLLM's processes need on their import path to find our plugin; none where
    it is installed."""
    if is_installed():
        return ()
    folder = cache_root() / "plugin"
    metadata = folder / f"quantline_kernels-{VERSION}.dist-info"
    if not _is_written(metadata):
        write_once(metadata, _write, _is_written)
    return str(ROOT), str(folder)


def _write(metadata: Path) -> None:
    metadata.mkdir(parents=True)
    for name, text in FILES.items():
        (metadata / name).write_text(text)


def _is_written(metadata: Path) -> bool:
    paths = {metadata / name: text for name, text in FILES.items()}
    return all(path.is_file() and path.read_text() == text for path, text in paths.items())
