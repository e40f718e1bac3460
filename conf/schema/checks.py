"""Checks of option values that several constructors share."""

import re
from urllib.parse import urlsplit

# As the hub allows them; it has rules of its own beside these.
REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9]([\w.-]*\w)?", re.ASCII)
LONGEST_REPOSITORY = 96


def check_plain_name(option: str, value: str) -> None:
    """Raises where a name is no plain folder name: it becomes a folder of the cache or output."""
    if value in ("", ".", "..") or any(character in value for character in ("/", "\\", "\n", "\0")):
        raise ValueError(f"{option}={value!r}: a plain folder name is needed")


def check_repository(option: str, value: str | None) -> None:
    """Raises where a text cannot be the name of a repository on the hub."""
    if value is None:
        return
    is_known_form = REPOSITORY.fullmatch(value) and len(value) <= LONGEST_REPOSITORY
    if not is_known_form or "--" in value or ".." in value or value.endswith((".git", ".ipynb")):
        raise ValueError(
            f"{option}={value}: write ORG/NAME, of letters, digits, '-', '_' and '.', at most "
            f"{LONGEST_REPOSITORY} characters"
        )


def check_url(option: str, url: str) -> None:
    """Raises ValueError where no server can have this address."""
    try:
        parts = urlsplit(url)
        is_address = parts.scheme in ("http", "https") and bool(parts.hostname)
        is_address = is_address and parts.port != 0 and not parts.query and not parts.fragment
    except ValueError:  # the port is no number, or brackets are not closed
        is_address = False
    if not is_address or not url.isascii() or not url.isprintable() or " " in url:
        raise ValueError(f"{option}={url}: is no address of a server; write http://HOST:PORT")
