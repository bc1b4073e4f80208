"""No key of DeepSpeed's is overlooked: its own code says which there are, and its defaults."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_mem_calculator.runfile.keys.keys import defaults
from gpu_mem_calculator.runfile.text.errors import InputError
from gpu_mem_calculator.tools.deepspeed import keys
from gpu_mem_calculator.tools.deepspeed.optimizer import OTHERS, PARAMS, SCHEDULES
from gpu_mem_calculator.tools.deepspeed.read import read
from gpu_mem_calculator.training.engines.deepspeed.options import OPTIONS

pytest.importorskip("deepspeed")
RANKS = 8


def of_deepspeed(name: str) -> Any:
    """A module of DeepSpeed's, whose imports warn of what is not there."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return import_module(f"deepspeed.{name}")


class Seen(dict[str, Any]):
    """A section that records which keys DeepSpeed reads."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.asked: set[str] = set()

    def __contains__(self, key: object) -> bool:
        self.asked.add(str(key))
        return super().__contains__(key)

    def __getitem__(self, key: str) -> Any:
        self.asked.add(key)
        return super().__getitem__(key)

    def get(self, key: str, default: Any = None) -> Any:
        """As a dict does."""
        self.asked.add(key)
        return super().get(key, default)

    def keys(self) -> Any:
        """The section itself, so that lookups in its keys are recorded as well."""
        return self


class World:
    """Eight ranks, for DeepSpeed's configuration."""

    @staticmethod
    def get_rank() -> int:
        """The first."""
        return 0

    @staticmethod
    def get_world_size(group: Any = None) -> int:
        """All of them."""
        return RANKS


@pytest.fixture(scope="module")
def configuration() -> Iterator[Any]:
    """DeepSpeed's own reader, for eight ranks."""
    module = of_deepspeed("runtime.config")
    before, module.dist = module.dist, World
    yield module.DeepSpeedConfig
    module.dist = before


def fields(name: str, kind: str) -> dict[str, Any]:
    """The keys of one of DeepSpeed's pydantic models, with their defaults; aliases too."""
    found: dict[str, Any] = {}
    for key, field in getattr(of_deepspeed(name), kind).model_fields.items():
        found |= {
            word: field.get_default(call_default_factory=True)
            for word in (key, field.alias)
            if word
        }
    return found


def test_every_key_that_deepspeed_asks_for(configuration: Any) -> None:
    """Its own code is run on a file that remembers."""
    file = Seen({"train_batch_size": RANKS})
    configuration(file)
    assert "zero_optimization" in file.asked
    assert {"bf16", "wall_clock_breakdown", "timers", "elasticity"} <= file.asked
    assert file.asked - set(keys.TOP) == set()
    sections = {
        "data_types": keys.TABLES["data_types"],
        "activation_checkpointing": keys.TABLES["activation_checkpointing"],
        "aio": keys.TABLES["aio"],
    }
    for name, table in sections.items():
        inner = Seen()
        configuration({"train_batch_size": RANKS, name: inner})
        assert inner.asked, name
        assert inner.asked - set(table) == set(), name


def test_no_key_is_made_up(configuration: Any) -> None:
    """Each of ours is one that DeepSpeed asks for, or a reader of another release does."""
    file = Seen({"train_batch_size": RANKS, "zero_optimization": True})
    configuration(file)
    assert set(keys.TOP) - file.asked == {"sequence_parallel_size", "bfloat16"} - file.asked


MODELS = [
    ("runtime.zero.config", "DeepSpeedZeroConfig", keys.TABLES["zero_optimization"]),
    (
        "runtime.zero.offload_config",
        "DeepSpeedZeroOffloadParamConfig",
        keys.TABLES["offload_param"],
    ),
    (
        "runtime.zero.offload_config",
        "DeepSpeedZeroOffloadOptimizerConfig",
        keys.TABLES["offload_optimizer"],
    ),
    ("runtime.precision_config", "DeepSpeedFP16Config", keys.TABLES["fp16"]),
    ("runtime.precision_config", "DeepSpeedBF16Config", keys.TABLES["bf16"]),
]


@pytest.mark.parametrize(("module", "kind", "table"), MODELS)
def test_every_field_of_a_section(module: str, kind: str, table: keys.Table) -> None:
    """By its name and by its alias; and what is refused is refused above DeepSpeed's default."""
    found = fields(module, kind)
    gone = {key for key, rule in table.items() if isinstance(rule, keys.RemovedKey)}
    assert set(table) - gone == set(found)
    for key, rule in table.items():
        if not isinstance(rule, keys.FixedKey) or key == "leaf_module":
            continue
        if rule.values:
            assert found[key] in rule.values, key
        else:
            assert found[key] is None, key


def test_keys_that_deepspeed_refuses_are_gone() -> None:
    """And no others."""
    module = of_deepspeed("runtime.config")
    for table, removed in (
        (keys.TOP, module._REMOVED_TOP_LEVEL_CONFIG_KEYS),
        (keys.TABLES["zero_optimization"], module._REMOVED_ZERO_CONFIG_KEYS),
    ):
        assert {key for key, rule in table.items() if isinstance(rule, keys.RemovedKey)} == set(
            removed
        )


@pytest.mark.parametrize(
    ("name", "module", "kind"),
    [
        ("tensorboard", "monitor.config", "TensorBoardConfig"),
        ("wandb", "monitor.config", "WandbConfig"),
        ("csv_monitor", "monitor.config", "CSVConfig"),
        ("comet", "monitor.config", "CometConfig"),
        ("comms_logger", "comm.config", "CommsLoggerConfig"),
    ],
)
def test_sections_that_take_no_memory(name: str, module: str, kind: str) -> None:
    """Their keys are DeepSpeed's."""
    rule = keys.TOP[name]
    assert isinstance(rule, keys.MemoryFreeKey)
    assert set(rule.keys or ()) == set(fields(module, kind))


def test_the_flops_profiler_and_checkpoints() -> None:
    """Sections that DeepSpeed reads without a model of them."""
    profiler, checkpoint = keys.TOP["flops_profiler"], keys.TOP["checkpoint"]
    assert isinstance(profiler, keys.MemoryFreeKey)
    assert isinstance(checkpoint, keys.MemoryFreeKey)
    seen = Seen()
    of_deepspeed("profiling.config").DeepSpeedFlopsProfilerConfig({"flops_profiler": seen})
    assert set(profiler.keys or ()) == seen.asked
    names = of_deepspeed("runtime.model_checkpointing.constants")
    more = of_deepspeed("runtime.constants")
    assert set(checkpoint.keys or ()) == {
        names.CHECKPOINT_TAG_VALIDATION,
        names.CHECKPOINT_SERIALIZATION,
        names.CHECKPOINT_WRITER,
        more.LOAD_UNIVERSAL_CHECKPOINT,
        more.USE_NODE_LOCAL_STORAGE_CHECKPOINT,
        more.CHECKPOINT_PARALLEL_WRITE,
    }


def test_pipelines_have_deepspeed_s_keys_and_defaults() -> None:
    """`use_reentrant` is read by the pipeline engine alone."""
    found = of_deepspeed("runtime.config").get_pipeline_config({})
    assert set(keys.TABLES["pipeline"]) == {*found, "use_reentrant"}
    interval = keys.TABLES["pipeline"]["activation_checkpoint_interval"]
    assert isinstance(interval, keys.FixedKey)
    assert found["activation_checkpoint_interval"] in interval.values


def test_the_defaults_of_the_engine_are_deepspeed_s() -> None:
    """A key that a file leaves out takes the same value here and there."""
    zero = fields("runtime.zero.config", "DeepSpeedZeroConfig")
    same = [key for key in OPTIONS if key in zero and not key.startswith("offload")]
    assert len(same) > 8
    assert {key: OPTIONS[key] for key in same} == {key: zero[key] for key in same}
    for kind in ("Param", "Optimizer"):
        name = f"DeepSpeedZeroOffload{kind}Config"
        found = fields("runtime.zero.offload_config", name)
        assert found["pin_memory"] == OPTIONS["pin_memory"]
        start = f"offload_{kind.lower()}."
        nvme = {path: n for path, n in keys.NVME.items() if path.startswith(start)}
        assert nvme == {path: found[path.removeprefix(start)] for path in nvme}
    clipping = of_deepspeed("runtime.constants").GRADIENT_CLIPPING_DEFAULT
    assert clipping == defaults()["training.gradient_clipping"]


def test_every_optimizer_has_an_answer() -> None:
    """DeepSpeed's names are read or refused with a reason of their own."""
    for name in of_deepspeed("runtime.config").DEEPSPEED_OPTIMIZERS:
        assert name in PARAMS or name in OTHERS, name


def test_schedules_are_deepspeed_s() -> None:
    """With the arguments of their constructors."""
    import inspect

    module = of_deepspeed("runtime.lr_schedules")
    assert set(SCHEDULES) == set(module.VALID_LR_SCHEDULES)
    for name, known in SCHEDULES.items():
        arguments = inspect.signature(getattr(module, name).__init__).parameters
        assert set(known) == set(arguments) - {"self", "optimizer"}, name


SIZES = st.one_of(st.none(), st.integers(1, 70))


@given(train=st.one_of(st.none(), st.integers(1, 300)), micro=SIZES, steps=SIZES)
def test_batch_sizes_are_deepspeed_s_own(
    configuration: Any, train: int | None, micro: int | None, steps: int | None
) -> None:
    """Completed to the same numbers, and refused where DeepSpeed refuses them."""
    names = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
    data: Mapping[str, int] = {
        name: value
        for name, value in zip(names, (train, micro, steps), strict=True)
        if value is not None
    }
    try:
        theirs = configuration(dict(data))
    except AssertionError:
        with pytest.raises(InputError):
            read(data, num_gpus=RANKS)
        return
    ours = read(data, num_gpus=RANKS)["training"]
    assert ours["batch_size"] == theirs.train_micro_batch_size_per_gpu
    assert ours["gradient_accumulation_steps"] == theirs.gradient_accumulation_steps
