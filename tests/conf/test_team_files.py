"""A team's own config files: what is wrong in one is named with its file and line."""

from pathlib import Path

import pytest

from conf import sources
from conf.compose import compose
from conf.errors import QuantlineError
from quantize.command import COMMAND as QUANTIZE

BOMB = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{name}: &{name} [{','.join(['*' + before] * 9)}]\n"
    for before, name in zip("abcdefg", "bcdefgh", strict=True)
)


@pytest.fixture
def team(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(sources.TEAM_FOLDERS, str(tmp_path))
    return tmp_path


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("steps: [rounding]\nsteps: [gptq]\n", ":2: the key 'steps' appears twice, first in line"),
        ("steps: [rounding]\nweigths: {bits: 8}\n", ":2: weigths: .* Did you mean weights?"),
        ("steps: [gptq]\ngptq:\n  dampenign: 1\n", ":3: gptq.dampenign: .* Did you mean dampening"),
        ("steps: rounding\n", ":1: steps: 'rounding': must be a list, as \\[rounding\\]"),
        ("steps: {a: b}\n", ":1: steps: .*: must be a list"),
        ("steps: [[gptq]]\n", ":1: steps.0: \\['gptq'\\]: must be text"),
        ("steps: null\n", ":1: steps: null: a value is needed"),
        ("steps: [gptq]\nweights: 5\n", ":2: weights: 5: has options of its own"),
        (
            "steps: [gptq]\nweights: {bits: eight}\n",
            ":2: weights.bits: 'eight': must be a whol",
        ),
        ("steps: [gptq]\nweights: {bits: 4.5}\n", ":2: weights.bits: 4.5: must be a whole number"),
        (
            "steps: [gptq]\nweights: {bits: true}\n",
            ":2: weights.bits: True: must be a whole number",
        ),
        ("steps: [gptq]\ngptq: {act_order: 7}\n", ":2: gptq.act_order: 7: must be true or false"),
        (
            "steps: [gptq]\ngptq: {dampening: [1]}\n",
            ":2: gptq.dampening: \\[1\\]: must be a nu",
        ),
        ("steps: [gptq]\ntargets: [null]\n", ":2: targets.0: null: a value is needed"),
        ("1: 2\n", ":1: the key '1' is not a name"),
        ("- steps\n", ": must be a mapping of names to values"),
        ("steps:\n\t- rounding\n", ":2: no YAML"),
        ("steps: [rounding\n", ":\\d: no YAML"),
        ("a: " + "[" * 2000 + "]" * 2000, "nested too deeply"),
        ("\n".join(f"{' ' * n}a:" for n in range(60)) + " 1\n", "nested more than 40 deep"),
        (BOMB, "more than 20000 entries after aliases are expanded"),
        ("x" * (1 << 20) + "yy", "too large; at most"),
        ("steps: !!python/object/apply:os.mkdir ['{folder}/ran']\n", ":1: no YAML .*constructor"),
        ("defaults: [nothing_like_it]\n", ":1: defaults.0: recipe: there is no 'nothing_like_it'"),
        ("defaults: [w8a8_smooth_gtpq]\n", "Did you mean w8a8_smooth_gptq?"),
        (
            "defaults: [broken]\n",
            ":1: defaults.0: broken -> broken: a recipe cannot build on",
        ),
        ("defaults: [circle]\n", "circle.yaml:1: defaults.0: broken -> circle -> broken: a recipe"),
        ("defaults: w4a16_gptq\n", ":1: defaults: 'w4a16_gptq': must be a list of recipes"),
        ("defaults: [{override /model: tiny}]\n", ":1: defaults.0: recipe: there is no"),
    ],
)
def test_what_is_wrong_is_named_with_its_line(team: Path, content: str, message: str) -> None:
    (team / "circle.yaml").write_text("defaults: [broken]\n")
    path = team / "broken.yaml"
    path.write_text(content.replace("{folder}", str(team)))
    with pytest.raises(QuantlineError, match=message) as error:
        sources.check_file(path, "recipe")
    assert error.value.exit_code == 2
    assert ".yaml" in str(error.value)
    assert not (team / "ran").exists()


@pytest.mark.parametrize("content", [b"\xff\xfe\x00\x01", "when: caf\u00e9\n".encode("latin-1")])
def test_what_is_no_text_is_named(team: Path, content: bytes) -> None:
    (team / "broken.yaml").write_bytes(content)
    with pytest.raises(QuantlineError, match=r"broken.yaml: no UTF-8 text \(byte \d+\)"):
        sources.check_file(team / "broken.yaml", "recipe")


@pytest.mark.parametrize(
    ("group", "content", "message"),
    [
        (
            "scenario",
            "chat: {batch: one, input_tokens: 5}\n",
            ":1: chat.batch: 'one': must be a",
        ),
        ("scenario", "chat: 5\n", ":1: chat: 5: has options of its own"),
        ("scenario", "chat: {bacth: 5}\n", "Did you mean batch?"),
        ("model", "name: x\narchitecture: {hidden_size: wide}\n", ":2: architecture.hidden_size"),
        ("engine", "kind: vllm\noptions: [1]\n", ":2: options: \\[1\\]: must be a mapping"),
        ("gpu", "memory_gib: much\n", ":1: memory_gib: 'much': must be a number"),
    ],
)
def test_files_of_other_groups_are_checked_too(
    team: Path, group: str, content: str, message: str
) -> None:
    (team / "broken.yaml").write_text(content)
    with pytest.raises(QuantlineError, match=message):
        sources.check_file(team / "broken.yaml", group)


def test_hydra_never_sees_a_broken_file(team: Path) -> None:
    (team / "broken.yaml").write_text("steps: [rounding]\nsteps: [gptq]\n")
    with pytest.raises(QuantlineError, match="appears twice"):
        compose(QUANTIZE, ["recipe=broken"])


def test_what_is_odd_but_right_is_taken(team: Path) -> None:
    """Anchors, merges, references, quoted numbers, a mark of byte order, no final line end."""
    (team / "odd.yaml").write_text(
        "\ufeff# ours\ndefaults: [w4a16_gptq, _self_]\nwhen: ${recipe.name}\n"
        "weights: &w {group_size: '64'}\nawq: {<<: {grid: 5}, duo_scaling: no}\n"
        "gptq: {dampening: 1e-2}",
        encoding="utf-8",
    )
    recipe = compose(QUANTIZE, ["recipe=odd"]).recipe
    assert recipe.weights.group_size == 64
    assert (recipe.awq.grid, recipe.awq.duo_scaling) == (5, False)
    assert (recipe.gptq.dampening, recipe.when) == (0.01, "odd")


@pytest.mark.parametrize("group", sources.GROUPS)
def test_every_file_of_ours_passes(group: str) -> None:
    files = sources.choices(group, [sources.RECIPES])
    assert files
    for path in files.values():
        sources.check_file(path, group)
