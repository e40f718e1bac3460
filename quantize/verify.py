"""`python -m quantize.verify PATH`: verifies a checkpoint, or names its faults."""

from pathlib import Path

from conf.app import run_plain
from conf.errors import bad_input, gate_failed
from conf.files.json_files import shown_path
from conf.model_folders import models_below
from conf.models import CONFIG
from conf.terminal import say

USAGE = "python -m quantize.verify PATH"
HELP = f"""{USAGE}

Verifies a compressed-tensors checkpoint, or a plain model folder: opens its files again, and names
every tensor and field that is not what the config, the recipe and quantline.json say.

Exit codes: 0 verified, 2 a file cannot be read, 4 the checkpoint has faults.

  --help, -h  This help.
  --version   Quantline's version."""


def main(arguments: list[str]) -> None:
    if len(arguments) != 1 or arguments[0].startswith("-"):
        raise bad_input(f"{' '.join(arguments) or 'no arguments'}: write {USAGE}")
    folder = Path(arguments[0]).expanduser()
    if not folder.is_dir():
        raise bad_input(f"{shown_path(folder)}: there is no such folder")
    if not (folder / CONFIG).is_file():
        raise bad_input(f"{shown_path(folder)}: there is no {CONFIG}{models_below(folder)}")
    prove(folder)


def prove(folder: Path) -> None:
    """Prints the formats and sizes of a verified checkpoint; raises if it has faults."""
    from quantize.checkpoint import manifest
    from quantize.checkpoint.verify import verify

    proof = verify(folder)
    for number_format, count in sorted(proof.formats.items()):
        print(f"{count:6} layers  {number_format}")
    print(f"{proof.tensors:6} tensors, {proof.bytes / 1e6:.1f} MB")
    if proof.faults:
        for fault in proof.faults[1:]:
            say(f"fault: {fault}")
        raise gate_failed(f"{shown_path(folder)}: {len(proof.faults)} faults; {proof.faults[0]}")
    checkpoint_manifest = manifest.find(folder)
    for unproven in manifest.unprovable(checkpoint_manifest):
        print(f"not proven: {unproven}")
    print("proven: every layer is what the config says")


if __name__ == "__main__":
    run_plain(HELP, main)
