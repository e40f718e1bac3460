"""Publishes a checkpoint atomically: it is written to a temporary folder and then moved."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from conf.errors import bad_input, environment_failure, writing
from conf.files.json_files import read_object
from conf.files.lock_holder import holder, write_holder
from conf.files.new_folder import new_folder
from conf.files.outputs import check_folder
from conf.files.write_whole import recover, write_whole
from conf.schema.commands import QuantizeConfig
from conf.terminal import listed
from quantize.checkpoint.manifest import FILE

FILES_KEY = "files"  # the manifest's key for the published files
# Every checkpoint may hold these files, even if its manifest does not list them.
ALWAYS_PUBLISHED = (
    FILE,
    "README.md",
    "config.json",
    "generation_config.json",
    "tokenizer_config.json",
    "chat_template.jinja",
)
# The suffixes of files that a checkpoint of a schema without hashes may hold.
SAVED_SUFFIXES = (".safetensors", ".json", ".jinja", ".txt", ".model", ".yaml", ".md")


def destination(config: QuantizeConfig) -> Path:
    """The checkpoint's folder."""
    return Path(config.output_dir).expanduser() / str(config.model.name) / config.recipe.name


def check_destination(config: QuantizeConfig) -> None:
    """Raises if the destination cannot be written, or holds something that may not be replaced."""
    folder = destination(config)
    _check_place(folder, config)
    if config.preflight == "only" and not config.replace:
        return
    if is_to_push_only(config):
        return
    check_free(folder, config.replace)


def is_to_push_only(config: QuantizeConfig) -> bool:
    """Whether the checkpoint exists and shall only be uploaded."""
    return bool(config.push) and not config.replace and (destination(config) / FILE).is_file()


def check_free(folder: Path, replace: bool) -> None:
    """Raises if the folder exists, unless it is a checkpoint of ours and `replace` is set."""
    if not folder.exists() and not folder.is_symlink():
        return
    if not replace:
        raise bad_input(f"{folder}: exists already; replace=true replaces it")
    if folder.is_symlink():
        raise bad_input(f"{folder}: is a symbolic link; replace=true replaces only a folder")
    if not folder.is_dir():
        raise bad_input(f"{folder}: is no folder; replace=true replaces only a checkpoint")
    if folder.is_mount():
        raise bad_input(f"{folder}: is a mount point; replace=true cannot replace it")
    if not (folder / FILE).is_file():
        raise bad_input(
            f"{folder}: is no checkpoint of ours (there is no {FILE}); replace=true deletes no "
            "other folder. Move it away, or choose another output_dir"
        )
    foreign = _foreign_files(folder)
    if foreign:
        raise bad_input(
            f"{folder}: replace=true would delete {listed(foreign)}, which the checkpoint did not "
            "come with; move them away"
        )


def _foreign_files(folder: Path) -> list[str]:
    """Names in a checkpoint's folder that were not published with it."""
    content = read_object(folder / FILE)
    if "schema" not in content or "recipe" not in content:
        raise bad_input(f"{folder / FILE}: is no manifest of a checkpoint; nothing is replaced")
    published_files = content.get(FILES_KEY)
    published_names = {
        *ALWAYS_PUBLISHED,
        *(published_files if isinstance(published_files, dict) else ()),
    }

    def is_published(path: Path) -> bool:
        if path.is_symlink() or not path.is_file():
            return False
        return path.name in published_names or (
            published_files is None and path.suffix in SAVED_SUFFIXES
        )

    return sorted(path.name for path in folder.iterdir() if not is_published(path))


def _check_place(folder: Path, config: QuantizeConfig) -> None:
    """Raises if the destination cannot be a folder, or is the source model's own."""
    for parent in folder.parents:
        if parent.is_dir():
            break
        if parent.exists() or parent.is_symlink():
            raise bad_input(f"output_dir={config.output_dir}: {parent} is no folder")
    check_folder("output_dir", Path(config.output_dir).expanduser())
    if not config.model.path:
        return
    source = Path(config.model.path).expanduser().resolve()
    output, place = Path(config.output_dir).expanduser().resolve(), folder.resolve()
    if output == source or source.is_relative_to(place):
        raise bad_input(
            f"output_dir={config.output_dir}: is the folder of the source model, {source}; choose "
            "another"
        )


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Locks the folder for this run; another run that wants it fails at once.

    The system drops the lock of a dead process. The file is removed while the lock is held;
    FileLock refuses a file that was removed between its opening and its locking.
    """
    file = folder.with_name(f".{folder.name}.lock")
    with ExitStack() as stack:
        with writing(folder):
            stack.enter_context(new_folder(folder.parent))
            lock = FileLock(file, timeout=0)
            try:
                lock.acquire()
                write_holder(file)
            except Timeout as error:
                raise environment_failure(
                    f"{folder}: another run{holder(file)} is writing it (it holds {file})"
                ) from error
        try:
            recover(folder)
            yield
        finally:
            file.unlink(missing_ok=True)
            lock.release()


@contextmanager
def published_atomically(folder: Path, replace: bool = False) -> Iterator[Path]:
    """A temporary folder to fill; it becomes `folder` only if the block succeeds."""
    with writing(folder), write_whole(folder) as unfinished:
        unfinished.mkdir()
        yield unfinished
        check_free(folder, replace)  # again: hours may have passed
