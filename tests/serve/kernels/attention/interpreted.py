"""Runs the kernels of attention in Triton's interpreter, and prints how far each is from float64.
A process of its own: Triton decides when it is imported whether it interprets."""

import json

import torch

from serve.kernels.attention.launch import decode_options, rotate, store
from serve.kernels.attention.proof import prepared
from serve.kernels.attention.shape import Cache, Shape
from tests.serve.kernels.attention.made import attention_error, made, rope_of

GROUPED = Shape(8, 2, 64, torch.bfloat16)
SINGLE = Shape(2, 2, 64, torch.float16)
THREE = Shape(6, 2, 64, torch.bfloat16)
SIXTEEN = Shape(16, 1, 64, torch.bfloat16)
LENGTHS = [1, 5, 33, 100, 0, 127, 128, 17, 2]


def say(name: str, error: float) -> None:
    print(json.dumps({"name": name, "error": error}), flush=True)


def decoding() -> None:
    whole, split = decode_options(32, 1, 4, 2), decode_options(16, 4, 4, 2, eager=4, pdl=1)
    wide = decode_options(128, 8, 4, 2, eager=8)
    say("one part", attention_error(made(GROUPED, LENGTHS), whole))
    say("parts", attention_error(made(GROUPED, LENGTHS), split))
    many = decode_options(16, 16, 4, 2, eager=2)  # more parts than fetch a tile early
    say("many parts", attention_error(made(GROUPED, [190, 1, 140, 100]), many))
    rounds = decode_options(16, 8, 1, 2, eager=8)  # eight parts, of which four are joined at once
    say("parts joined in rounds", attention_error(made(SIXTEEN, [190, 40, 0]), rounds))
    say("wide tiles", attention_error(made(GROUPED, LENGTHS), wide))
    say("float16, no groups", attention_error(made(SINGLE, LENGTHS), split))
    say("groups of three", attention_error(made(THREE, LENGTHS), split))
    say("large pages", attention_error(made(GROUPED, LENGTHS, page=64), split))
    say("four dimensions", attention_error(made(GROUPED, LENGTHS, layout=4), split))
    say("rotated", attention_error(made(GROUPED, LENGTHS, rope="rope"), split))
    say("normalized", attention_error(made(GROUPED, LENGTHS, rope="norm"), whole))


def storing() -> None:
    one = made(GROUPED, [1] * 21)
    slots = torch.randperm(200)[:21]
    slots[3] = -1
    cache = Cache.of(torch.zeros_like(one.kv_cache), GROUPED.width)
    right = [cache.keys.clone(), cache.values.clone()]
    for token, slot in enumerate(slots[:20].tolist()):  # one slot less than tokens
        if slot >= 0:
            right[0][slot // 16, slot % 16] = one.new.keys[token]
            right[1][slot // 16, slot % 16] = one.new.values[token]
    store(one.new.keys, one.new.values, cache, slots[:20])
    same = torch.equal(cache.keys, right[0]) and torch.equal(cache.values, right[1])
    say("store", 0.0 if same else float("inf"))


def rotating() -> None:
    for kind in ("rope", "norm"):
        rope = rope_of(GROUPED, kind)
        assert rope is not None
        positions = torch.tensor([0, 7, 1023, 500, 1])
        qkv = torch.randn(5, 12 * 64 + 16).to(GROUPED.dtype)[:, : 12 * 64]
        before = qkv.clone()
        rotate(GROUPED, qkv, positions, rope)
        heads = before.view(5, 12, 64)
        right = torch.cat(
            [
                prepared(heads[:, :8], positions, rope, is_key=False),
                prepared(heads[:, 8:10], positions, rope, is_key=True),
                heads[:, 10:].double(),
            ],
            dim=1,
        )
        say(f"rotate {kind}", (qkv.view(5, 12, 64).double() - right).abs().max().item())


if __name__ == "__main__":
    decoding()
    storing()
    rotating()
