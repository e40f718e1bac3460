"""The check of the load generator: the stand-in server, and the comparison of two tools."""

from dataclasses import replace
from pathlib import Path

import pytest

from conf.errors import QuantlineError
from conf.schema.traffic_check import TrafficCheckConfig
from evaluate.measure.engines.http_client import Server, send_load
from evaluate.measure.metrics import Request
from evaluate.measure.workload import Load, PlannedRequest
from evaluate.traffic_check import vllm_bench
from evaluate.traffic_check.comparing import _server, _written, check_traffic
from evaluate.traffic_check.figures import Figures, figures_of
from evaluate.traffic_check.vllm_bench import bench, write_tokenizer
from serve.engine.client import served_name
from tests.conftest import Run

FAST = TrafficCheckConfig(
    clients=[2, 3], rounds=2, input_tokens=5, output_tokens=4, ttft_ms=2, tpot_ms=1, repeats=2
)
# Stands in for `vllm bench serve`: its clients have a TTFT of as many seconds as there are clients,
# but for the first requests.
BENCH = """
import json, pathlib, sys
options = dict(zip(sys.argv[1::2], sys.argv[2::2]))
count, clients = int(options["--num-prompts"]), int(options["--max-concurrency"])
gaps = [2] * (int(options["--random-output-len"]) - 1)
result = {"completed": count - LOST, "start_times": list(range(count)), "itls": [gaps] * count,
          "ttfts": [99] * clients + [clients] * (count - clients)}
pathlib.Path(options["--result-dir"], options["--result-filename"]).write_text(json.dumps(result))
"""


@pytest.mark.parametrize("in_steps", [False, True])
def test_the_stand_in_answers_as_an_openai_server_and_records_it(in_steps: bool) -> None:
    with _server(replace(FAST, in_steps=in_steps)) as url:
        assert served_name(url) == "paced"
        load = Load([PlannedRequest([1, 2, 3], tokens) for tokens in (1, 5, 9)], at_once=2)
        requests = send_load(Server(url, "paced", {}), load)
        assert [request.error for request in requests] == [""] * 3
        assert [request.output_tokens for request in requests] == [1, 5, 9]
        assert {request.input_tokens for request in requests} == {3}
        assert all(request.ttft > 0 for request in requests)
        assert _written(url, 3).ttft_ms > 0


def test_the_tools_take_turns_and_the_table_has_their_ratios(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    order = []

    def ours(*arguments: object) -> Figures:
        if arguments[-1] >= 0:
            order.append("ours")
        return Figures(101, 10, 1000)

    def theirs(*_: object) -> Figures:
        order.append("theirs")
        return Figures(100, 10, 1020)

    monkeypatch.setattr("evaluate.traffic_check.comparing._send", ours)
    monkeypatch.setattr("evaluate.traffic_check.comparing.bench", theirs)
    monkeypatch.setattr("evaluate.traffic_check.comparing._written", lambda *_: Figures(99, 10, 0))
    check_traffic(FAST)
    assert order == ["ours", "theirs", "theirs", "ours"] * 2
    rows = [line.split(" | ") for line in capsys.readouterr().out.splitlines()[2:]]
    assert [row[0] for row in rows] == ["| 2"] * 3 + ["| 3"] * 3
    assert [row[4] for row in rows[:3]] == ["1.010", "1.000", "0.980"]
    assert rows[0][5:] == ["1.020", "1.010 |"]
    strict = replace(FAST, max_difference=0.015)
    with pytest.raises(
        QuantlineError, match=r"output tokens/s of 3 clients: differs by 2\.0%"
    ) as e:
        check_traffic(strict)
    assert e.value.exit_code == 4


def test_vllm_bench_gets_the_load_and_its_figures_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vllm_bench, "SCRIPT", BENCH.replace("LOST", "0"))
    figures = bench(FAST, "http://127.0.0.1:1", "paced", "tokens", 3, tmp_path)
    # In the two seconds between the starts of its fourth and last request there is no token.
    assert figures == Figures(ttft_ms=3000, tpot_ms=2000, tokens_per_s=0)
    monkeypatch.setattr(vllm_bench, "SCRIPT", BENCH.replace("LOST", "1"))
    with pytest.raises(QuantlineError, match="5 of 6 requests were answered"):
        bench(FAST, "http://127.0.0.1:1", "paced", "tokens", 3, tmp_path)
    monkeypatch.setattr(vllm_bench, "SCRIPT", "raise SystemExit('no such option')")
    (tmp_path / "result.json").unlink()
    with pytest.raises(QuantlineError, match="vllm bench serve failed: no such option"):
        bench(FAST, "http://127.0.0.1:1", "paced", "tokens", 3, tmp_path)


def test_figures_are_those_of_busy_clients() -> None:
    """Two clients of three requests each; the first request of each does not count."""
    starts = (0.0, 0.0, 10.0, 12.0, 20.0, 22.0)
    requests = [Request(5, [start + 4, start + 5, start + 8], start) for start in starts]
    requests[0].token_times = [9.0, 9.5, 10.0]
    # From 10 to 22 s: three tokens of each of two requests, and none of the last two.
    assert figures_of(requests, 2) == Figures(ttft_ms=4000, tpot_ms=2000, tokens_per_s=6 / 12)


def test_vllm_still_has_the_options_and_figures_that_we_use() -> None:
    """From its source: importing it takes longer than all other tests of this file."""
    import importlib.util

    spec = importlib.util.find_spec("vllm")
    assert spec is not None
    assert spec.origin is not None
    folder = Path(spec.origin).parent / "benchmarks"
    serve = (folder / "serve.py").read_text()
    assert "\ndef add_cli_args(" in serve
    assert "\ndef main(args" in serve
    known = serve + "".join(path.read_text() for path in (folder / "datasets").rglob("*.py"))
    for option in (
        *("backend", "base-url", "model", "tokenizer", "dataset-name", "random-input-len"),
        *(
            "random-output-len",
            "num-prompts",
            "max-concurrency",
            "num-warmups",
            "result-dir",
            "result-filename",
        ),
        *("ignore-eos", "save-result", "save-detailed", "disable-tqdm"),
    ):
        assert f'"--{option}"' in known, option
    for figure in ("completed", "start_times", "ttfts", "itls"):
        assert f'"{figure}": ' in serve, figure


def test_the_tokenizer_counts_words(tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    write_tokenizer(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    text = tokenizer.decode([5, 6, 7])
    assert tokenizer(text, add_special_tokens=False).input_ids == [5, 6, 7]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (("clients=[]",), "clients=[]: give numbers"),
        (("clients=[0]",), "must be at least 1"),
        (("url=http://x",), "needs tokenizer=FOLDER"),
        (("tokenizer=/x",), "works only with url=URL"),
        (("url=http://127.0.0.1:9", "tokenizer=/x"), "no server answers there"),
    ],
)
def test_bad_input(command_here: Run, options: tuple[str, ...], expected: str) -> None:
    result = command_here("evaluate.traffic_check", *options)
    assert result.returncode == (3 if "no server" in expected else 2)
    assert expected in result.stderr
    assert len(result.stderr.splitlines()) == 1
