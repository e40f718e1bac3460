"""Our attention, as a class of vLLM's FlashAttention: import it only where vLLM has imported that.

In captured graphs, a step in which each request has one new token runs our kernel, which also keeps
the new keys and values. Prompts without older tokens run vLLM's FlashAttention on the keys and
values themselves, which is faster than on the pages of the cache. All else is vLLM's.
"""

import logging
from typing import Any

import torch
from vllm.config import get_current_vllm_config_or_none
from vllm.forward_context import get_forward_context, is_forward_context_available
from vllm.v1.attention.backends import flash_attn
from vllm.v1.attention.backends.flash_attn import FlashAttentionImpl

from conf.errors import one_line
from serve.kernels import record
from serve.kernels.attention import steps
from serve.kernels.attention.conditions import refusal
from serve.kernels.attention.deferring import Modules, is_left
from serve.kernels.attention.launch import NewTokens, Rope, decode, store
from serve.kernels.attention.planning import OURS, OWN, planned
from serve.kernels.attention.shape import Cache, Shape
from serve.kernels.linear.ranges import split_at_captured
from serve.kernels.plans.plan import Plan
from serve.kernels.plans.store import PlanStore, identity_here
from serve.kernels.plans.timing import Call
from serve.kernels.products.product import Options, Unusable
from serve.kernels.record import ALL, LayerKernels, TokenRange

logger = logging.getLogger("vllm.quantline")
THREE = 3
"""The version of FlashAttention that reads whole prompts faster than pages, and plans its work
ahead."""
STORED_BY_OURS = 4096
"""New tokens from which on ours writes them into the cache: it is faster there. For fewer, the host
waits longer for our launch than the GPU would."""
MOST_SPLITS = 32
"""Into which vLLM's own attention may cut a request in a graph: vLLM's default."""
NOWHERE = -1
"""The place of a token that is not kept."""
_PLANS: dict[tuple[Shape, bool, bool], Plan | str] = {}
"""By the heads of a layer, and whether attention may have to rotate and normalize them: its plan,
or why it has none."""


class QuantlineAttentionImpl(FlashAttentionImpl):  # type: ignore[misc]  # of an untyped package
    """Attention of one layer."""

    shape: Shape
    plan: Plan | None = None
    """None as long as vLLM's own attention runs all steps."""
    modules: Modules | None = None
    """Where our op rotates this layer's queries and keys."""
    compilation: Any = None
    """The engine's config of graphs, which vLLM completes while it starts."""
    _unstored: torch.Tensor | None = None
    """Places of new keys and values that attention is to write, within a step."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        config = get_current_vllm_config_or_none()
        self.compilation = getattr(config, "compilation_config", None)

    def process_weights_after_loading(self, act_dtype: torch.dtype) -> None:
        super().process_weights_after_loading(act_dtype)
        self.shape = Shape(self.num_heads, self.num_kv_heads, self.head_size, act_dtype)
        try:
            self.plan = self._planned()
            if self.modules is not None:
                split_at_captured()
        except Exception as error:  # an engine that starts without us must start with us
            logger.warning("quantline: vLLM's own attention is used: %s", error)

    def _planned(self) -> Plan | None:
        refused = refusal(self, self.shape)
        if not refused:
            rope = self.modules.rope if self.modules is not None else None
            kind = (self.shape, rope is not None, rope is not None and rope.q_weight is not None)
            if kind not in _PLANS:
                _PLANS[kind] = self._measured(rope)
            found = _PLANS[kind]
            if isinstance(found, Plan):
                record.note(self._record(found.ranges))
                return found
            refused = found
        record.note_refusal(self._record((TokenRange(None, OWN),), {ALL: refused}))
        return None

    def _measured(self, rope: Rope | None) -> Plan | str:
        try:
            device = torch.device("cuda", torch.cuda.current_device())
            return planned(self.shape, device, self._own_call, PlanStore(identity_here()), rope)
        except Unusable as reason:
            return str(reason)
        except Exception as error:
            logger.debug("quantline: %s", self.shape, exc_info=True)
            return f"fails: {one_line(error)}"

    def _record(
        self, ranges: tuple[TokenRange, ...], refused: dict[str, str] | None = None
    ) -> LayerKernels:
        shape = self.shape
        rows, columns = shape.heads * shape.width, shape.key_heads * shape.width
        return LayerKernels("attention", rows, columns, ranges, refused or {})

    def options(self, metadata: Any, context: Any) -> Options | None:
        """How our kernel runs a step; None where vLLM's own attention does."""
        if self.plan is None or not steps.decodes(metadata, context, self.compilation):
            return None
        step = self.plan.step(metadata.seq_lens.shape[0])
        return step.options if step.product == OURS else None

    def do_kv_cache_update(
        self,
        layer: torch.nn.Module,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: torch.Tensor,
        slot_mapping: torch.Tensor,
    ) -> None:
        if self._decodes(layer):
            self._unstored = slot_mapping
        elif self.plan is None or slot_mapping.shape[0] < STORED_BY_OURS or not _has_rows(key):
            super().do_kv_cache_update(layer, key, value, kv_cache, slot_mapping)
        else:
            store(key, value, Cache.of(kv_cache, self.head_size), slot_mapping)

    def _decodes(self, layer: torch.nn.Module) -> bool:
        """Whether our kernel runs this step. Some drafts fill their cache outside of any step."""
        if self.plan is None or not is_forward_context_available():
            return False
        context = get_forward_context()
        metadata = steps.metadata_of(context, layer.layer_name)
        return self.options(metadata, context) is not None

    def forward(
        self,
        layer: torch.nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: torch.Tensor,
        attn_metadata: Any,
        output: torch.Tensor,
        output_scale: torch.Tensor | None = None,
        output_block_scale: torch.Tensor | None = None,
    ) -> torch.Tensor:
        unstored, self._unstored = self._unstored, None
        is_plain = is_left(query)
        options = self.options(attn_metadata, get_forward_context())
        if options is not None:
            lengths = attn_metadata.seq_lens
            requests = lengths.shape[0]
            slots = torch.full_like(lengths, NOWHERE) if unstored is None else unstored
            queries, keys, values = (_with_rows(x[:requests]) for x in (query, key, value))
            new = NewTokens(queries, keys, values, slots, lengths, attn_metadata.block_table)
            rope = self.modules.rope if self.modules is not None and is_plain else None
            cache = Cache.of(kv_cache, self.head_size)
            decode(self.shape, new, cache, output, self.scale, options, rope)
            return output
        if is_plain or unstored is not None:
            raise RuntimeError("quantline: a step changed; use engine.kernels=vllm")
        if self._reads_whole_prompts(attn_metadata):
            return self._whole_prompts(query, key, value, attn_metadata, output)
        result: torch.Tensor = super().forward(
            layer, query, key, value, kv_cache, attn_metadata, output, output_scale,
            output_block_scale,
        )  # fmt: skip
        return result

    def _reads_whole_prompts(self, metadata: Any) -> bool:
        """Not where a graph is captured: vLLM captures with steps that look so, and replays them
        for requests that have more tokens."""
        is_faster = self.plan is not None and self.vllm_flash_attn_version == THREE
        is_fresh = is_faster and getattr(metadata, steps.FRESH, False)
        return is_fresh and not torch.cuda.is_current_stream_capturing()

    def _whole_prompts(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        metadata: Any,
        output: torch.Tensor,
    ) -> torch.Tensor:
        tokens = metadata.num_actual_tokens
        flash_attn.flash_attn_varlen_func(
            q=query[:tokens], k=key[:tokens], v=value[:tokens], out=output[:tokens],
            cu_seqlens_q=metadata.query_start_loc, cu_seqlens_k=metadata.query_start_loc,
            max_seqlen_q=metadata.max_query_len, max_seqlen_k=metadata.max_query_len,
            softmax_scale=self.scale, causal=True, fa_version=self.vllm_flash_attn_version,
        )  # fmt: skip
        return output

    def _own_call(self, new: NewTokens, cache: Cache, out: torch.Tensor) -> Call:
        """vLLM's own attention, as it runs in a graph."""
        requests, context = new.lengths.shape[0], int(new.lengths.max())
        one = torch.ones((), device=out.device)
        starts = torch.arange(requests + 1, dtype=torch.int32, device=out.device)
        version = self.vllm_flash_attn_version
        schedule = None
        if version == THREE:
            schedule = flash_attn.get_scheduler_metadata(
                batch_size=requests, max_seqlen_q=1, max_seqlen_k=context,
                num_heads_q=self.num_heads, num_heads_kv=self.num_kv_heads,
                headdim=self.head_size, cache_seqlens=new.lengths, qkv_dtype=out.dtype,
                cu_seqlens_q=starts, page_size=cache.page, causal=True, num_splits=MOST_SPLITS,
            )  # fmt: skip

        def call() -> object:
            flash_attn.reshape_and_cache_flash(
                new.keys, new.values, cache.keys, cache.values, new.slots, "auto", one, one
            )
            return flash_attn.flash_attn_varlen_func(
                q=new.queries, k=cache.keys, v=cache.values, out=out, cu_seqlens_q=starts,
                max_seqlen_q=1, seqused_k=new.lengths, max_seqlen_k=context,
                softmax_scale=self.scale, causal=True, block_table=new.table,
                scheduler_metadata=schedule, fa_version=version,
                num_splits=MOST_SPLITS if schedule is not None else 0,
            )  # fmt: skip

        return call


def _has_rows(x: torch.Tensor) -> bool:
    """Whether the heads of a token are side by side, as our kernels read them."""
    return bool(x.stride(2) == 1 and x.stride(1) == x.shape[2])


def _with_rows(x: torch.Tensor) -> torch.Tensor:
    return x if _has_rows(x) else x.contiguous()
