"""Faster, slower, or no significant difference."""

from pathlib import Path
from typing import Any

from evaluate.results.results_file import append
from tests.conftest import Run
from tests.evaluate.made_rows import speed_row


def write(
    path: Path,
    checkpoint: str,
    latencies: list[float],
    outputs: int = 32,
    facts: dict[str, Any] | None = None,
    others: float | None = None,
    **options: str,
) -> None:
    for repeat, latency in enumerate(latencies):
        facts = {"device": "cpu", "quantization_sha256": checkpoint} | (facts or {})
        facts["engine_options"] = options
        key = f"{checkpoint} {facts} {outputs}"
        row = speed_row(
            model="tiny",
            checkpoint=checkpoint,
            repeat=repeat,
            key=key,
            values={"latency_s": latency, "ttft_last_s": latency / 2}
            | ({"cpu_others_share": others} if others is not None else {}),
            settings={"output_tokens": outputs},
            environment=facts,
        )
        append(path, row)


def test_two_files(command_here: Run, tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", "original", [1.0, 1.01, 0.99])
    write(tmp_path / "b.jsonl", "original", [0.5, 0.51, 0.49])
    result = command_here("evaluate.compare", "results=[a.jsonl,b.jsonl]")
    assert result.returncode == 0, result.stderr
    assert "faster" in result.stdout
    assert "2.00" in result.stdout
    assert "each setup was started once" in result.stderr
    assert "differ in" not in result.stderr
    back = command_here("evaluate.compare", "results=[b.jsonl,a.jsonl]").stdout
    assert "slower" in back


def test_other_processes_on_the_cores_are_said(command_here: Run, tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", "original", [1.0, 1.01, 0.99], others=0.02)
    write(tmp_path / "b.jsonl", "original", [1.5, 1.51, 1.49], others=0.46)
    write(tmp_path / "c.jsonl", "original", [1.5, 1.51, 1.49], others=0.03)
    said = command_here("evaluate.compare", "results=[a.jsonl,b.jsonl]").stderr
    assert "other processes took 2% under a.jsonl and 46% under b.jsonl: a difference" in said
    write(tmp_path / "old.jsonl", "original", [1.0, 1.01, 0.99])
    said = command_here("evaluate.compare", "results=[old.jsonl,b.jsonl]").stderr
    assert "took an unknown share under old.jsonl and 46% under b.jsonl" in said
    assert "other processes" not in command_here(
        "evaluate.compare", "results=[a.jsonl,c.jsonl]"
    ).stderr  # fmt: skip


def test_what_else_differs_between_two_files_is_said(command_here: Run, tmp_path: Path) -> None:
    for folder, version, made_up in (("old", "0.25.1", {}), ("new", "0.26.0", {"made_up": 1})):
        facts = {"versions": {"vllm": version}, "weights": "random"} | made_up
        (tmp_path / "runs" / folder).mkdir(parents=True)
        write(tmp_path / "runs" / folder / "a.jsonl", "original", [1.0, 1.01, 0.99], facts=facts)
    result = command_here("evaluate.compare", "results=[runs/old/a.jsonl,runs/new/a.jsonl]")
    assert "old and new differ in vllm: 0.25.1 and 0.26.0" in result.stderr
    assert "old and new differ in the format of made-up weights: 0 and 1" in result.stderr
    assert "device" not in result.stderr


def test_what_starts_differ_by_is_no_difference(command_here: Run, tmp_path: Path) -> None:
    """Two recipes that are the same to the engine lie 2 % apart: 3 % more is not significant."""
    twins = {"quantization_sha256": "w8a8"}
    for name, factor in (("before", 1.0), ("after", 1.03)):
        path = tmp_path / f"{name}.jsonl"
        for checkpoint, start in (("w8a8_gptq", 1.0), ("w8a8_ptq", 1.02)):
            latencies = [factor * start * latency for latency in (1.0, 1.001, 0.999)]
            write(path, checkpoint, latencies, facts=twins)
    result = command_here("evaluate.compare", "results=[before.jsonl,after.jsonl]")
    assert "differs by 1.4% from start to start" in result.stderr
    assert "4 starts" in result.stderr
    assert result.stdout.count("no significant difference") == 2


def test_two_checkpoints_and_settings(command_here: Run, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    write(path, "original", [1.0, 1.1, 0.95])
    write(path, "w8", [1.02, 1.08, 0.97])
    write(path, "w4", [0.5, 0.5, 0.5])
    write(path, "w4", [0.7, 0.7, 0.7], linear_backend="marlin")
    same = command_here("evaluate.compare", "results=[a.jsonl]", "checkpoints=[original,w8]")
    assert "no significant difference" in same.stdout
    backends = "checkpoints=[w4,'w4 linear_backend=marlin']"
    slower = command_here("evaluate.compare", "results=[a.jsonl]", backends).stdout
    assert "slower" in slower
    assert "0.714" in slower


def test_other_loads_are_not_compared(command_here: Run, tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", "original", [1.0, 1.0])
    write(tmp_path / "b.jsonl", "original", [3.0, 3.0], outputs=200)
    result = command_here("evaluate.compare", "results=[a.jsonl,b.jsonl]")
    assert result.returncode == 2
    assert "under another workload" in result.stderr


def test_a_file_with_more_settings_still_pairs(command_here: Run, tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", "w4", [1.0, 1.0])
    write(tmp_path / "b.jsonl", "w4", [0.5, 0.5])
    write(tmp_path / "b.jsonl", "w4", [2.0, 2.0], linear_backend="marlin")
    result = command_here("evaluate.compare", "results=[a.jsonl,b.jsonl]")
    assert result.returncode == 0, result.stderr
    assert "faster" in result.stdout
    assert "slower" not in result.stdout


def test_a_misspelt_value_is_named(command_here: Run, tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", "original", [1.0, 1.0])
    write(tmp_path / "a.jsonl", "w8", [0.5, 0.5])
    options = ["results=[a.jsonl]", "checkpoints=[original,w8]"]
    result = command_here("evaluate.compare", *options, "value=ttft_lst_s")
    assert result.returncode == 2
    assert "Did you mean ttft_last_s" in result.stderr
    assert "2.000" in command_here("evaluate.compare", *options, "value=ttft_last_s").stdout


def test_runs_that_say_too_little(command_here: Run, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    write(path, "original", [1.0, 1.0])
    write(path, "once", [0.1])
    write(path, "wild", [1.0, 3.0])
    for name, words in (("once", "fewer than two valid runs"), ("wild", "too much spread")):
        options = ["results=[a.jsonl]", f"checkpoints=[original,{name}]"]
        assert words in command_here("evaluate.compare", *options).stdout


def test_nothing_to_compare(command_here: Run, tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", "original", [1.0])
    missing = command_here("evaluate.compare", "results=[a.jsonl,none.jsonl]")
    assert missing.returncode == 2
    assert "none.jsonl: there is no such file" in missing.stderr
    folder = command_here("evaluate.compare", "results=[a.jsonl,.]")
    assert folder.returncode == 2
    assert "results=.: is a folder; give the name of a file in it" in folder.stderr
    one = command_here("evaluate.compare", "results=[a.jsonl]")
    assert one.returncode == 2
    (tmp_path / "empty.jsonl").touch()
    empty = command_here("evaluate.compare", "results=[a.jsonl,empty.jsonl]")
    assert empty.returncode == 2
    assert "empty.jsonl: there are no timed runs in it" in empty.stderr
    unknown = command_here("evaluate.compare", "results=[a.jsonl]", "checkpoints=[original,w9]")
    assert unknown.returncode == 2
    assert "there is no 'w9'. Known: original" in unknown.stderr


def test_another_model_is_no_pair(command_here: Run, tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", "original", [1.0, 1.0])
    write(tmp_path / "b.jsonl", "original", [2.0, 2.0])
    other = (tmp_path / "b.jsonl").read_text().replace('"tiny"', '"large"')
    (tmp_path / "b.jsonl").write_text(other)
    result = command_here("evaluate.compare", "results=[a.jsonl,b.jsonl]")
    assert result.returncode == 2
    assert "have no workload in common" in result.stderr


def test_cells_are_paired_by_their_options_whatever_else_a_file_holds(
    command_here: Run, tmp_path: Path
) -> None:
    write(tmp_path / "a.jsonl", "w4", [1.0, 1.0], max_model_len="32768")
    write(tmp_path / "a.jsonl", "w4", [5.0, 5.0], facts={"engine": "transformers"}, dtype="auto")
    write(tmp_path / "b.jsonl", "w4", [0.5, 0.5], max_model_len="32768")
    result = command_here("evaluate.compare", "results=[a.jsonl,b.jsonl]")
    assert result.stdout.count("faster") == 1
    assert "2.000" in result.stdout


def test_a_file_that_is_given_twice_shows_no_noise(command_here: Run, tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", "original", [1.0, 1.0])
    write(tmp_path / "a.jsonl", "w8", [0.5, 0.5])
    options = ["results=[a.jsonl,a.jsonl]", "checkpoints=[original,w8]"]
    result = command_here("evaluate.compare", *options)
    assert "2.000" in result.stdout
    assert result.stdout.count("faster") == 1
    assert "each setup was started once" in result.stderr


def test_a_load_without_twins_and_another_value_have_a_margin_of_their_own(
    command_here: Run, tmp_path: Path
) -> None:
    """Twins under one load, 2 % apart: under the other, 3 % more is not significant either."""
    path = tmp_path / "a.jsonl"
    twins = {"quantization_sha256": "w8a8"}
    steady = (1.0, 1.0001, 0.9999)
    write(path, "gptq", [*steady], facts=twins)
    write(path, "ptq", [1.02 * latency for latency in steady], facts=twins)
    write(path, "original", [1.3 * latency for latency in steady], 64)
    write(path, "fp8", [1.34 * latency for latency in steady], 64)
    for value in ("latency_s", "ttft_last_s"):
        options = ["results=[a.jsonl]", "checkpoints=[original,fp8]", f"value={value}"]
        result = command_here("evaluate.compare", *options)
        assert "2 starts" in result.stderr
        assert "no significant difference" in result.stdout


def test_a_line_that_cannot_be_read_is_left_out_and_ends_with_2(
    command_here: Run, tmp_path: Path
) -> None:
    for name, latency in (("a", 1.0), ("b", 1.001)):
        write(tmp_path / f"{name}.jsonl", "original", [latency, latency])
    with (tmp_path / "b.jsonl").open("a") as file:
        file.write("{cut short\n")
    result = command_here("evaluate.compare", "results=[a.jsonl,b.jsonl]")
    assert result.returncode == 2
    assert "no significant difference" in result.stdout
    assert "1 lines were left out, the first: b.jsonl:" in result.stderr


def test_the_kernels_of_each_side_are_named(command_here: Run, tmp_path: Path) -> None:
    layers = [
        {
            "kind": "int8",
            "rows": rows,
            "columns": 8,
            "ranges": [
                {"up_to": few, "product": "few_tokens_int8"},
                {"up_to": None, "product": "cutlass_int8"},
            ],
        }
        for rows, few in ((8, 16), (16, 8))
    ]
    sides: dict[str, dict[str, Any]] = {
        "vllm": {"kernels": {"scheme": "CutlassInt8ScaledMMLinearKernel"}},
        "auto": {"kernels": {"scheme": "QuantlineInt8LinearKernel"}, "layer_kernels": layers},
    }
    for name, ran in sides.items():
        options = {"kernels": "auto"} if name == "auto" else {}
        facts = {"engine": "vllm", "engine_options": options}
        for checkpoint in ("original", "w8a8"):
            for repeat, latency in enumerate((1.0, 1.01, 0.99)):
                row = speed_row(
                    model="tiny",
                    checkpoint=checkpoint,
                    repeat=repeat,
                    key=f"{checkpoint} {name}",
                    values={"latency_s": latency},
                    settings={"output_tokens": 8},
                    environment=facts | ({"kernels_version": 2} if options else {}),
                    **(ran if checkpoint == "w8a8" else {}),
                )
                append(tmp_path / f"{name}.jsonl", row)
    said = command_here("evaluate.compare", "results=[vllm.jsonl,auto.jsonl]").stderr
    assert (
        "w8a8: vllm.jsonl on CutlassInt8ScaledMM; "
        "auto.jsonl on QuantlineInt8 (few_tokens_int8, cutlass_int8)"
    ) in said
    assert "differ in kernels: vllm and auto" in said
    assert "differ in the version of our kernels: none and 2" in said
    assert "original: " not in said
