"""The charting library that the page holds."""

import base64
import gzip
import importlib.metadata

import vl_convert

from conf.cache import cache_root
from conf.files.write_whole import write_whole


def library() -> str:
    """The charting library as one script. Bundling takes seconds, so the result is cached."""
    path = cache_root() / "page" / f"vega-{importlib.metadata.version('vl-convert-python')}.js"
    if not path.is_file():
        with write_whole(path) as unfinished:
            unfinished.write_text(
                vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;"), encoding="utf-8"
            )
    return path.read_text(encoding="utf-8")


def packed_library() -> str:
    """The library as the page holds it: it would be more than half of the page."""
    return base64.b64encode(gzip.compress(library().encode(), mtime=0)).decode()
