"""Checks that a value makes sense, for the options' own constructors."""


def plain_name(option: str, value: str) -> None:
    """The name becomes a folder under the cache or the output root, and has to stay there."""
    if value in ("", ".", "..") or any(part in value for part in ("/", "\\", "\n", "\0")):
        raise ValueError(f"{option}={value!r}: a plain folder name is needed")
