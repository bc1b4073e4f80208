"""What a script's lines do to a model and to its parts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from .accounting import honour, limit
from .record import FREE
from .values import DTYPES, Arguments, ScriptWorld, Thing

Handler = Callable[[ScriptWorld, Thing, Arguments], Any]
ALL_WIDE = "4*weights"  # at most all weights are wide
SHORT = {"half": "float16", "float": "float32", "double": "float64"}


def enable_checkpointing(world: ScriptWorld, model: Thing, arguments: Arguments) -> None:
    """gradient_checkpointing_enable (modeling_utils.py): not reentrant unless asked for."""
    settings = arguments.get("gradient_checkpointing_kwargs", 0)
    model.values["checkpointing"] = True
    model.values["checkpointing_kwargs"] = settings if isinstance(settings, Mapping) else None
    honour(world, arguments)
    if arguments.get("every_n_layers", 1, 1) != 1:
        limit(world, arguments, "only some layers are computed again", saves=False)
    if arguments.get("offload", 2, False):
        limit(
            world, arguments, "saved activations lie on the host", adds=False, saves="activations"
        )


def disable_checkpointing(world: ScriptWorld, model: Thing, arguments: Arguments) -> None:
    """gradient_checkpointing_disable."""
    model.values["checkpointing"] = False
    honour(world, arguments)


def resize(world: ScriptWorld, model: Thing, arguments: Arguments) -> Thing:
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


def convert(world: ScriptWorld, model: Thing, arguments: Arguments) -> Thing:
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


def set_dtype(world: ScriptWorld, model: Thing, dtype: str, arguments: Arguments) -> None:
    """The dtype of all weights, from here on."""
    if model.values.get("quantization"):
        why = "weights that are not quantized get another dtype"
        limit(world, arguments, why, adds=ALL_WIDE, saves=False)
        return
    model.values["dtype"] = dtype
    honour(world, arguments)


def _cast(dtype: str) -> Handler:
    def cast(world: ScriptWorld, model: Thing, arguments: Arguments) -> Thing:
        set_dtype(world, model, dtype, arguments)
        return model

    return cast


def compile_model(world: ScriptWorld, model: Thing, arguments: Arguments) -> Thing:
    """torch.compile(model) and model.compile()."""
    model.values["compile"] = arguments.get("mode", None, True) or True
    backend = arguments.get("backend", None, "inductor")
    if backend != "inductor":
        limit(world, arguments, "only inductor is modelled")
    else:
        honour(world, arguments)
    return model


def add_adapter(world: ScriptWorld, model: Thing, arguments: Arguments) -> None:
    """model.add_adapter(LoraConfig(...)) of transformers."""
    every = [one for one in arguments.every() if isinstance(one, Thing) and one.kind == "peft"]
    if every:
        model.values["peft"] = every[0]
        honour(world, arguments)
    else:
        limit(world, arguments, "the adapters are not shown")


def freeze(world: ScriptWorld, owner: Thing, arguments: Arguments) -> Thing:
    """requires_grad_(False) of a model or a part of it."""
    require_gradient(
        world, owner, arguments.get("requires_grad", 0, True), arguments.line, arguments.text
    )
    return owner


def require_gradient(world: ScriptWorld, owner: Thing, value: Any, line: int, text: str) -> None:
    """Note which weights are trained: the whole model, or an unknown part of it."""
    model = owner if owner.kind == "model" else owner.model
    if model is None:
        return
    changes = model.values.setdefault("gradients", [])
    changes.append((line, text, value, model.values.get("peft") is not None))


def forward(world: ScriptWorld, model: Thing, arguments: Arguments) -> Thing:
    """`model(**batch)`: a forward pass of a loop of one's own."""
    honour(world, arguments)
    model.values["forward"] = arguments.line
    if "use_cache" in arguments.named:
        model.values["use_cache"] = arguments.named["use_cache"]
    return Thing(kind="output", name="output", model=model, line=arguments.line)


def convert_part(world: ScriptWorld, part: Thing, arguments: Arguments) -> Thing:
    """`part.to(...)`: some weights in another dtype."""
    dtypes = [one for one in arguments.every() if isinstance(one, str) and one in DTYPES]
    if not dtypes:
        why = "it stays on its GPU, or moves there as the whole model does"
        world.seen(arguments.line, arguments.text, FREE, why)
    else:
        wide = SHORT.get(dtypes[0], dtypes[0]) in ("float32", "float64")
        why = f"some weights are cast to {dtypes[0]}"
        limit(world, arguments, why, adds=ALL_WIDE if wide else False, saves=not wide)
    return part


def _cast_part(dtype: str) -> Handler:
    def cast(world: ScriptWorld, part: Thing, arguments: Arguments) -> Thing:
        adds = ALL_WIDE if dtype == "float32" else False
        why = f"some weights are cast to {dtype}"
        limit(world, arguments, why, adds=adds, saves=not adds)
        return part

    return cast


MODEL_METHODS: Mapping[str, Mapping[str, Handler]] = {
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
}
