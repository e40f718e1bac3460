"""`python -m serve checkpoint=DIR`: serve a checkpoint, or ask it one thing with prompt=TEXT."""

from conf.app import run
from conf.compose import Command
from conf.schema import ServeConfig

COMMAND = Command(
    "serve",
    ServeConfig,
    (
        "python -m serve model=smollm2-135m",
        "python -m serve checkpoint=checkpoints/smollm2-135m/w8a8_smooth_gptq port=8080",
        "python -m serve prompt='What is the capital of France?'",
    ),
)


def main(config: ServeConfig) -> None:
    from serve.ask import ask
    from serve.engine import checkpoint_folder
    from serve.server import serve

    folder = checkpoint_folder(config.checkpoint, config.checkpoint_root, config.model)
    if config.prompt is not None:
        print(ask(folder, config.prompt, config.engine))
    else:
        serve(folder, config)


if __name__ == "__main__":
    run(COMMAND, main)
