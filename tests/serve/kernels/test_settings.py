"""What vLLM's additional_config says about our kernels, and how rows record it."""

import pytest

from conf.errors import QuantlineError
from conf.schema.kernels import AUTOMATIC, KernelsConfig
from conf.schema.load import EngineConfig, ScenarioConfig
from evaluate.measure.environment import cell_key
from evaluate.results.row_types import Environment
from serve.engine import launch
from serve.kernels.settings import Settings, of_recorded, read_settings, recorded, with_kernels


@pytest.fixture
def on_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "on_cpu", lambda: False)


CHOICES = [
    KernelsConfig(),
    KernelsConfig(["auto"]),
    KernelsConfig(["vllm"]),
    KernelsConfig(["sparse"]),
    KernelsConfig(["one_token", "w4afp8"], second_layout=False),
    KernelsConfig(["auto"], second_layout=True),
]


@pytest.mark.parametrize("kernels", CHOICES)
def test_what_is_written_is_read(kernels: KernelsConfig) -> None:
    options = with_kernels({"dtype": "auto"}, kernels)
    assert read_settings(options["additional_config"]) == Settings.of(kernels)


@pytest.mark.parametrize("kernels", CHOICES)
def test_what_a_row_records_is_read(kernels: KernelsConfig) -> None:
    options = recorded(with_kernels({"dtype": "auto"}, kernels))
    assert "additional_config" not in options
    assert Settings.of(of_recorded(options)).families == Settings.of(kernels).families
    if kernels.chosen:
        assert of_recorded(options).second_layout == kernels.second_layout


def test_rows_tell_auto_from_vllm_and_old_rows_are_vllm() -> None:
    old = {"dtype": "auto"}
    assert recorded(with_kernels(old, KernelsConfig(["vllm"]))) == old
    assert recorded(with_kernels(old, KernelsConfig(["auto"]))) == old | {"kernels": "auto"}
    assert recorded(old) == old
    assert of_recorded(old).chosen == ()


def test_keys_of_rows_tell_kernels_and_their_versions_apart() -> None:
    def key(**fields: object) -> str:
        environment = Environment(device="NVIDIA H200", engine="vllm").with_fields(**fields)
        scenario = ScenarioConfig(1, 1, batch=1).identity()
        return cell_key(environment, ("c", "s"), "0", scenario)

    options = {"engine_options": {"kernels": "auto"}}
    keys = [key(), key(**options, kernels_version=1), key(**options, kernels_version=2)]
    assert len(set(keys)) == 3
    assert keys[0] == "cc3997b55e9a94bf", "rows from before our kernels keep their keys"


def test_the_users_additional_config_stays(on_gpu: None) -> None:
    given = {"additional_config": {"theirs": 1}}
    engine = EngineConfig(options=given, kernels=KernelsConfig(["auto"]))
    options = launch.options(engine)
    assert options["additional_config"]["theirs"] == 1
    assert read_settings(options["additional_config"]).families == AUTOMATIC
    assert engine.options == {"additional_config": {"theirs": 1}}
    assert recorded(options)["additional_config"] == {"theirs": 1}


def test_the_users_own_entry_is_refused(on_gpu: None) -> None:
    engine = EngineConfig(options={"additional_config": {"quantline": {"kernels": "vllm"}}})
    with pytest.raises(QuantlineError, match=r"give engine\.kernels= instead"):
        launch.options(engine)


def test_nothing_changes_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "on_cpu", lambda: True)
    assert "additional_config" not in launch.options(EngineConfig())


def test_vllm_alone_uses_ours_unless_told() -> None:
    assert read_settings({}) == Settings()
    assert read_settings({"quantline": {"kernels": "auto"}}) == Settings()
    assert read_settings({"quantline": {"kernels": "vllm"}}).families == ()


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("vllm", "must be an object"),
        ({"kernel": "vllm"}, "Did you mean kernels?"),
        ({"kernels": "vlm"}, "Did you mean vllm?"),
        ({"kernels": ["auto", "sparse"]}, "auto stands alone"),
        ({"second_layout": "no"}, "neither true nor false"),
    ],
)
def test_an_invalid_entry(entry: object, message: str) -> None:
    with pytest.raises(ValueError, match=r"quantline|engine") as error:
        read_settings({"quantline": entry})
    assert message in str(error.value)
