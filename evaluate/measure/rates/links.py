"""What the cards of one engine send each other for a step, and how long that takes at least.

With tensor parallelism, attention and the MLP of every layer end with an all-reduce of the
activations. In a ring of N cards each card sends 2 (N - 1) / N times their size. With pipeline
parallelism, each stage sends its output to the next one.
"""

from dataclasses import dataclass

ALL_REDUCES = 2  # of a layer: behind attention and behind the MLP


@dataclass(frozen=True)
class Links:
    """The cards of one replica of an engine, and the link between them."""

    tensor: int = 1
    pipeline: int = 1
    bytes_per_s: float | None = None
    """What a card sends in one direction; None where it is not known."""

    def sent_bytes(self, tokens: float, hidden: int, layers: int, value_bytes: int) -> float:
        """What one card sends for a step of so many tokens, over all layers and stages."""
        activations = tokens * hidden * value_bytes
        ring = 2 * (self.tensor - 1) / self.tensor * activations
        return ALL_REDUCES * layers * ring + (self.pipeline - 1) * activations

    def seconds(self, tokens: float, hidden: int, layers: int, value_bytes: int) -> float:
        """The least time of that; 0 where the link is not known."""
        if self.bytes_per_s is None:
            return 0.0
        return self.sent_bytes(tokens, hidden, layers, value_bytes) / self.bytes_per_s
