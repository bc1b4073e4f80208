"""The reference calculator's fields of a server, as each engine's options.

A field that is not modelled, or belongs to another engine, is dropped where its value asks for
nothing and refused otherwise. Its page sends every field; a field at the page's default asks for
nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
from msgspec import Struct

from ..runfile.inference_config import InferenceConfig
from ..runfile.text.errors import InputError, quoted
from ..serving import server, spellings
from .compat_bodies import among, from_reference

DEFAULT_ENGINE = "transformers"  # the reference calculator's, where a body names none
EXAMPLE = '{"model": {"name": "llama2-7b"}, "inference": {"engine_type": "vllm"}}'
PLAIN_QUANTIZATION = {"awq": "awq", "gptq": "gptq_int4", "fp8": "fp8"}


class ReferenceField(Struct, frozen=True):
    """One of its fields.

    - `key`: our key, "" where the field is not modelled
    - `nothing`: its library's default, which asks for nothing
    - `untouched`: its page's default
    - `words`: its values -> ours, where they differ
    """

    key: str = ""
    nothing: Any = None
    untouched: Any = None
    words: Mapping[str, str] | None = None


# Fields of every engine.
COMMON_FIELDS = {
    "batch_size": ReferenceField("batch_size"),
    "max_seq_len": ReferenceField("max_seq_len"),
    "tensor_parallel_size": ReferenceField("tensor_parallel_size"),
    "gpu_memory_utilization": ReferenceField("gpu_memory_utilization"),
    "kv_cache_quantization": ReferenceField(
        "kv_cache_dtype", "none", words={"int8": "int8", "fp8": "fp8", "int4": "int4"}
    ),
    "use_kv_cache": ReferenceField(nothing=True),
    "enable_streaming": ReferenceField(nothing=False),
}
# Fields of one engine.
ENGINE_FIELDS: Mapping[str, Mapping[str, ReferenceField]] = {
    "transformers": {"gpu_memory_utilization": ReferenceField(nothing=0.9)},
    "tgi": {
        "max_total_tokens": ReferenceField("max_total_tokens", untouched=4096),
        "max_input_tokens": ReferenceField("max_input_tokens", untouched=2048),
        "max_batch_total_tokens": ReferenceField(untouched=8192),
        "tgi_quantize": ReferenceField(
            "quantization",
            "none",
            words={**PLAIN_QUANTIZATION, "eetq": "int8", "bitsandbytes-nf4": "nf4"},
        ),
        "tgi_dtype": ReferenceField("dtype", "bfloat16", words={"float16": "fp16"}),
        "sharded": ReferenceField("sharded", False),
        "num_shard": ReferenceField("num_shard", untouched=1),
    },
    "vllm": {
        "block_size": ReferenceField("block_size", untouched=16),
        "swap_space_gb": ReferenceField("swap_space", 0),
        "enable_prefix_caching": ReferenceField("enable_prefix_caching", False),
        "enforce_eager": ReferenceField("enforce_eager", False),
        "max_num_batched_tokens": ReferenceField("max_num_batched_tokens"),
        "max_num_seqs": ReferenceField("max_num_seqs"),
        "vllm_quantization": ReferenceField("quantization", "none", words=PLAIN_QUANTIZATION),
    },
    "tensorrt_llm": {
        "trt_max_batch_size": ReferenceField("max_num_seqs", untouched=2048),
        "trt_max_input_len": ReferenceField(untouched=1024),
        "trt_max_seq_len": ReferenceField("max_seq_len", untouched=2048),
        "trt_max_beam_width": ReferenceField("max_beam_width", untouched=1),
    },
    "sglang": {
        "chunk_size": ReferenceField("chunked_prefill_size", untouched=8192),
        "max_running_requests": ReferenceField("max_num_seqs", untouched=128),
        "disable_radix_cache": ReferenceField("disable_radix_cache", False),
        "enable_p2p": ReferenceField(nothing=False),
        "disable_custom_all_reduce": ReferenceField(nothing=False),
        "attention_backend": ReferenceField(nothing="flashinfer"),
        "enable_torch_compile": ReferenceField(nothing=False),
        "radix_cache_max_seq_len": ReferenceField(untouched=8192),
        "speculative_algo": ReferenceField(nothing="default"),
        "multi_lora_enabled": ReferenceField(nothing=False),
    },
}
FIELD_OWNERS = {
    key: (field, name) for name, fields in ENGINE_FIELDS.items() for key, field in fields.items()
}
# A body with one field of each engine is the page's whole form.
FORM = frozenset({"tgi_quantize", "vllm_quantization", "trt_max_batch_size", "chunk_size"})


def inference_run(body: Any) -> tuple[Any, list[str]]:
    """The run file of its body, and the fields that were left out."""
    run = from_reference(body)
    if not isinstance(run, Mapping) or not isinstance(run.get("inference"), Mapping):
        what = 'an object with "model" and "inference"'
        raise InputError(f"the body must be {what}, such as {EXAMPLE}")
    fields = dict(run["inference"])
    names = [fields.pop(key, None) for key in ("engine_type", "engine")]
    name = next((one for one in names if one is not None), DEFAULT_ENGINE)
    engine = spellings().get(str(name).lower())
    if engine is None:  # reading the run file refuses it, with the nearest name
        return {**run, "inference": {"engine": name}}, []
    reading = ReferenceReading(engine=engine, whole=fields.keys() >= FORM)
    if None not in names and names[0] != names[1]:
        reading.problems.append(
            f"inference.engine_type={names[0]!r} and engine={names[1]!r} are "
            "the same thing; leave one out"
        )
    for key, value in fields.items():
        reading.take(key, value)
    hardware = run.get("hardware")
    gpus = hardware.get("num_gpus") if isinstance(hardware, Mapping) else None
    reading.problems.extend(_apply_shards(reading.section, gpus or 1))
    if reading.problems:
        raise InputError(reading.problems)
    return {**run, "inference": {"engine": engine, **reading.section}}, reading.left_out


class ReferenceReading(Struct, kw_only=True):
    """Reads its fields one by one.

    - `whole`: the body has every field of the page
    - `section`: the inference section of the run file
    - `left_out`: fields at the page's defaults that are not modelled
    - `problems`: a sentence for each field that is refused
    """

    engine: str
    whole: bool
    section: dict[str, Any] = msgspec.field(default_factory=dict)
    left_out: list[str] = msgspec.field(default_factory=list)
    problems: list[str] = msgspec.field(default_factory=list)

    def take(self, key: str, value: Any) -> None:
        """Read one field; None asks for nothing."""
        fields = {**COMMON_FIELDS, **ENGINE_FIELDS.get(self.engine, {})}
        if value is None:
            return
        if key in fields:
            self._take_own(key, value, fields[key])
        elif key in FIELD_OWNERS:
            self._take_foreign(key, value, *FIELD_OWNERS[key])
        else:
            self._put(key, key, value)  # one of our keys; else reading the run file refuses it

    def _take_own(self, key: str, value: Any, field: ReferenceField) -> None:
        title = server(self.engine).title
        if field.key and field.words is None:
            self._put(key, field.key, value)
        elif among(value, (field.nothing,)):
            return
        elif field.words is not None and isinstance(value, str) and value in field.words:
            self._put(key, field.key, field.words[value])
        elif field.words is not None:
            known = ", ".join((str(field.nothing), *field.words))
            self._refuse(key, value, f"is not modelled for {title}; use one of {known}")
        elif self.whole and among(value, (field.untouched,)):
            self.left_out.append(f"inference.{key}")
        else:
            self._refuse(key, value, f"is not modelled for {title}; leave it out")

    def _take_foreign(self, key: str, value: Any, field: ReferenceField, whose: str) -> None:
        """Read another engine's field: one of our keys has the same name, or it is refused."""
        untouched = self.whole and among(value, (field.untouched,))
        if untouched or among(value, (field.nothing,)):
            return
        if key in InferenceConfig.__struct_fields__:
            self._put(key, key, value)
            return
        titles = f"{server(whose).title}, not for {server(self.engine).title}"
        self._refuse(key, value, f"is for {titles}; leave it out")

    def _refuse(self, key: str, value: Any, why: str) -> None:
        self.problems.append(f"inference.{key}={quoted(value)} {why}")

    def _put(self, key: str, ours: str, value: Any) -> None:
        """Set our key; refuse a second value for it."""
        if self.section.get(ours, value) != value:
            there = f"is {ours}, which is there with {quoted(self.section[ours])}"
            self._refuse(key, value, f"{there}; leave one out")
        self.section[ours] = value


def _apply_shards(section: dict[str, Any], gpus: Any) -> Iterator[str]:
    """Set tensor_parallel_size from TGI's shards: a number, or all `gpus`; yields the problems."""
    sharded, shards = section.pop("sharded", False), section.pop("num_shard", 1)
    if not isinstance(sharded, bool):
        yield f"inference.sharded={sharded!r} must be true or false"
        return
    if isinstance(shards, bool) or not isinstance(shards, int | float):
        yield f"inference.num_shard={shards!r} must be a whole number, 1 or more"
        return
    ranks = section.get("tensor_parallel_size") or 1
    wanted = gpus if sharded is True and shards == 1 else shards
    if ranks == 1 and wanted != 1:
        section["tensor_parallel_size"] = wanted
    elif wanted not in (1, ranks):
        there = f"is tensor_parallel_size, which is there with {ranks!r}"
        yield f"inference.num_shard={wanted!r} {there}; leave one out"
