"""One server, every choice made: what was given, and what SGLang fills in."""

from __future__ import annotations

from functools import cached_property

from msgspec import Struct

from ...ledger.units import MIB
from ...model.blocks import Attention, LatentAttention
from ...run.run import Run
from ...weights.shards import ServerShard
from . import speculative
from .defaults import (
    CardMemory,
    chunked_prefill_size,
    cuda_graph_max_bs,
    decode_sizes,
    mem_fraction_static,
    prefill_sizes,
)
from .versions import LATE_EXTRA_LAYERS, PAGED_BLACKWELL, PREFILL_GRAPHS, Version, version

HOPPER, BLACKWELL = ("9.0",), ("10.0", "10.3")
FLASHINFER, FA3, TRTLLM, TRITON = "flashinfer", "fa3", "trtllm", "triton"
VOCAB_MULTIPLE = 64  # srt/layers/vocab_parallel_embedding.py DEFAULT_VOCAB_PADDING_SIZE
EXTRA_CONTEXT = 4  # tokens that a request's row has beyond the context
SPARSE_PAGE = TRTLLM_PAGE = 64


class SglangOptions(Struct, frozen=True, kw_only=True, dict=True):
    """A run with SGLang's names for things."""

    run: Run

    @cached_property
    def version(self) -> Version:
        """Which SGLang."""
        return version(self.run)

    @property
    def tp(self) -> int:
        """Ranks that share a stage."""
        return int(self.run.mesh.tp)

    @cached_property
    def attention_dp(self) -> int:
        """Ranks of a stage that have attention of their own sequences each."""
        return int(self.run.mesh.dp) if self.run.options["enable_dp_attention"] else 1

    @cached_property
    def shard(self) -> ServerShard:
        """This rank's part. The embedding is cut as attention is (vocab_parallel_embedding.py
        get_embedding_tp_kwargs), the head over all ranks.
        """
        run, stage = self.run, int(self.run.stage)
        counts, ep = stage_layers(run), int(run.mesh.ep)
        start, attention_tp = sum(counts[:stage]), self.tp // self.attention_dp
        return ServerShard(
            places=range(start, start + counts[stage]), embedding=stage == 0,
            head=stage == len(counts) - 1, tp=self.tp, attention_tp=attention_tp, ep=ep,
            expert_tp=self.tp // ep, vocab_multiple=VOCAB_MULTIPLE, embedding_tp=attention_tp,
        )  # fmt: skip

    @cached_property
    def latent(self) -> bool:
        """Whether attention keeps latents (MLA)."""
        return any(isinstance(m, LatentAttention) for layer in self.run.arch.layers
                   for m in layer.mixers)  # fmt: skip

    @cached_property
    def sparse(self) -> bool:
        """Whether latents are read through an indexer (DeepSeek-V3.2)."""
        return any(isinstance(m, LatentAttention) and m.index is not None
                   for layer in self.run.arch.layers for m in layer.mixers)  # fmt: skip

    @cached_property
    def backend(self) -> str:
        """The attention kernels: server_args.py _get_default_attn_backend."""
        capability = self.run.compute_capability
        sinks = any(isinstance(m, Attention) and m.sinks for layer in self.run.arch.layers
                    for m in layer.mixers)  # fmt: skip
        if capability in HOPPER and self.version >= (0, 4, 6):
            return FA3
        if capability in BLACKWELL and self.version >= PAGED_BLACKWELL:
            return TRTLLM
        if sinks or (self.latent and capability not in BLACKWELL):
            return TRITON
        return FLASHINFER

    @cached_property
    def page(self) -> int:
        """Tokens of a page."""
        given = self.run.options["page_size"]
        if given is not None:
            return int(given)
        if self.sparse:
            return SPARSE_PAGE
        return TRTLLM_PAGE if self.backend == TRTLLM else 1

    @cached_property
    def context(self) -> int:
        """`context_length`."""
        return int(self.run.options["max_seq_len"] or self.run.arch.max_seq_len)

    @cached_property
    def card(self) -> CardMemory:
        """What SGLang's choices depend on."""
        return CardMemory(
            version=self.version, mib=self.run.smi_bytes // MIB, tp=self.tp,
            pp=int(self.run.mesh.pp), dp=self.attention_dp, latent=self.latent,
            speculates=speculative.method(self.run),
        )  # fmt: skip

    @cached_property
    def whole_chunk(self) -> int:
        """`chunked_prefill_size`: tokens of a prefill at once, of all ranks together."""
        return int(self.run.options["chunked_prefill_size"] or chunked_prefill_size(self.card))

    @property
    def chunk(self) -> int:
        """This rank's tokens of a prefill; experts see those of every rank."""
        return self.whole_chunk // self.attention_dp

    @cached_property
    def largest_graph(self) -> int:
        """`cuda_graph_max_bs`."""
        return int(self.run.options["cuda_graph_max_bs"] or cuda_graph_max_bs(self.card))

    @cached_property
    def eager(self) -> bool:
        """Whether decode is not captured."""
        return bool(self.run.options["enforce_eager"])

    @cached_property
    def prefill_sizes(self) -> tuple[int, ...]:
        """Prefill graphs; `--disable-cuda-graph` did not stop them before 0.5.14."""
        options, run = self.run.options, self.run
        off = (
            self.version < PREFILL_GRAPHS or (self.eager and self.version >= (0, 5, 14))
            or run.mesh.pp > 1 or self.attention_dp > 1 or run.arch.tower
            or options["max_lora_rank"] or options["cpu_offload_gb"] or options["hicache_ratio"]
        )  # fmt: skip
        if off:
            return ()
        most = 2048 if self.latent else self.whole_chunk
        return prefill_sizes(min(most, options["max_total_tokens"] or most))

    def decode_sizes(self, requests: int) -> tuple[int, ...]:
        """Decode graphs."""
        return () if self.eager else decode_sizes(self.card, self.largest_graph, requests)

    @cached_property
    def fraction(self) -> float:
        """`mem_fraction_static`, less where there are pictures to be read."""
        given = self.run.options["gpu_memory_utilization"]
        chosen = float(given) if given is not None else mem_fraction_static(
            self.card, self.whole_chunk, self.largest_graph, len(self.prefill_sizes))  # fmt: skip
        if not self.run.arch.tower or (given is not None and self.version >= (0, 4, 9)):
            return chosen
        return chosen * vision_factor(self.version, self.run.arch.tower_parameters)

    @cached_property
    def cache_bits(self) -> int:
        """Bits of an element of the cache; DeepSeek-V3.2's is fp8 on Blackwell."""
        name = self.run.options["kv_cache_dtype"]
        if name == "auto" and self.sparse and self.run.compute_capability in BLACKWELL:
            name = "fp8"
        own = 32 if self.run.precision == "fp32" else 16
        return {"auto": own, "bf16": 16, "fp16": 16, "fp8": 8}.get(name, own)


def stage_layers(run: Run) -> list[int]:
    """Layers of each stage: srt/distributed/utils.py get_pp_indices. What does not divide goes to
    the last stage, one to each of the last from 0.5.6 on.
    """
    pp = int(run.mesh.pp)
    each, left = divmod(len(run.arch.layers), pp)
    if version(run) >= LATE_EXTRA_LAYERS:
        return [each + (stage >= pp - left) for stage in range(pp)]
    return [each + left * (stage == pp - 1) for stage in range(pp)]


def vision_factor(now: Version, tower: int) -> float:
    """What is left of the share: 0.95 and 0.9 at first, from 0.4.9.post4 on less for more tower.

    server_args.py adjust_mem_fraction_for_vlm compares layers x width² with 24 x 1024²; a tower
    has about 12 parameters for each of them.
    """
    if now < (0, 4, 9):
        return 0.95 if now < (0, 4, 6) else 0.9
    ratio = tower / (12 * 24 * 1024**2)
    return 0.95 * max(0.8, min(1.05, 1.0 - 0.1 * (ratio - 1.0)))
