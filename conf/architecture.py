"""A decoder's dimensions, and its parameters, weight bytes and KV-cache bytes per token."""

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from omegaconf import MISSING

from conf.mixture import MIXTURES, QWEN, MixtureNames
from conf.schema.ranges import above, choices, within

KINDS = ("llama", "mixtral", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe")
WIDTH = within(1, 2**24)


class Matrix(NamedTuple):
    """A linear layer of every decoder layer; `copies` counts experts of the same shape."""

    name: str
    rows: int
    columns: int
    copies: int = 1
    used_per_token: int = 1

    @property
    def weights(self) -> int:
        return self.rows * self.columns


@dataclass
class Architecture:
    """The dimensions of a decoder, under the names that a transformers config.json gives them."""

    model_type: str = field(default=MISSING, metadata=choices(*KINDS))
    """Family: llama, mixtral, qwen2, qwen2_moe, qwen3 or qwen3_moe."""
    hidden_size: int = field(default=MISSING, metadata=WIDTH)
    """Width of the residual stream."""
    intermediate_size: int = field(default=MISSING, metadata=WIDTH)
    """Width inside a dense feed-forward block; of mixtral, inside one expert."""
    num_hidden_layers: int = field(default=MISSING, metadata=within(1, 10000))
    """Decoder layers."""
    num_attention_heads: int = field(default=MISSING, metadata=WIDTH)
    """Query heads."""
    num_key_value_heads: int = field(default=MISSING, metadata=WIDTH)
    """Key and value heads; fewer than query heads is grouped-query attention."""
    head_dim: int = field(default=MISSING, metadata=WIDTH)
    """Width of one head."""
    vocab_size: int = field(default=MISSING, metadata=WIDTH)
    """Rows of the embedding, padding included."""
    max_position_embeddings: int = field(default=MISSING, metadata=within(1, 2**31))
    """Longest context the weights were made for."""
    rms_norm_eps: float = field(default=1e-6, metadata=above(0, 1))
    """Added under the root of every norm."""
    rope_theta: float = field(default=10000.0, metadata=above(0, 1e12))
    """Base of the rotary position embedding."""
    rope_scaling: dict[str, Any] | None = None
    """How positions are stretched, as transformers spells it; null for not at all."""
    tie_word_embeddings: bool = False
    """Whether the output head is the embedding."""
    bos_token_id: int | None = field(default=None, metadata=within(0, 2**24))
    """First token of a text, where the family has one."""
    eos_token_id: int | None = field(default=None, metadata=within(0, 2**24))
    """Token that ends a text."""
    num_experts: int = field(default=0, metadata=within(0, 2**24))
    """Experts in a layer; 0 for a dense model."""
    num_experts_per_tok: int = field(default=0, metadata=within(0, 2**24))
    """Experts that one token visits."""
    moe_intermediate_size: int = field(default=0, metadata=within(0, 2**24))
    """Width inside one expert; of mixtral, `intermediate_size` is."""
    shared_expert_intermediate_size: int = field(default=0, metadata=within(0, 2**24))
    """Width inside the expert that every token visits; 0 where there is none."""
    extra: dict[str, Any] = field(default_factory=dict)
    """Further config.json fields, passed on as they are."""

    @property
    def attention_matrices(self) -> list[Matrix]:
        queries = self.num_attention_heads * self.head_dim
        keys = self.num_key_value_heads * self.head_dim
        return [
            Matrix("self_attn.q_proj", queries, self.hidden_size),
            Matrix("self_attn.k_proj", keys, self.hidden_size),
            Matrix("self_attn.v_proj", keys, self.hidden_size),
            Matrix("self_attn.o_proj", self.hidden_size, queries),
        ]

    @property
    def feed_forward_matrices(self) -> list[Matrix]:
        names = MIXTURES.get(self.model_type)
        if names is None:
            return self._gated_matrices("mlp", self.intermediate_size)
        width = self.shared_expert_intermediate_size
        shared = self._gated_matrices("mlp.shared_expert", width) if width else []
        experts = self._gated_matrices(names.experts, getattr(self, names.width), names)
        return shared + [
            matrix._replace(copies=self.num_experts, used_per_token=self.num_experts_per_tok)
            for matrix in experts
        ]

    def _gated_matrices(self, prefix: str, width: int, names: MixtureNames = QWEN) -> list[Matrix]:
        return [
            Matrix(f"{prefix}.{names.gate}", width, self.hidden_size),
            Matrix(f"{prefix}.{names.up}", width, self.hidden_size),
            Matrix(f"{prefix}.{names.down}", self.hidden_size, width),
        ]

    @property
    def layer_matrices(self) -> list[Matrix]:
        """Every linear layer that a recipe may quantize, for one decoder layer."""
        return self.attention_matrices + self.feed_forward_matrices

    @property
    def small_parameters_per_layer(self) -> int:
        """Norms, biases, routers and the shared expert's gate, which no recipe quantizes."""
        norms = 2 * self.hidden_size
        if self.model_type in ("qwen3", "qwen3_moe"):
            norms += 2 * self.head_dim
        biases = 0
        if self.model_type in ("qwen2", "qwen2_moe"):
            biases = sum(matrix.rows for matrix in self.attention_matrices[:3])
        gates = self.num_experts + (1 if self.shared_expert_intermediate_size else 0)
        return norms + biases + gates * self.hidden_size

    @property
    def embedding_parameters(self) -> int:
        return self.vocab_size * self.hidden_size

    @property
    def parameters(self) -> int:
        """All parameters; a tied head counts once."""
        layer = sum(matrix.weights * matrix.copies for matrix in self.layer_matrices)
        layer += self.small_parameters_per_layer
        embeddings = self.embedding_parameters * (1 if self.tie_word_embeddings else 2)
        return self.num_hidden_layers * layer + embeddings + self.hidden_size

    @property
    def layer_weights_per_token(self) -> int:
        """Weights of linear layers that one token is multiplied with, without the head."""
        weights_per_layer = sum(
            matrix.weights * matrix.used_per_token for matrix in self.layer_matrices
        )
        return self.num_hidden_layers * weights_per_layer

    def weight_bytes_per_token(self, bits: float = 16, head_bits: float = 16) -> float:
        """Bytes of weights that decoding one token at batch 1 reads.

        `bits` is what is stored per weight, its share of the scales included. The embedding is a
        look-up of one row; all of the head is read.
        """
        small = self.num_hidden_layers * self.small_parameters_per_layer + 2 * self.hidden_size
        head = self.embedding_parameters * head_bits / 8
        return self.layer_weights_per_token * bits / 8 + head + small * 2

    def kv_bytes_per_token(self, bits: int = 16) -> int:
        """Bytes that the KV cache keeps for each token of context."""
        values = 2 * self.num_hidden_layers * self.num_key_value_heads * self.head_dim
        return values * bits // 8

    def __post_init__(self) -> None:
        if self.num_attention_heads % self.num_key_value_heads:
            raise ValueError(
                f"num_attention_heads={self.num_attention_heads} is no multiple of "
                f"num_key_value_heads={self.num_key_value_heads}"
            )
        self._check_experts()

    def _check_experts(self) -> None:
        names = MIXTURES.get(self.model_type)
        if (names is not None) != bool(self.num_experts):
            raise ValueError(
                f"num_experts={self.num_experts} does not fit model_type={self.model_type}"
            )
        if names is None:
            return
        if not 0 < self.num_experts_per_tok <= self.num_experts:
            raise ValueError(
                f"num_experts_per_tok={self.num_experts_per_tok}: a token visits 1 to "
                f"{self.num_experts} experts"
            )
        if not getattr(self, names.width):
            raise ValueError(f"{names.width} is needed: the width inside an expert")
        if self.moe_intermediate_size and names.width != "moe_intermediate_size":
            raise ValueError(
                f"moe_intermediate_size={self.moe_intermediate_size}: the experts of "
                f"model_type={self.model_type} are as wide as {names.width} says"
            )
