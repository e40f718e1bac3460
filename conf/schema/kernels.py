"""The option that chooses among vLLM's kernels and ours."""

from dataclasses import dataclass, field

from conf.schema.ranges import TOKENS_MOST, choices, within

AUTO, VLLM = "auto", "vllm"
DEFAULT = AUTO
KERNELS_OPTION = "kernels"
"""Its name among the engine options of a row."""
ONE_TOKEN, SPARSE, WEIGHT_ONLY, W4AFP8 = "one_token", "sparse", "weight_only", "w4afp8"
CUBLAS, BATCHED, ATTENTION = "cublas", "batched", "attention"
OVERLAP, ONE_TOKEN_OVERLAP = "overlap", "one_token_overlap"
FAMILIES = (
    ONE_TOKEN, SPARSE, WEIGHT_ONLY, W4AFP8, CUBLAS, BATCHED, ATTENTION, OVERLAP, ONE_TOKEN_OVERLAP,
)  # fmt: skip
"""Our families of kernels: one to sixteen tokens, 2:4 weights, W4A16 and W8A16, INT4 with FP8, FP8
by cuBLAS, batches of tokens for weight_only, attention, and kernels of compiled graphs that begin
before the one in front has ended: of all graphs, or of those for steps of one token."""
ON_REQUEST = (OVERLAP, ONE_TOKEN_OVERLAP)
"""On an H200, overlapping is faster for one token, and slower for batches or level with them. The
graphs for one token alone are compiled beside the others, and gained nothing there."""
AUTOMATIC = tuple(family for family in FAMILIES if family not in ON_REQUEST)
"""What auto stands for."""
LAST_WITHOUT = {BATCHED: 6, ATTENTION: 9}
"""Families, and the version of our kernels up to which auto had none of them in published rows."""


def automatic_in(version: int | None) -> tuple[str, ...]:
    """What auto stood for in a version of our kernels."""
    return tuple(one for one in AUTOMATIC if (version or 0) > LAST_WITHOUT.get(one, -1))


@dataclass
class KernelsConfig:
    """The kernels of ours that an engine may use, where they are faster than vLLM's."""

    families: list[str] | None = field(default=None, metadata=choices(AUTO, VLLM, *FAMILIES))
    """auto (all of ours but the last two), vllm (none), or a list of one_token, sparse,
    weight_only, w4afp8, cublas, batched, attention, overlap and one_token_overlap.
    `engine.kernels=...` for short. null is auto; for serve results=FILE it is what was measured,
    and auto is today's. A CPU runs vLLM's own."""
    second_layout: bool | None = None
    """Keep weights in a second layout where that is faster; false saves the memory. null does where
    the copies take at most half of what the weights leave of the GPU's memory."""

    def __post_init__(self) -> None:
        whole_words = [word for word in (AUTO, VLLM) if word in (self.families or [])]
        if whole_words and len(self.families or []) > 1:
            raise ValueError(f"engine.kernels: {whole_words[0]} stands alone, not in a list")
        if self.families == []:
            raise ValueError("engine.kernels: the list is empty; vllm uses none of ours")
        if BATCHED in (self.families or []) and WEIGHT_ONLY not in (self.families or []):
            raise ValueError(f"engine.kernels: {BATCHED} needs {WEIGHT_ONLY} in the list, too")

    @property
    def chosen(self) -> tuple[str, ...]:
        """The families to use; none for vLLM's own kernels."""
        families = [DEFAULT] if self.families is None else self.families
        if families == [VLLM]:
            return ()
        if families == [AUTO]:
            return AUTOMATIC
        return tuple(name for name in FAMILIES if name in families)


@dataclass
class PlansConfig:
    """Shows which kernel is the fastest for which layer and number of tokens, and how fast each
    candidate was. An engine measures them when it loads a kind of layer for the first time on a
    GPU. Its log, and every row of results, say what a layer really runs."""

    layers: str | None = None
    """Only layers whose kind or shape contains this text, as int8 or 4096x12288."""
    tokens: list[int] | None = field(default=None, metadata=within(1, TOKENS_MOST))
    """Only these numbers of tokens."""
