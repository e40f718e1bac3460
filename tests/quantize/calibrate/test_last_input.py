"""A calibrating pass ends at the last input that is taken."""

import torch

from quantize.calibrate.last_input import LastInput


class Layer(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.up = torch.nn.Linear(8, 16)
        self.down = torch.nn.Linear(16, 8)
        self.behind = torch.nn.Linear(8, 8)
        self.calls: list[str] = []

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.behind(hidden + self.down(self.up(hidden).relu()))
        return output


def passed(layer: Layer, watched: list[torch.nn.Module]) -> tuple[list[torch.Tensor], torch.Tensor]:
    """The inputs that hooks see over three batches, and the last output."""
    seen: list[torch.Tensor] = []
    handles = [
        module.register_forward_hook(lambda _module, args, _output: seen.append(args[0].clone()))
        for module in watched
    ]
    last_input = LastInput(layer.modules())
    generator = torch.Generator().manual_seed(1)
    for _ in range(3):
        with last_input.batch():
            output = layer(torch.randn(2, 8, generator=generator))
    for handle in handles:
        handle.remove()
    return seen, output


def test_every_input_is_seen_and_the_last_product_is_left_out() -> None:
    layer = Layer()
    products: list[int] = []
    original = layer.down.forward
    layer.down.forward = lambda inputs: (products.append(1), original(inputs))[1]  # type: ignore[method-assign]
    counting = layer.down.forward
    seen, _ = passed(layer, [layer.up, layer.down])
    assert layer.down.forward is counting
    layer.down.forward = original  # type: ignore[method-assign]
    generator = torch.Generator().manual_seed(1)
    expected = []
    for _ in range(3):
        hidden = torch.randn(2, 8, generator=generator)
        expected += [hidden, layer.up(hidden).relu()]
    assert all(torch.equal(one, other) for one, other in zip(seen, expected, strict=True))
    assert len(products) == 1  # in the first batch, which shows that it is the last


def test_a_layer_without_hooks_is_computed_whole() -> None:
    layer = Layer()
    _, output = passed(layer, [])
    generator = torch.Generator().manual_seed(1)
    hidden = [torch.randn(2, 8, generator=generator) for _ in range(3)][-1]
    assert torch.equal(output, layer(hidden))


def test_the_modules_are_as_before() -> None:
    layer = Layer()
    passed(layer, [layer.up, layer.down])
    assert "forward" not in vars(layer.down)
    assert not layer.down._forward_pre_hooks


def test_a_hook_behind_the_last_linear_layer_sees_real_values() -> None:
    """As that of an observer of attention, or of a norm behind it."""
    layer = Layer()
    layer.behind = torch.nn.LayerNorm(8)  # type: ignore[assignment]
    seen, _ = passed(layer, [layer.up, layer.down, layer.behind])
    generator = torch.Generator().manual_seed(1)
    hidden = [torch.randn(2, 8, generator=generator) for _ in range(3)][-1]
    assert torch.equal(seen[-1], hidden + layer.down(layer.up(hidden).relu()))


def test_a_layer_with_observers_of_the_cache_is_computed_whole() -> None:
    layer = Layer()
    layer.k_observer = torch.nn.Identity()
    _, output = passed(layer, [layer.up, layer.down])
    generator = torch.Generator().manual_seed(1)
    hidden = [torch.randn(2, 8, generator=generator) for _ in range(3)][-1]
    assert torch.equal(output, layer(hidden))
