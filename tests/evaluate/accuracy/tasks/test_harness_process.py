"""The script in the harness's own interpreter cannot import our messages: both must agree."""

from dataclasses import fields

from evaluate.accuracy.tasks import events, harness_process


def test_the_request_has_the_same_fields_on_both_sides() -> None:
    ours = [field.name for field in fields(events.AskTask)]
    theirs = [field.name for field in fields(harness_process.AskTask)]
    assert ours == theirs


def test_scores_are_the_numbers_of_a_metric_and_filter() -> None:
    results = {
        "alias": "gsm8k",
        "sample_len": 8,
        "acc,none": 0.5,
        "acc_stderr,none": 0.1,
        "exact_match,strict": 1,
        "note,none": "N/A",
    }
    assert harness_process._scores(results) == {"acc,none": 0.5, "exact_match,strict": 1}
