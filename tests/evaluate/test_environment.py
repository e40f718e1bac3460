"""What is recorded of the command line."""

from evaluate.environment import command


def test_a_command_can_be_typed_again() -> None:
    words = ["/usr/bin/python3", "-m", "evaluate", "recipes=[a,b]", "scenario.base.output_tokens=6"]
    typed = "python -m evaluate 'recipes=[a,b]' scenario.base.output_tokens=6"
    assert command(words) == typed


def test_a_command_with_a_secret_is_not_kept() -> None:
    assert command(["python", "-m", "evaluate", "engine.hf_token=hf_abc"]) == ""
    assert command(["python", "-m", "evaluate", "engine.api_key=abc"]) == ""
