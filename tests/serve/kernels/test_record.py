"""What layers run, from the engine's log to a row."""

import logging
from pathlib import Path

import pytest

from conf.process.messages import decode, encode
from conf.schema.load import EngineConfig
from evaluate.measure.engines import LoadRequest
from evaluate.measure.engines.vllm_log import loaded
from evaluate.measure.events import EngineLoaded
from evaluate.results.results_file import row_of
from evaluate.results.rows import SpeedRow, line_content
from serve.kernels import record, settings
from serve.kernels.record import LayerKernels, TokenRange, note, note_refusal, read_log

SPARSE = LayerKernels(
    kind="int8 sparse",
    rows=24576,
    columns=4096,
    ranges=(TokenRange(16, "sparse_one_token"), TokenRange(None, "cusparselt")),
    refused={"one_token": "is off by 0.3 for 7 tokens"},
    extra_bytes=2**20,
)
DENSE = LayerKernels(kind="int8 sparse", rows=24576, columns=4096)


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> logging.Handler:
    """The lines of an engine, each behind what vLLM writes before it."""
    monkeypatch.setattr(record, "add_to_graph_key", lambda fact: None)
    monkeypatch.setattr(record, "_FIRST", {})
    monkeypatch.setattr(record, "_LOGGED", set())
    caplog.set_level(logging.INFO, "vllm.quantline")
    return caplog.handler


def lines(log: logging.Handler) -> str:
    prefix = "(EngineCore pid=7) INFO 11-16 14:00:00 [record.py:1] "
    return "\n".join(prefix + entry.getMessage() for entry in log.records)  # type: ignore[attr-defined]


def test_layers_of_a_kind_are_logged_once_and_others_by_name(log: logging.Handler) -> None:
    for number in range(3):
        note(SPARSE, f"layers.{number}.up")
    note(DENSE, "layers.3.up")
    note(DENSE, "layers.4.up")
    facts = read_log(lines(log))
    assert facts[0] == SPARSE
    assert [fact.layer for fact in facts] == ["", "layers.3.up", "layers.4.up"]
    assert lines(log).count("int8 sparse 24576x4096") == 3
    assert "sparse_one_token to 16, cusparselt beyond" in lines(log)
    assert "not one_token: is off by 0.3 for 7 tokens" in lines(log)


def test_what_was_refused_before_loading_is_not_the_first_of_its_shape(
    log: logging.Handler,
) -> None:
    refused = LayerKernels("int8 sparse", 24576, 4096, refused={"all": "our kernel is too old"})
    for _ in range(2):
        note_refusal(refused)
    note(SPARSE, "layers.0.up")
    assert read_log(lines(log)) == [refused, SPARSE]
    assert lines(log).count("vLLM; left to vLLM: our kernel is too old") == 1


def test_two_processes_that_log_the_same_are_one_fact(log: logging.Handler) -> None:
    note(SPARSE, "layers.0.up")
    assert read_log(lines(log) + "\n" + lines(log)) == [SPARSE]


def test_an_evaluation_reads_it_from_the_log(log: logging.Handler, tmp_path: Path) -> None:
    note(SPARSE, "layers.0.up")
    path = tmp_path / "engine.log"
    path.write_text(lines(log) + "\nINFO Selected Ours for CompressedTensorsW8A8Int8\n")
    load = LoadRequest(tmp_path, EngineConfig(), context=64, dummy=False, log=path)
    facts = loaded(load)
    assert facts.layer_kernels == [SPARSE]
    assert facts.kernels == {"CompressedTensorsW8A8Int8": "Ours"}
    event = EngineLoaded(kernels=facts.kernels, layer_kernels=facts.layer_kernels)
    assert decode(encode(event), [EngineLoaded]) == event


def test_a_damaged_line_is_left_out(log: logging.Handler) -> None:
    note(SPARSE, "layers.0.up")
    damaged = 'quantline-kernels: {"kind": "int8", "rows": "many"}\nquantline-kernels: {"kind"}\n'
    assert read_log(damaged + lines(log)) == [SPARSE]


@pytest.mark.parametrize(
    "kernels", [SPARSE, DENSE, LayerKernels("int8", 0, 0, refused={"all": "is packed\nodd"})]
)
def test_a_row_holds_it_and_reads_it_back(kernels: LayerKernels) -> None:
    row = SpeedRow(
        model="m", checkpoint="c", measure="s", repeat=0, key="k", layer_kernels=[kernels.content]
    )
    content = line_content(row)
    assert content["layer_kernels"] == [kernels.content]
    assert row_of(content).layer_kernels == row.layer_kernels


def test_a_row_without_it_is_written_as_before() -> None:
    row = SpeedRow(model="m", checkpoint="c", measure="s", repeat=0, key="k")
    assert "layer_kernels" not in line_content(row)


def test_each_layer_changes_the_key_of_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    def key(*facts: str) -> str:
        entries = {"quantline": settings.Settings().entry}
        monkeypatch.setattr(settings, "_current_entries", lambda: entries)
        for fact in facts:
            settings.add_to_graph_key(fact)
        return str(entries)

    keys = {key(), key("a"), key("b"), key("a", "b"), key("b", "a")}
    assert len(keys) == 5
    assert key("a", "b") == key("a", "b")


def test_an_engine_without_our_entry_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    entries = {"theirs": 1}
    monkeypatch.setattr(settings, "_current_entries", lambda: entries)
    settings.add_to_graph_key("a")
    assert entries == {"theirs": 1}
    assert settings.current_settings().families == ()
