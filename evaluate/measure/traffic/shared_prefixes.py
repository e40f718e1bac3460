"""With which tokens prompts begin alike, as numbers and lengths: what a prefix cache finds, without
a text."""

import hashlib
import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from evaluate.measure.traffic.resolved import TokenPassage


@dataclass(frozen=True)
class SharedBlock:
    """A part of several prompts, after the same beginning. Equal numbers are equal parts."""

    block: int
    tokens: int


def shared_blocks(prompts: list[list[TokenPassage]]) -> list[list[SharedBlock]]:
    """For each prompt, the parts of it that others begin with, too. A part ends where the first of
    these others goes on in another way."""
    numbers: dict[tuple[str, int], int] = {}
    symbols = [list(_symbols(prompt, numbers)) for prompt in prompts]
    lengths = [tokens for _, tokens in numbers]
    blocks: dict[bytes, int] = {}
    found = []
    for own, cuts in zip(symbols, _cuts(symbols), strict=True):
        digest, parts = hashlib.sha256(), []
        for begin, end in itertools.pairwise([0, *cuts]):
            digest.update(repr(own[begin:end]).encode())
            tokens = sum(1 if symbol >= 0 else lengths[-1 - symbol] for symbol in own[begin:end])
            block = blocks.setdefault(digest.digest(), len(blocks) + 1)
            parts.append(SharedBlock(block, tokens))
        found.append(parts)
    return found


def _symbols(prompt: list[TokenPassage], numbers: dict[tuple[str, int], int]) -> Iterator[int]:
    """Tokens as they are, and a negative number for each passage of random tokens."""
    for passage in prompt:
        if passage.ids:
            yield from passage.ids
        else:
            yield -1 - numbers.setdefault((passage.seed, passage.tokens), len(numbers))


def _cuts(prompts: list[list[int]]) -> list[list[int]]:
    """For each prompt, how much of it others share: all different lengths, in order. Prompts with a
    common beginning are neighbours once they are sorted."""
    order = sorted(range(len(prompts)), key=prompts.__getitem__)
    common = [_common(prompts[one], prompts[other]) for one, other in itertools.pairwise(order)]
    cuts: list[set[int]] = [set() for _ in prompts]
    for places, lengths in ((order, common), (order[::-1], common[::-1])):
        for place, shared in zip(places, _shared_with_earlier(lengths), strict=True):
            cuts[place].update(shared)
    return [sorted(lengths) for lengths in cuts]


def _shared_with_earlier(common: Iterable[int]) -> Iterator[list[int]]:
    """For each sorted prompt, the lengths that it shares with those before it."""
    shared: list[int] = []
    yield shared
    for length in common:
        while shared and shared[-1] > length:
            shared.pop()
        if length and (not shared or shared[-1] < length):
            shared.append(length)
        yield shared


def _common(one: list[int], other: list[int]) -> int:
    """How many symbols both begin with."""
    pairs = enumerate(zip(one, other, strict=False))
    different = (place for place, (own, others) in pairs if own != others)
    return next(different, min(len(one), len(other)))
