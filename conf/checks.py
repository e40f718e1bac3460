"""Checks that a value makes sense, for the options' own constructors."""


def one_of(option: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise ValueError(f"{option}={value}: choose one of {', '.join(known)}")


def at_least(option: str, value: int, least: int) -> None:
    if value < least:
        raise ValueError(f"{option}={value}: must be at least {least}")


def plain_name(option: str, value: str) -> None:
    """The name becomes a folder under the cache or the output root, and has to stay there."""
    if value in ("", ".", "..") or any(part in value for part in ("/", "\\", "\n", "\0")):
        raise ValueError(f"{option}={value!r}: a plain folder name is needed")
