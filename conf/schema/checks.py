"""Checks of option values that several constructors share."""


def check_plain_name(option: str, value: str) -> None:
    """Raises where a name is no plain folder name: it becomes a folder of the cache or output."""
    if value in ("", ".", "..") or any(character in value for character in ("/", "\\", "\n", "\0")):
        raise ValueError(f"{option}={value!r}: a plain folder name is needed")
