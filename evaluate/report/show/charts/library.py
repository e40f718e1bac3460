"""The charting library that the page holds."""

import base64
import gzip
import importlib.metadata
from pathlib import Path

from conf.cache import cache_root
from conf.files.write_whole import write_once


def library() -> str:
    """The charting library as one script. Bundling takes seconds, so the result is cached."""
    path = cache_root() / "page" / f"vega-{importlib.metadata.version('vl-convert-python')}.js"
    if not path.is_file():
        write_once(path, _bundle)
    return path.read_text(encoding="utf-8")


def _bundle(path: Path) -> None:
    import vl_convert

    script = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")
    path.write_text(script, encoding="utf-8")


def packed_library() -> str:
    """The library as the page holds it: it would be more than half of the page."""
    return base64.b64encode(gzip.compress(library().encode(), mtime=0)).decode()
