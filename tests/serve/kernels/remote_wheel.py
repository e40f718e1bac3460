"""Reads single files of a wheel on the package index: the wheel itself may have hundreds of MB."""

import io
import os
import re
import ssl
import urllib.request
import zipfile
from html import unescape
from pathlib import Path
from urllib.parse import unquote, urljoin

from pip._internal.models.index import PyPI

SECONDS = 120
READ_AHEAD = 2**18


class RemoteFile(io.RawIOBase):
    """A file behind an address, of which only what is read is fetched."""

    def __init__(self, address: str) -> None:
        self.address, self.place = address, 0
        self.size = int(_opened(urllib.request.Request(address, method="HEAD"))[1])

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self.place = (
            offset + {io.SEEK_SET: 0, io.SEEK_CUR: self.place, io.SEEK_END: self.size}[whence]
        )
        return self.place

    def tell(self) -> int:
        return self.place

    def readinto(self, buffer: memoryview) -> int:
        last = min(self.place + len(buffer), self.size) - 1
        if last < self.place:
            return 0
        part = {"Range": f"bytes={self.place}-{last}"}
        content, _ = _opened(urllib.request.Request(self.address, headers=part))
        buffer[: len(content)] = content
        self.place += len(content)
        return len(content)


def _opened(request: urllib.request.Request) -> tuple[bytes, str]:
    """The answer, and its length as the server says it."""
    trusted = ssl.create_default_context(cafile=os.environ.get("PIP_CERT"))
    with urllib.request.urlopen(request, timeout=SECONDS, context=trusted) as answer:
        if "Range" in request.headers and answer.status != 206:
            raise OSError("the index sends whole files only")
        return answer.read(), answer.headers.get("Content-Length") or "0"


def wheel_address(package: str, version: str) -> str:
    """Where the index has the wheel for x86_64."""
    index: str = os.environ.get("PIP_INDEX_URL") or PyPI.simple_url
    page_address = f"{index.rstrip('/')}/{package}/"
    page = _opened(urllib.request.Request(page_address))[0].decode()
    wheel = re.compile(rf"/{package}-{re.escape(version)}-[^/]*x86_64\.whl$")
    links = [unescape(link).partition("#")[0] for link in re.findall(r'href="([^"]+)"', page)]
    (link,) = [link for link in links if wheel.search(unquote(link))]
    return urljoin(page_address, link)


def unpack_part(address: str, names: set[str], folder: Path) -> None:
    """Unpacks these files of a wheel; those that it does not have are left out."""
    remote = io.BufferedReader(RemoteFile(address), READ_AHEAD)
    with zipfile.ZipFile(remote) as wheel:
        for name in sorted(names & set(wheel.namelist())):
            wheel.extract(name, folder)
