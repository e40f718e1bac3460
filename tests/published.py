"""The tables of the documents, which tests compare with published rows."""

import re
from pathlib import Path

from tests.conftest import ROOT

README, RESULTS = ROOT / "README.md", ROOT / "docs" / "results.md"
OURS, OVER_BF16 = "our kernels against vLLM's own", "our kernels against bf16"


def tables(path: Path) -> list[list[list[str]]]:
    """The cells of every table of a document, the header first."""
    blocks = re.findall(r"(?:^\|.*\n)+", path.read_text(), flags=re.MULTILINE)
    return [
        [
            [cell.strip() for cell in line.strip("|").split("|")]
            for place, line in enumerate(block.splitlines())
            if place != 1
        ]
        for block in blocks
    ]


def short(figure: str) -> str:
    """Without its interval."""
    return re.sub(r" \(.*\)", "", figure)
