"""Text in a line of its own: control characters are shown as escapes."""

import re

# Includes line separators and marks that change the writing direction.
CONTROL = re.compile("[\\x00-\\x1f\\x7f-\\x9f\\u2028-\\u202e\\u2066-\\u2069]")


def escaped(text: str) -> str:
    r"""The text with control characters as `\n` or `\x1b`: a name may hold any of them, and a
    message stays one line that leaves the terminal as it is."""
    return CONTROL.sub(lambda match: match[0].encode("unicode_escape").decode(), text)
