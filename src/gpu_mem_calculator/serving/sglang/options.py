"""Every option of an SGLang server with its value: the run file's, else SGLang's own choice."""

from __future__ import annotations

from functools import cached_property

from msgspec import Struct

from ...ledger.units import MIB
from ...models.arch.blocks import Attention, LatentAttention, Mixer
from ...run.releases import Version, version_text
from ...run.run import Run
from ...run.served import server_options
from ...run.weights.shards import ServerShard, stage_shard
from . import defaults, speculative
from .defaults import CardMemory
from .versions import (
    GRAPHS_OF_REQUESTS,
    LATE_EXTRA_LAYERS,
    LONG_LATENT_GRAPHS,
    NEWEST,
    PAGED_BLACKWELL,
    PREFILL_GRAPHS,
    version,
)

OPTIONS = server_options(
    """
    gpu_memory_utilization max_num_seqs max_total_tokens chunked_prefill_size cuda_graph_max_bs
    cuda_graph_bs attention_backend page_size max_loras max_lora_rank speculative_method
    speculative_model num_speculative_tokens cpu_offload_gb hicache_ratio hicache_size
    """,
    engine_version=version_text(NEWEST),
    pipeline_parallel_size=1,
    data_parallel_size=1,
    expert_parallel_size=1,
    enable_dp_attention=False,
    disable_prefill_cuda_graph=False,
    enforce_eager=False,
    swa_full_tokens_ratio=0.8,
    mamba_full_memory_ratio=0.9,
    disable_radix_cache=False,
)

HOPPER, BLACKWELL = ("9.0",), ("10.0", "10.3")
FLASHINFER, FA3, TRTLLM, TRITON = "flashinfer", "fa3", "trtllm", "triton"
VOCAB_MULTIPLE = 64  # srt/layers/vocab_parallel_embedding.py DEFAULT_VOCAB_PADDING_SIZE
EXTRA_CONTEXT = 4  # tokens in a request's row of the table beyond the context
SPARSE_PAGE = TRTLLM_PAGE = 64


class SglangOptions(Struct, frozen=True, kw_only=True, dict=True):
    """A run's options under SGLang's names, with SGLang's choice for those that are not set."""

    run: Run

    @cached_property
    def version(self) -> Version:
        """SGLang's version: major, minor, patch."""
        return version(self.run)

    @property
    def tp(self) -> int:
        """Tensor-parallel ranks of a stage."""
        return int(self.run.mesh.tp)

    @cached_property
    def attention_dp(self) -> int:
        """Data-parallel attention groups of a stage; each attends to its own sequences."""
        return int(self.run.mesh.dp) if self.run.options["enable_dp_attention"] else 1

    @cached_property
    def shard(self) -> ServerShard:
        """This rank's shard of the model. The embedding is sharded as attention is
        (vocab_parallel_embedding.py get_embedding_tp_kwargs), the head over all ranks.
        """
        ep, attention_tp = int(self.run.mesh.ep), self.tp // self.attention_dp
        return stage_shard(
            stage_layers(self.run),
            int(self.run.stage),
            tp=self.tp,
            attention_tp=attention_tp,
            ep=ep,
            expert_tp=self.tp // ep,
            vocab_multiple=VOCAB_MULTIPLE,
            embedding_tp=attention_tp,
        )

    @cached_property
    def mixers(self) -> tuple[Mixer, ...]:
        """The mixers of all layers, in order."""
        return tuple(mixer for layer in self.run.arch.layers for mixer in layer.mixers)

    @cached_property
    def latent(self) -> bool:
        """Whether the cache holds latents (MLA)."""
        return any(isinstance(mixer, LatentAttention) for mixer in self.mixers)

    @cached_property
    def sparse(self) -> bool:
        """Whether latents are read through an indexer (DeepSeek-V3.2)."""
        return any(isinstance(m, LatentAttention) and m.index is not None for m in self.mixers)

    @cached_property
    def backend(self) -> str:
        """SGLang's name of the attention kernels.

        arg_groups/model_override_base.py get_default_attn_backend:
        `trtllm` is trtllm_mha, or trtllm_mla where latents are cached.
        """
        if self.run.options["attention_backend"] is not None:
            return str(self.run.options["attention_backend"])
        capability = self.run.compute_capability
        sinks = any(isinstance(mixer, Attention) and mixer.sinks for mixer in self.mixers)
        if capability in HOPPER and self.version >= (0, 4, 6):
            return FA3
        if capability in BLACKWELL and self.version >= PAGED_BLACKWELL:
            return TRTLLM
        if sinks or (self.latent and capability not in BLACKWELL):
            return TRITON
        return FLASHINFER

    @cached_property
    def page(self) -> int:
        """Tokens of a page of the KV cache."""
        size = self.run.options["page_size"]
        if size is not None:
            return int(size)
        if self.sparse:
            return SPARSE_PAGE
        return TRTLLM_PAGE if self.backend == TRTLLM else 1

    @cached_property
    def context(self) -> int:
        """`context_length`: the most tokens of a sequence."""
        return int(self.run.options["max_seq_len"] or self.run.arch.max_seq_len)

    @cached_property
    def card(self) -> CardMemory:
        """What SGLang's defaults depend on."""
        return CardMemory(
            version=self.version,
            mib=self.run.smi_bytes // MIB,
            tp=self.tp,
            pp=int(self.run.mesh.pp),
            dp=self.attention_dp,
            latent=self.latent,
            speculation=speculative.method(self.run),
        )

    @cached_property
    def whole_chunk(self) -> int:
        """`chunked_prefill_size`: tokens of one prefill pass, of all attention groups together."""
        size = self.run.options["chunked_prefill_size"]
        return int(size or defaults.chunked_prefill_size(self.card))

    @property
    def chunk(self) -> int:
        """Tokens of one prefill pass on this rank; experts see those of every attention group."""
        return self.whole_chunk // self.attention_dp

    @cached_property
    def largest_graph(self) -> int:
        """`cuda_graph_max_bs`: sequences of the largest decode graph."""
        size = self.run.options["cuda_graph_max_bs"]
        if self.run.options["cuda_graph_bs"]:
            size = max(self.run.options["cuda_graph_bs"])
        most, limit = defaults.cuda_graph_max_bs(self.card), self.run.options["max_num_seqs"]
        if limit is not None and self.version >= GRAPHS_OF_REQUESTS:
            most = min(most, int(limit))
        return int(size or most)

    @cached_property
    def prefill_sizes(self) -> tuple[int, ...]:
        """Tokens of each captured prefill graph.

        Before 0.5.14 `--disable-cuda-graph` did not turn them off.
        """
        options, run = self.run.options, self.run
        several = run.mesh.pp > 1 or self.attention_dp > 1
        disabled = self.version < PREFILL_GRAPHS or (
            self.run.options["enforce_eager"] and self.version >= (0, 5, 14)
        )
        disabled = disabled or options["disable_prefill_cuda_graph"]
        keys = ("max_lora_rank", "cpu_offload_gb", "hicache_ratio", "hicache_size")
        if disabled or several or run.arch.tower or any(options[key] for key in keys):
            return ()
        most = self.whole_chunk
        if self.latent:
            most = min(most, 8192) if self.version >= LONG_LATENT_GRAPHS else 2048
        return defaults.prefill_sizes(min(most, options["max_total_tokens"] or most))

    def decode_sizes(self, requests: int) -> tuple[int, ...]:
        """Sequences of each captured decode graph, for at most `requests` at once."""
        given = self.run.options["cuda_graph_bs"]
        if self.run.options["enforce_eager"]:
            return ()
        if given:
            return tuple(sorted({min(size, requests) for size in given}))
        return defaults.decode_sizes(self.card, self.largest_graph, requests)

    @cached_property
    def fraction(self) -> float:
        """`mem_fraction_static`; SGLang lowers it for models that read images."""
        share, sizes = self.run.options["gpu_memory_utilization"], len(self.prefill_sizes)
        graph, chunk = self.largest_graph, self.whole_chunk
        fraction = defaults.mem_fraction_static(self.card, chunk, graph, sizes)
        fraction = fraction if share is None else float(share)
        if not self.run.arch.tower or (share is not None and self.version >= (0, 4, 9)):
            return fraction
        return fraction * vision_factor(self.version, self.run.arch.tower_parameters)

    @cached_property
    def cache_bits(self) -> int:
        """Bits of an element of the cache; DeepSeek-V3.2's is fp8 on Blackwell."""
        name = self.run.options["kv_cache_dtype"]
        if name == "auto" and self.sparse and self.run.compute_capability in BLACKWELL:
            name = "fp8"
        model = 32 if self.run.precision == "fp32" else 16
        return {"auto": model, "bf16": 16, "fp16": 16, "fp8": 8}[name]


def stage_layers(run: Run) -> list[int]:
    """Layers of each stage: srt/distributed/utils.py get_pp_indices.

    The remainder is on the last stage; from 0.5.6 on it is spread, one layer each, over the last.
    """
    pp = int(run.mesh.pp)
    each, left = divmod(len(run.arch.layers), pp)
    if version(run) >= LATE_EXTRA_LAYERS:
        return [each + (stage >= pp - left) for stage in range(pp)]
    return [each + left * (stage == pp - 1) for stage in range(pp)]


def vision_factor(now: Version, tower: int) -> float:
    """What mem_fraction_static is multiplied by for a vision tower of `tower` parameters.

    0.95 before 0.4.6, then 0.9; from 0.4.9.post4 on less for a larger tower:
    arg_groups/memory_hook.py adjust_mem_fraction_for_vlm compares layers x width² with 24 x 1024²;
    a tower has about 12 parameters for each of them.
    """
    if now < (0, 4, 9):
        return 0.95 if now < (0, 4, 6) else 0.9
    ratio = tower / (12 * 24 * 1024**2)
    return 0.95 * max(0.8, min(1.05, 1.0 - 0.1 * (ratio - 1.0)))
