"""Elements of the parameters that one rank of a Megatron job has."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from msgspec import Struct
from msgspec.structs import replace

from ....ledger.mesh import EP, TP
from ....ledger.num import Num, ceil_div, holds, larger
from ....ledger.rules import Rules
from ....models.arch.arch import Arch, Layer
from ....models.arch.blocks import Attention, LatentAttention, Mlp, Moe, Weight
from ....run.ranks import distinct_ranks, spread
from ....run.run import Run
from .options import expert_tp, option

# Column- and row-parallel matmuls, vocabulary-parallel embedding (tensor_parallel/layers.py);
# norms, row-parallel biases, positions and latent projections are on every rank.
DENSE = Rules(dict.fromkeys(("vocab", "heads", "kv_heads", "ffn"), (TP,)))
EXPERT = Rules({"expert": (EP,), "expert_ffn": (TP,)})  # on the experts' own mesh


class MegatronShard(Struct, frozen=True):
    """Elements of parameters on one rank.

    dense: replicated over data-parallel ranks
    experts: of the experts' own data-parallel ranks and buffers, where they have them
    vectors: of the dense ones, norms and biases, which the optimizer steps as another group
    largest: of the largest parameter
    """

    dense: Num = 0
    experts: Num = 0
    vectors: Num = 0
    largest: Num = 0

    @property
    def total(self) -> Num:
        """Elements of all parameters."""
        return self.dense + self.experts

    def __add__(self, other: MegatronShard) -> MegatronShard:
        dense, experts = self.dense + other.dense, self.experts + other.experts
        largest = larger(self.largest, other.largest)
        return MegatronShard(dense, experts, self.vectors + other.vectors, largest)

    def times(self, count: Num) -> MegatronShard:
        """The sum of `count` equal shards; its largest parameter is 0 where the count is."""
        dense, experts, largest = self.dense * count, self.experts * count, self.largest
        return MegatronShard(dense, experts, self.vectors * count, largest * holds(count > 0))


def local_vocab(run: Run) -> Num:
    """Rows of the embedding table on one rank.

    The vocabulary is padded to a multiple of make_vocab_size_divisible_by × tp, as Megatron-LM's
    training script does (training/vocab_utils.py:58).
    """
    multiple: int = option(run, "make_vocab_size_divisible_by")
    return ceil_div(run.arch.vocab, multiple * run.mesh.tp) * multiple


def _shard(
    run: Run, weights: Iterable[Weight], rules: Rules, *, expert: bool = False
) -> MegatronShard:
    total = MegatronShard()
    mesh = replace(run.mesh, tp=expert_tp(run)) if expert else run.mesh
    for weight in weights:
        size = rules.local_elements(weight.dims, mesh)
        if expert and weight.dims[0][0] != "expert":
            size = ceil_div(size, run.mesh.ep)
        if any(name == "vocab" for name, _ in weight.dims):
            size = size // ceil_div(run.arch.vocab, run.mesh.tp) * local_vocab(run)
        size = run.scaled(size)
        if expert:
            total += MegatronShard(experts=size, largest=size)
        else:
            total += MegatronShard(size, 0, size if len(weight.dims) == 1 else 0, size)
    return total


def stepped_shares(run: Run, dense: Num, experts: Num) -> tuple[Num, Num]:
    """One rank's part of elements that the distributed optimizer shards: of dense parameters over
    dp × cp, of experts over the ranks that have the same ones.

    Each of several instances shards them all over its part of these ranks (parallel_state.py:924,
    1448).
    """
    ranks = run.mesh.dp * run.mesh.cp
    copies = option(run, "num_distributed_optimizer_instances")
    owners = run.mesh.ep * expert_tp(run) * copies
    return ceil_div(dense * copies, ranks), ceil_div(experts * owners, ranks * run.mesh.tp)


def experts_apart(run: Run) -> Num:
    """1 where experts are sharded in another way than the rest, and so have buffers and a step of
    their own (tensor_parallel/layers.py:961 use_expert_pgs).
    """
    return larger(holds(run.mesh.ep > 1), holds(expert_tp(run) != run.mesh.tp))


def layer_shard(run: Run, layer: Layer) -> MegatronShard:
    """One layer's parameters on one rank."""
    rank, places = distinct_ranks(run)
    return spread(_layer_shard(rank, layer), places)


def _layer_shard(run: Run, layer: Layer) -> MegatronShard:
    dense, experts = layer_parts(run, layer)
    apart = experts_apart(run)
    moved = MegatronShard(dense=experts.experts * (1 - apart), largest=experts.largest)
    return dense + moved + MegatronShard(experts=experts.experts * apart)


def layer_parts(run: Run, layer: Layer) -> tuple[MegatronShard, MegatronShard]:
    """One layer's parameters on one rank: all but the experts, and the experts."""
    experts = layer.mlp.experts if isinstance(layer.mlp, Moe) else ()
    names = {f"{layer.mlp_name}.{w.name}" if layer.mlp_name else w.name for w in experts}
    dense = [w for w in layer.weights() if w.name not in names]
    return _shard(run, dense, DENSE), _shard(run, experts, EXPERT, expert=True)


def embedding_shard(run: Run) -> MegatronShard:
    """Parameters before the layers, on the first stage: the embedding."""
    norm = run.arch.embedding_norm
    weights = [*run.arch.embedding, *(norm.weights() if norm else ())]
    return _shard_of_ranks(run, weights)


def _shard_of_ranks(run: Run, weights: Iterable[Weight]) -> MegatronShard:
    """Some dense weights on one rank."""
    rank, places = distinct_ranks(run)
    return spread(_shard(rank, weights, DENSE), places)


def word_table(arch: Arch) -> tuple[Weight, ...]:
    """The word embedding alone."""
    return tuple(w for w in arch.embedding if any(name == "vocab" for name, _ in w.dims))


def after_shard(run: Run, first: Num) -> MegatronShard:
    """Parameters after the layers, on the last stage: final norm and output layer.

    A tied output layer is the embedding itself where the stage is the `first` one too, else the
    stage has a copy (models/gpt/gpt_model.py, setup_embeddings_and_output_layer).
    """
    total = _shard_of_ranks(run, run.arch.after_weights())
    if run.arch.tied:
        total += _shard_of_ranks(run, word_table(run.arch)).times(1 - first)
    return total


Matrix = tuple[tuple[int, ...], Num, Num]  # shape before sharding, elements on the rank, how many


def made_matrices(run: Run, layer: Layer) -> tuple[list[Matrix], list[Matrix], list[Matrix]]:
    """The weight matrices of one layer in the order they are made: those of attention, of the
    experts, and the rest.

    transformer/attention.py makes the output projection in Attention.__init__, before the others.
    """
    every, mixer = list(matrices(run, layer)), layer.mixer
    count = len(mixer.query) + 3 if isinstance(mixer, LatentAttention) else 2
    attention = [every[count - 1], *every[: count - 1]]
    end = count + 2 * isinstance(layer.mlp, Moe)
    return attention, every[count:end], every[end:]


def matrices(run: Run, layer: Layer) -> Iterator[Matrix]:
    """The weight matrices of one layer as Megatron makes them: shape before sharding, elements on
    the rank, and how many there are.

    q, k and v are one matrix, gate and up are one; every expert of the rank has a pair.
    """
    tp, hidden = run.mesh.tp, run.arch.hidden
    mixer, mlp = layer.mixer, layer.mlp
    shapes: list[tuple[int, int, bool]] = []
    counts: dict[int, Num] = {}
    if isinstance(mixer, Attention):
        rows = (mixer.heads + 2 * mixer.kv_heads) * mixer.head_dim
        shapes += [(rows, hidden, True)]
        shapes += [(hidden, mixer.heads * (mixer.value_dim or mixer.head_dim), True)]
    elif isinstance(mixer, LatentAttention):
        for linear in (*mixer.query, mixer.kv_a, mixer.kv_b, mixer.output):
            sharded = "heads" in (linear.ins[0], linear.outs[0])
            shapes.append((linear.outs[1], linear.ins[1], sharded))
    inner = [mlp] if isinstance(mlp, Mlp | Moe) else []
    inner += [mlp.shared] if isinstance(mlp, Moe) and mlp.shared is not None else []
    for block in inner:
        rows = block.ffn * (2 if block.gated else 1)
        if isinstance(block, Moe):
            counts = dict.fromkeys(
                range(len(shapes), len(shapes) + 2), block.num_experts // run.mesh.ep
            )
        shapes += [(rows, hidden, True), (hidden, block.ffn, True)]
    for index, (rows, columns, sharded) in enumerate(shapes):
        split = expert_tp(run) if index in counts else tp
        size = rows * columns // (split if sharded else 1)
        yield (int(rows), int(columns)), size, counts.get(index, 1)
