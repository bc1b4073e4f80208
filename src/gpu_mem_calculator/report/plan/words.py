"""Plans in words: the question, a set-up, and its changes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ...ledger.units import count, gib
from ...tools.translation.arguments import tables
from ...training.engines import DEFAULT, engine_knobs, engine_names, engine_row, spellings
from ...training.knob import LOSS
from ...training.losses import LOSSES
from .amounts import card

if TYPE_CHECKING:
    from ...advice.planner.answers.plans import Plan, Plans

_TABLES = tables(__file__)
# The first words where something else than the fastest set-up is looked for.
GOALS = _TABLES["goals"]
GROUPS: Sequence[str] = _TABLES["groups"]["titles"]
AXES: Mapping[str, str] = _TABLES["axes"]
RECOMPUTE: Mapping[str, str] = _TABLES["recompute"]
CHANGES: Mapping[str, str] = _TABLES["changes"]  # of one key, with their value
VALUES: Mapping[str, str] = _TABLES["values"]  # what follows a value that says enough
# Settings that are on, in words.
WORDED = [knob for name in engine_names() for knob in engine_knobs(name) if knob.words[0]]
TITLES = {**_TABLES["titles"], **{k.key.rpartition(".")[2]: k.words[0] for k in WORDED}}
SHORT_WORDS = dict(knob.words for knob in WORDED)
# Titles of servers that are long in a table.
SHORT_TITLES = {"TensorRT-LLM": "TRT-LLM"}
HOSTS = {"cpu": "CPU", "nvme": "NVMe disk"}
# Keys that the words of a set-up say, so that they are not written as `key=value`.
SAID = {
    *(key for keys in _TABLES["said"].values() for key in keys),
    *AXES,
    *(path.rpartition(".")[2] for path in VALUES),
}


def setup_words(plan: Plan) -> list[str]:
    """The words of a set-up: engine, mesh, micro-batches, recompute, and what else it sets."""
    run = plan.run
    words = [
        *([plan.file] if plan.file is not None else []),
        engine_words(run),
        *_mesh_words(run),
        *(_user_words(plan) if plan.serving else _batch_words(run)),
        *_recompute_words(run.get("training") or {}),
        *_offload_words(run.get("engine") or {}),
        *_host_words(plan),
    ]
    return [*words, *_value_words(run), *_other_words(plan.settings)]


def engine_name(run: Mapping[str, Any]) -> str:
    """The engine, whatever its stage or strategy."""
    served = run.get("inference")
    return str((run.get("engine") or {}).get("type") if served is None else served.get("engine"))


def idea(plan: Plan) -> tuple[str, ...]:
    """What is essential of a set-up: plans with the same differ in their details alone."""
    run = plan.run
    mesh = (one for one in _mesh_words(run) if one.partition(" ")[0] in AXES.values())
    return engine_words(run), *mesh, *_offload_words(run.get("engine") or {})


def by_idea(plans: Sequence[Plan]) -> list[tuple[str, list[Plan]]]:
    """Plans, best first, in groups with a title: the best of each engine, the best of each other
    idea, and what differs from these in details.
    """
    bests = {engine_name(one.run): one for one in reversed(plans)}
    ideas = {idea(one): one for one in reversed(plans)}
    known = [idea(one) for one in bests.values()]
    groups: dict[str, list[Plan]] = {title: [] for title in GROUPS}
    for one in plans:
        best = one is bests[engine_name(one.run)]
        other = one is ideas[idea(one)] and idea(one) not in known
        groups[GROUPS[0 if best else 1 if other else 2]].append(one)
    return [(title, listed) for title, listed in groups.items() if listed]


def engine_words(run: Mapping[str, Any]) -> str:
    """The engine, with its ZeRO stage or sharding strategy."""
    return _titles(run)[0]


def _titles(run: Mapping[str, Any]) -> tuple[str, str]:
    """The engine in words, and in short ones."""
    if (served := run.get("inference")) is not None:
        from ...serving import USUAL, server

        title = server(str(served.get("engine", USUAL))).title
        return title, SHORT_TITLES.get(title, title)
    keys = run.get("engine") or {}
    named = str(keys.get("type", DEFAULT))
    name = spellings().get(named.lower())
    return (named, named) if name is None else engine_row(name).title_of(keys)


def _mesh_words(run: Mapping[str, Any]) -> Iterator[str]:
    sizes = run.get("parallelism") or run.get("inference") or {}
    for key, word in AXES.items():
        size = sizes.get(key) or 1
        if size != 1:
            yield f"{word} {size}"
    if (chunks := sizes.get("virtual_pipeline_size") or 1) != 1:
        yield f"interleaved in {chunks} chunks"
    if sizes.get("sequence_parallel"):
        yield "SP"


def _batch_words(run: Mapping[str, Any]) -> Iterator[str]:
    training = run.get("training") or {}
    steps = training.get("gradient_accumulation_steps") or 1
    yield f"micro-batch {training.get('batch_size', 1)} × {steps}"


def _user_words(plan: Plan) -> Iterator[str]:
    """The replicas of a server, and the users of each."""
    assert plan.serving is not None
    if plan.serving.replicas > 1:
        yield f"{plan.serving.replicas:,} replicas"
    yield f"{plan.serving.users_per_replica:,} users each"


def _recompute_words(training: Mapping[str, Any]) -> Iterator[str]:
    level = training.get("recompute") or training.get("activation_checkpointing")
    if isinstance(level, Mapping):  # with a framework's own keys
        layers = level.get("recompute_num_layers")
        which = f" of {layers} layer{'' if layers == 1 else 's'}" if layers else ""
        yield f"{level.get('recompute_granularity', 'own')} recompute{which}"
    elif level is not None:
        text = str(level).lower()
        yield RECOMPUTE.get(text, f"{text.replace('_', ' ')} recompute")


def _offload_words(keys: Mapping[str, Any]) -> Iterator[str]:
    for key, what in (("offload_optimizer", "optimizer"), ("offload_param", "parameters")):
        if (place := keys.get(key) or "none") != "none":
            yield f"{what} on the {HOSTS[place]}"
    if keys.get("cpu_offload"):
        yield "weights and optimizer on the CPU"


def _host_words(plan: Plan) -> Iterator[str]:
    """Host RAM of a node, where the plan offloads: nobody says how much a node has."""
    if plan.host_bytes_per_node and any(_offload_words(plan.run.get("engine") or {})):
        yield f"{gib(plan.host_bytes_per_node, 0)} GiB of host RAM a node"


def _value_words(run: Mapping[str, Any]) -> Iterator[str]:
    for path in VALUES:
        name, _, key = path.partition(".")
        value = (run.get(name) or {}).get(key)
        if value is not None and value not in ("none", "auto"):
            yield _value(path, value)


def _value(path: str, value: Any) -> str:
    """A value that says enough, with its noun: `bf16 mixed`, `Liger's loss`."""
    if path == LOSS and (loss := LOSSES.get(str(value))) is not None and loss.title:
        return loss.title
    return f"{str(value).replace('_', ' ')} {VALUES[path]}".rstrip()


def _other_words(settings: Mapping[str, Any]) -> Iterator[str]:
    """Keys that a plan sets and no other word says."""
    for path, value in settings.items():
        key = path.rpartition(".")[2]
        if key in SAID or path.startswith("hardware.") or value in (None, False):
            continue
        title = TITLES.get(key, key.replace("_", " "))
        yield title if value is True else f"{key}={value_text(value)}"


def short_setups(plans: Sequence[Plan]) -> list[str]:
    """Each plan's set-up for a table, in short words: `Megatron TP4 PP2 2×64 full`.

    Words that all plans share are left out, but for the engine.
    """
    return [" ".join(words) for words in _apart([list(_short_words(plan)) for plan in plans])]


def setups_apart(plans: Sequence[Plan]) -> list[list[str]]:
    """The words of each plan's set-up that not all of them share; the engine always."""
    return _apart([setup_words(plan) for plan in plans])


def _apart(words: Sequence[Sequence[str]]) -> list[list[str]]:
    shared = set.intersection(*map(set, words)) if len(words) > 1 else set()
    return [[one[0], *(w for w in one[1:] if w not in shared)] for one in words]


def _short_words(plan: Plan) -> Iterator[str]:
    run = plan.run
    if plan.file is not None:
        yield plan.file.rpartition("/")[2]
    yield _titles(run)[1]
    sizes = run.get("parallelism") or run.get("inference") or {}
    for key, word in AXES.items():
        if (size := sizes.get(key) or 1) != 1 and word != "DP":
            yield f"{word}{size}"
    if (chunks := sizes.get("virtual_pipeline_size") or 1) != 1:
        yield f"VP{chunks}"
    if plan.serving is None:
        yield from (w.removeprefix("micro-batch ").replace(" ", "") for w in _batch_words(run))
    elif plan.serving.replicas > 1:
        yield f"{plan.serving.replicas}×"
    for words in _recompute_words(run.get("training") or {}):
        level, _, layers = words.partition(" recompute of ")
        level = level.removesuffix(" recompute")
        yield f"{level}:{layers.split()[0]}" if layers else "none" if level == "no" else level
    if any(_offload_words(run.get("engine") or {})):
        yield "".join(["offload", *(f":{words.split()[0]}GiB" for words in _host_words(plan))])
    loss = str((run.get("training") or {}).get("loss"))
    for words in (*_value_words(run), *_other_words(plan.settings)):
        first, _, noun = words.rpartition(" ")
        if loss in LOSSES and words == _value(LOSS, loss):
            yield loss.partition("_")[0]
        elif noun == "optimizer" and words not in SHORT_WORDS:
            yield first.split()[0]
        else:
            yield SHORT_WORDS.get(words, words.removesuffix(" cache"))


def change_words(change: Mapping[str, Any]) -> str:
    """A change of keys in words: `TP 4`, `full recompute`, `key=value`."""
    return ", ".join(_changed(path, value) for path, value in change.items())


def _changed(path: str, value: Any) -> str:
    key = path.rpartition(".")[2]
    if key in AXES:
        return f"{AXES[key]} {value}"
    if path in ("training.activation_checkpointing", "training.recompute"):
        return next(_recompute_words({key: value}))
    if path in VALUES and value not in (None, "auto", "none"):
        return _value(path, value)
    if path in CHANGES:
        return CHANGES[path].format(value)
    if key in TITLES and isinstance(value, bool):
        return TITLES[key] if value else f"no {TITLES[key]}"
    return next(_offload_words({key: value}), f"{key}={value_text(value)}")


def value_text(value: Any) -> str:
    """A value as `--set` reads it."""
    return str(value).lower() if isinstance(value, bool) or value is None else str(value)


def question_words(plans: Plans, *, hints: bool = True) -> str:
    """What was asked: the model, the GPUs, the sequence and the batch, or a server's targets.

    hints: with the options of the command that change what was assumed
    """
    asked = plans.question
    run = plans.plans[0].run if plans.plans else {}
    model = {**(asked.get("model") or {}), **(run.get("model") or {})}
    name = str(model.get("name") or "its own model")
    if asked.get("candidates"):
        name = f"{len(plans.plans)} candidates"
    hardware = run.get("hardware") or asked.get("hardware")
    found = card(hardware) if hardware else None
    where = f" on {found.num_gpus:,} × {found.title}" if found else ""
    said = _served_words(asked) if "users" in asked else _trained_words(asked, run, hints)
    tokens = [f"{count(asked['tokens'])} tokens"] if asked.get("tokens") else []
    goal = GOALS.get(str(asked.get("goal")), "") if plans.plans else ""
    return goal + ", ".join([f"{name}{where}", *said, *tokens])


def _trained_words(asked: Mapping[str, Any], run: Mapping[str, Any], hints: bool) -> Iterator[str]:
    """The sequence and the batch of a step; those of the first plan where they were left open."""
    if asked.get("candidates"):
        return
    training = run.get("training") or {}
    sequence = asked.get("seq_len") or training.get("seq_len")
    if sequence:
        chosen = "seq_len" in (asked.get("assumed") or {})
        yield f"sequence {sequence:,}{_chosen('--seq-len', hints) if chosen else ''}"
    if asked.get("global_batch"):
        yield f"global batch {asked['global_batch']:,}"
    elif training:
        steps = training.get("gradient_accumulation_steps") or 1
        copies = (run.get("parallelism") or {}).get("data_parallel_size") or 1
        batch = (training.get("batch_size") or 1) * steps * copies
        yield f"global batch {batch:,}{_chosen('--global-batch', hints)}"


def _chosen(option: str, hints: bool) -> str:
    """That nobody gave a number, and the option that does."""
    return f" ({option} changes it)" if hints else " (assumed)"


def _served_words(asked: Mapping[str, Any]) -> Iterator[str]:
    if asked.get("users"):
        yield f"{asked['users']:,} users"
    if asked.get("context"):
        yield f"context {asked['context']:,}"
    if asked.get("latency"):
        yield f"at most {1000 * asked['latency']:g} ms per output token"
    if asked.get("first_token"):
        yield f"at most {1000 * asked['first_token']:g} ms to the first token"
    if asked.get("throughput"):
        yield f"at least {asked['throughput']:,g} tokens/s"
