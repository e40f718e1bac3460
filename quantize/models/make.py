"""Makes models without a hub: trained here, or random."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    AutoModelForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)
from transformers.utils import logging

from conf.architecture import Architecture
from conf.schema.model import ModelConfig, TrainingSource
from conf.schema.text import TextSource
from conf.terminal import progress_bar, say
from conf.text import documents
from quantize.models.architecture_config import architecture_config

logging.disable_progress_bar()  # our own messages take one line

BOS, EOS = "<|bos|>", "<|eos|>"
CHAT_TEMPLATE = (
    "{% for turn in messages %}{{ turn['role'] + ': ' + turn['content'] + '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant:' }}{% endif %}"
)
WARM_UP_SHARE = 0.1
# A machine that makes random weights holds one shard in memory.
SHARD_SIZE = "4GB"


def _save(model: PreTrainedModel, tokenizer: Any, architecture: Architecture, folder: Path) -> None:
    tokenizer.model_max_length = architecture.max_position_embeddings
    model.to(torch.bfloat16).save_pretrained(folder, max_shard_size=SHARD_SIZE)
    tokenizer.save_pretrained(folder)


# ---- random -------------------------------------------------------------------------------


def random_model(model: ModelConfig, folder: Path) -> None:
    """The full architecture with seeded random weights and a tokenizer of bytes."""
    assert model.architecture is not None
    billions = model.architecture.parameters / 1e9
    say(f"{model.name}: making {billions:.2f} B random weights, seed {model.seed}")
    torch.manual_seed(model.seed)
    config = architecture_config(model.architecture)
    config.dtype = torch.bfloat16
    # A GPU draws them a hundred times faster. Its numbers differ from a CPU's, but are seeded, too.
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        weights = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    _save(weights, _fast_tokenizer(Tokenizer(_byte_level_bpe())), model.architecture, folder)


def _byte_level_bpe() -> Any:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: number for number, token in enumerate([BOS, EOS, *alphabet])}
    return models.BPE(vocab=vocabulary, merges=[])


def _fast_tokenizer(tokenizer: Tokenizer) -> PreTrainedTokenizerFast:
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=BOS,
        eos_token=EOS,
        pad_token=EOS,
        chat_template=CHAT_TEMPLATE,
    )


# ---- trained here -------------------------------------------------------------------------


def trained_model(model: ModelConfig, folder: Path) -> None:
    """A small model trained on the calibration part of CPython's documentation."""
    assert model.training is not None
    assert model.architecture is not None
    texts = [str(text) for text in documents(TextSource(), "calibration", model.seed)]
    say(
        f"{model.name}: training {model.architecture.parameters:,} parameters on {len(texts)} "
        "pages (once; later runs find it in the cache)"
    )
    tokenizer = _trained_tokenizer(texts, model.architecture.vocab_size)
    tokens = torch.tensor(
        [
            token
            for text in texts
            for token in [*tokenizer(text)["input_ids"], tokenizer.eos_token_id]
        ]
    )
    torch.manual_seed(model.seed)
    weights = AutoModelForCausalLM.from_config(architecture_config(model.architecture))
    loss = _train(weights, tokens, model.training, model.seed)
    say(f"{model.name}: trained, perplexity {torch.tensor(loss).exp():.1f} on its training text")
    _save(weights, tokenizer, model.architecture, folder)


def _trained_tokenizer(texts: list[str], size: int) -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.train_from_iterator(
        texts,
        trainers.BpeTrainer(
            vocab_size=size,
            special_tokens=[BOS, EOS],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    return _fast_tokenizer(tokenizer)


def _train(
    weights: PreTrainedModel, tokens: torch.Tensor, training: TrainingSource, seed: int
) -> float:
    """Trains with a warm-up and a linear decay; returns the mean loss of the last tenth."""
    optimizer = torch.optim.AdamW(
        weights.parameters(), training.learning_rate, betas=(0.9, 0.95), weight_decay=0.1
    )
    warm_up = max(1, round(training.steps * WARM_UP_SHARE))
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer,
        lambda step: min(
            (step + 1) / warm_up, (training.steps - step) / (training.steps - warm_up)
        ),
    )
    weights.train()
    losses: list[float] = []
    # A mixture's loss has a term that spreads tokens over the experts; without it some get none.
    balanced = {"output_router_logits": True} if hasattr(weights.config, "num_experts") else {}
    batches = _batches(tokens, training, seed)
    for batch in progress_bar(batches, "training", training.steps):
        loss = weights(input_ids=batch, labels=batch, **balanced).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(weights.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
    weights.eval()
    last_losses = losses[-max(1, training.steps // 10) :]
    return sum(last_losses) / len(last_losses)


def _batches(tokens: torch.Tensor, training: TrainingSource, seed: int) -> Iterator[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    for _ in range(training.steps):
        highest = len(tokens) - training.length
        starts = torch.randint(highest, (training.batch,), generator=generator)
        yield torch.stack([tokens[start : start + training.length] for start in starts.tolist()])
