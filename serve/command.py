"""The command `serve`: serves a checkpoint, or answers one prompt=TEXT."""

from conf.compose import Command
from conf.schema.commands import ServeConfig
from conf.unused.commands import SERVE

COMMAND = Command(
    "serve",
    ServeConfig,
    (
        "python -m serve model=smollm2-135m",
        "python -m serve checkpoint=checkpoints/smollm2-135m/w8a8_smooth_gptq port=8080",
        "python -m serve results=results.jsonl targets.tpot_ms=20",
    ),
    plain=(("recipe", "recipe_name"),),
    unused=SERVE,
)


def main(config: ServeConfig) -> None:
    from conf.errors import bad_input
    from conf.files.outputs import check_cache
    from serve.ask import ask
    from serve.resolving import resolve
    from serve.server import serve

    if config.engine.kind == "transformers":
        raise bad_input("engine=transformers: only vLLM can serve; leave engine= out")
    if config.prompt is not None and config.dry_run:
        raise bad_input("dry_run=true: prompt= starts no server; leave one of them out")
    if config.prompt is not None and not config.prompt.strip():
        raise bad_input("prompt=: is empty; give a question")
    check_cache()
    if config.prompt is not None:
        print(ask(resolve(config).folder, config.prompt, config.engine))
    else:
        serve(config)
