"""What a script does to its model, the model's parts and configuration, its trainer and optimizer.

Each method either changes what is known of the object (honoured), or has a row in rows.toml, or is
not understood, and said to be so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from .record import FREE, HONOURED, LIMIT, UNCLEAR
from .rows import Row, row
from .values import DTYPES, UNKNOWN, Arguments, Function, Thing, World

Handler = Callable[[World, Thing, Arguments], Any]
NOT_UNDERSTOOD = "not understood"
SHORT = {"half": "float16", "float": "float32", "double": "float64"}


def account(world: World, arguments: Arguments, found: Row | None, what: str = "") -> None:
    """Write down a call by its row; without a row it is not understood."""
    text = what or arguments.text
    if found is None:
        world.seen(arguments.line, text, UNCLEAR, NOT_UNDERSTOOD, more=arguments.more)
    else:
        bounds = {"adds": found.adds, "saves": found.saves, "more": arguments.more}
        world.seen(arguments.line, text, found.effect, found.why, **bounds)


def honour(world: World, arguments: Arguments, why: str = "") -> None:
    """Write down a call that changes the run that is estimated."""
    world.seen(arguments.line, arguments.text, HONOURED, why, more=arguments.more)


def limit(
    world: World, arguments: Arguments, why: str, *, adds: bool = True, saves: bool = True
) -> None:
    """Write down a call that is known and not modelled."""
    more = arguments.more
    world.seen(arguments.line, arguments.text, LIMIT, why, adds=adds, saves=saves, more=more)


def call_method(world: World, owner: Thing, name: str, arguments: Arguments) -> Any:
    """A method of an object that takes memory."""
    handlers = METHODS.get(owner.kind, {})
    if name in handlers:
        return handlers[name](world, owner, arguments)
    account(world, arguments, row(owner.kind, name))
    if owner.kind in ("model", "part"):
        return _result(owner, name, arguments)
    return owner if owner.kind == "accelerator" and name == "unwrap_model" else UNKNOWN


def _result(owner: Thing, name: str, arguments: Arguments) -> Any:
    """What a method of a model returns: itself, or a part of it."""
    model = owner if owner.kind == "model" else owner.model
    if name in ("train", "eval", "merge_and_unload", "unload", "get_base_model", "apply"):
        return owner
    if name in ("num_parameters", "get_memory_footprint", "numel", "size", "dim", "generate"):
        return UNKNOWN
    return Thing(kind="part", name=arguments.text, model=model, line=arguments.line)


# A model.


def enable_checkpointing(world: World, model: Thing, arguments: Arguments) -> None:
    """gradient_checkpointing_enable (modeling_utils.py): not reentrant unless asked for."""
    settings = arguments.get("gradient_checkpointing_kwargs", 0)
    model.values["checkpointing"] = True
    model.values["checkpointing_kwargs"] = settings if isinstance(settings, Mapping) else None
    honour(world, arguments)
    if arguments.get("every_n_layers", 1, 1) != 1:
        limit(world, arguments, "only some layers are computed again", saves=False)
    if arguments.get("offload", 2, False):
        limit(world, arguments, "saved activations lie on the host", adds=False)


def disable_checkpointing(world: World, model: Thing, arguments: Arguments) -> None:
    """gradient_checkpointing_disable."""
    model.values["checkpointing"] = False
    honour(world, arguments)


def resize(world: World, model: Thing, arguments: Arguments) -> Thing:
    """resize_token_embeddings(N, pad_to_multiple_of): the rows of the embedding and the head."""
    rows = arguments.get("new_num_tokens", 0)
    multiple = arguments.get("pad_to_multiple_of", 1)
    if isinstance(rows, int) and not isinstance(rows, bool) and rows > 0:
        if isinstance(multiple, int) and multiple > 0:
            rows = -(-rows // multiple) * multiple
        model.values["vocab"] = rows
        honour(world, arguments)
    elif rows is not None or multiple is not None:
        model.values["resized"] = arguments
    return Thing(kind="part", name="embedding", model=model, line=arguments.line)


def convert(world: World, model: Thing, arguments: Arguments) -> Thing:
    """`model.to(...)`: another dtype, or only another place."""
    words = [arguments.get("dtype"), arguments.get("device"), *arguments.positional]
    for word in words:
        if isinstance(word, str) and word in DTYPES:
            set_dtype(world, model, SHORT.get(word, word), arguments)
            return model
    if "dtype" in arguments.named:
        limit(world, arguments, "the script computes the dtype when it runs")
        return model
    why = "the model is moved to the GPU, where Trainer would move it"
    world.seen(arguments.line, arguments.text, FREE, why)
    model.values.setdefault("moved", arguments.line)
    return model


def set_dtype(world: World, model: Thing, dtype: str, arguments: Arguments) -> None:
    """The dtype of all weights, from here on."""
    if model.values.get("quantization"):
        limit(world, arguments, "weights that are not quantized get another dtype", saves=False)
        return
    model.values["dtype"] = dtype
    honour(world, arguments)


def _cast(dtype: str) -> Handler:
    def cast(world: World, model: Thing, arguments: Arguments) -> Thing:
        set_dtype(world, model, dtype, arguments)
        return model

    return cast


def compile_model(world: World, model: Thing, arguments: Arguments) -> Thing:
    """torch.compile(model) and model.compile()."""
    model.values["compile"] = arguments.get("mode", None, True) or True
    backend = arguments.get("backend", None, "inductor")
    if backend != "inductor":
        limit(world, arguments, "only inductor is modelled")
    else:
        honour(world, arguments)
    return model


def add_adapter(world: World, model: Thing, arguments: Arguments) -> None:
    """model.add_adapter(LoraConfig(...)) of transformers."""
    every = [one for one in arguments.every() if isinstance(one, Thing) and one.kind == "peft"]
    if every:
        model.values["peft"] = every[0]
        honour(world, arguments)
    else:
        limit(world, arguments, "the adapters are not shown")


def freeze(world: World, owner: Thing, arguments: Arguments) -> Thing:
    """requires_grad_(False) of a model or a part of it."""
    require_gradient(
        world, owner, arguments.get("requires_grad", 0, True), arguments.line, arguments.text
    )
    return owner


def require_gradient(world: World, owner: Thing, value: Any, line: int, text: str) -> None:
    """Note which weights are trained: the whole model, or an unknown part of it."""
    model = owner if owner.kind == "model" else owner.model
    if model is None:
        return
    changes = model.values.setdefault("gradients", [])
    changes.append((line, text, value, owner.kind == "model", model.values.get("peft") is not None))


def forward(world: World, model: Thing, arguments: Arguments) -> Thing:
    """`model(**batch)`: a forward pass of a loop of one's own."""
    honour(world, arguments)
    model.values["forward"] = arguments.line
    return Thing(kind="output", name="output", model=model, line=arguments.line)


# A part of a model.


def convert_part(world: World, part: Thing, arguments: Arguments) -> Thing:
    """`part.to(...)`: some weights in another dtype; the parts of `.data` come back by assignment."""
    dtypes = [one for one in arguments.every() if isinstance(one, str) and one in DTYPES]
    if not dtypes:
        why = "it stays on its GPU, or moves there as the whole model does"
        world.seen(arguments.line, arguments.text, FREE, why)
    else:
        wide = SHORT.get(dtypes[0], dtypes[0]) in ("float32", "float64")
        limit(world, arguments, f"some weights are cast to {dtypes[0]}", adds=wide, saves=not wide)
    return part


def _cast_part(dtype: str) -> Handler:
    def cast(world: World, part: Thing, arguments: Arguments) -> Thing:
        wide = dtype == "float32"
        limit(world, arguments, f"some weights are cast to {dtype}", adds=wide, saves=not wide)
        return part

    return cast


# A trainer, its arguments, an accelerator.


def train(world: World, trainer: Thing, arguments: Arguments) -> Any:
    """trainer.train(): this is the run."""
    trainer.values["trained"] = arguments.line
    honour(world, arguments)
    return UNKNOWN


def evaluate(world: World, trainer: Thing, arguments: Arguments) -> Any:
    """trainer.evaluate() and predict(): a phase of its own, with the evaluation's batch."""
    trainer.values["evaluates"] = arguments.line
    honour(world, arguments)
    return UNKNOWN


def add_callback(world: World, trainer: Thing, arguments: Arguments) -> None:
    """A callback: its methods are followed."""
    trainer.values.setdefault("callbacks", []).extend(arguments.positional)
    world.seen(arguments.line, arguments.text, FREE, "its methods are followed on their own")


def prepare(world: World, owner: Thing, arguments: Arguments) -> Any:
    """accelerator.prepare(a, b): the same objects, under Accelerate."""
    honour(world, arguments)
    models = [one for one in arguments.positional if isinstance(one, Thing) and one.kind == "model"]
    owner.values.setdefault("models", []).extend(models)
    values = arguments.positional
    return values[0] if len(values) == 1 else list(values)


def backward(world: World, owner: Thing, arguments: Arguments) -> None:
    """accelerator.backward(loss)."""
    owner.values["backward"] = arguments.line
    honour(world, arguments)


def clip(world: World, owner: Thing, arguments: Arguments) -> Any:
    """accelerator.clip_grad_norm_."""
    owner.values["clipped"] = True
    honour(world, arguments)
    return UNKNOWN


def unwrapped(world: World, owner: Thing, arguments: Arguments) -> Any:
    """accelerator.unwrap_model(model) is the model."""
    account(world, arguments, row("accelerator", "unwrap_model"))
    return arguments.positional[0] if arguments.positional else UNKNOWN


def set_arguments(world: World, owner: Thing, arguments: Arguments) -> Thing:
    """`args.set_dataloader(...)` and its kind are not followed."""
    account(world, arguments, None)
    return owner


METHODS: Mapping[str, Mapping[str, Handler]] = {
    "model": {
        "gradient_checkpointing_enable": enable_checkpointing,
        "gradient_checkpointing_disable": disable_checkpointing,
        "resize_token_embeddings": resize,
        "to": convert,
        "cuda": convert,
        "half": _cast("float16"),
        "float": _cast("float32"),
        "bfloat16": _cast("bfloat16"),
        "compile": compile_model,
        "add_adapter": add_adapter,
        "requires_grad_": freeze,
        "forward": forward,
        "__call__": forward,
    },
    "part": {
        "to": convert_part,
        "cuda": convert_part,
        "float": _cast_part("float32"),
        "half": _cast_part("float16"),
        "bfloat16": _cast_part("bfloat16"),
        "requires_grad_": freeze,
    },
    "trainer": {
        "train": train,
        "evaluate": evaluate,
        "predict": evaluate,
        "add_callback": add_callback,
    },
    "accelerator": {
        "prepare": prepare,
        "prepare_model": prepare,
        "backward": backward,
        "clip_grad_norm_": clip,
        "unwrap_model": unwrapped,
    },
}


def set_attribute(
    world: World, owner: Thing, name: str, value: Any, line: int, text: str
) -> None:
    """An assignment to an attribute of an object that takes memory."""
    what = f"{text} = {_shown(value)}"
    where = Arguments(line=line, text=what)
    if name in ("requires_grad", "weight.requires_grad") and owner.kind in ("part", "model"):
        require_gradient(world, owner, value, line, what)
    elif owner.kind == "config" and name in ("_attn_implementation", "attn_implementation"):
        owner.values["attn_implementation"] = value
        honour(world, where)
    elif owner.kind == "config" and owner.model is None and row("config attribute", name) is None:
        owner.values[name] = value  # before a model is made of it
        owner.lines[name] = line
        honour(world, where)
    elif owner.kind == "part" and name == "data":
        # A dtype that `.to` gave was accounted for there.
        world.seen(line, what, FREE, "values are written into a tensor that is there")
    elif owner.kind == "trainer" and isinstance(value, Function):
        world.seen(line, what, UNCLEAR, "the trainer's own method is replaced")
    else:
        account(world, where, row(f"{owner.kind} attribute", name))


def _shown(value: Any) -> str:
    if value is UNKNOWN or isinstance(value, Thing | Function):
        return "..."
    return repr(value)[:30] if isinstance(value, str | int | float | None) else "..."
