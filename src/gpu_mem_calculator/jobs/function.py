"""The user's own model and batch: a function `package.module:function` that returns both."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

from ..core.errors import InputError, nearest

STAND_IN: dict[str, Any] = {
    "num_layers": 1, "hidden_size": 64, "num_attention_heads": 1, "vocab_size": 64,
    "max_seq_len": 1024,
}  # fmt: skip
"""A model section that lets a run file be read; nothing of it is ever shown."""
MADE_BY_FUNCTION = ("batch_size", "seq_len", "attention")
IN_FUNCTION = {
    "lora": "make the adapters", "quantization": "quantize the weights",
    "activation_checkpointing": "checkpoint the layers",
    "checkpoint_reentrant": "checkpoint the layers",
}  # fmt: skip
PURE = {"bf16_pure": "bfloat16", "fp16_pure": "float16"}
OURS = str(Path(__file__).parents[1]) + os.sep


def run_without_model(data: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """A run file for a function, which brings the model and the batch, and what it leaves unused.

    What the file asks of the model and the function would have to do is refused.
    """
    training = dict(data.get("training") or {})
    problems = [
        f"training.{key}={training[key]!r} is not done to the model of --function; {verb} in the "
        "function and leave the key out"
        for key, verb in IN_FUNCTION.items() if training.get(key) not in (None, "none", 0)
    ]  # fmt: skip
    if problems:
        raise InputError(problems)
    unused = ["model"] if data.get("model") is not None else []
    for key in (*MADE_BY_FUNCTION, *IN_FUNCTION):
        if training.pop(key, None) is not None and key in MADE_BY_FUNCTION:
            unused.append(f"training.{key}")
    return {**data, "model": dict(STAND_IN), "training": training}, unused


def load(spec: str) -> Callable[[], Any]:
    """The function that `package.module:function` names, looked for from the current folder."""
    name, colon, attribute = spec.partition(":")
    if not (name and colon and attribute.isidentifier()):
        raise InputError([f"--function {spec!r} must be package.module:function"])
    here = str(Path.cwd())
    sys.path.insert(0, here)
    try:
        module = _module(spec, name)
    finally:
        sys.path.remove(here)
    found = getattr(module, attribute, None)
    if not callable(found):
        known = [key for key, value in vars(module).items() if callable(value)]
        hint = nearest(attribute, known)
        raise InputError([f"--function {spec}: {name} has no function {attribute!r}{hint}"])
    function: Callable[[], Any] = found
    return function


def _module(spec: str, name: str) -> ModuleType:
    parents = name.split(".")
    try:
        for count in range(1, len(parents) + 1):
            if find_spec(".".join(parents[:count])) is None:
                raise ModuleNotFoundError
    except (ModuleNotFoundError, ValueError):
        raise InputError([f"--function {spec}: there is no module {name!r} in the current folder "
                          "or among the installed ones"]) from None  # fmt: skip
    with users_own(spec):
        return import_module(name)


@contextmanager
def users_own(spec: str) -> Iterator[None]:
    """An error of the user's code is shown as it is, from the user's first frame on."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        hint = " (a trace has no GPU and plays one: name no device)" if _of_cuda(error) else ""
        raise InputError(
            [f"--function {spec} failed with its own error{hint}:\n{own_error(error)}"]
        ) from error


def _of_cuda(error: Exception) -> bool:
    return "cuda" in str(error).lower()


def own_error(error: BaseException) -> str:
    """A traceback without the frames of this program and of torch above the user's."""
    libraries = (OURS, *(str(Path(m.__file__).parent) + os.sep for m in (
        sys.modules.get("torch"), sys.modules.get("importlib"),
    ) if m is not None and m.__file__))  # fmt: skip
    step = error.__traceback__
    while step is not None and step.tb_next is not None:
        file = step.tb_frame.f_code.co_filename
        if not file.startswith((*libraries, "<frozen")):
            break
        step = step.tb_next
    return "".join(traceback.format_exception(type(error), error, step)).rstrip()


class Function:
    """The user's function as a job calls it: inside the fake mode, once."""

    def __init__(self, spec: str, precision: str) -> None:
        self.spec = self.title = spec
        self.precision = precision
        self.function = load(spec)
        self.num_parameters = self.num_trained = 0

    def __call__(self) -> tuple[Any, Any]:
        """The model, and a batch as a dict or a tuple of arguments."""
        import torch

        with torch.device("cpu"), users_own(self.spec):
            made = self.function()
        model, batch = self._pair(made)
        self._check(model)
        model.register_forward_hook(self._check_loss)
        return model, batch

    def _pair(self, made: Any) -> tuple[Any, Any]:
        import torch

        if not (isinstance(made, tuple | list) and len(made) == 2):
            self._refuse(f"must return a model and a batch, not {_kind(made)}")
        model, batch = made
        if not isinstance(model, torch.nn.Module):
            self._refuse("must return a torch.nn.Module and a batch; the first of what it "
                         f"returned is {_kind(model)}")  # fmt: skip
        if isinstance(batch, torch.Tensor):
            return model, (batch,)
        if isinstance(batch, Mapping):  # a tokenizer's, too
            return model, dict(batch)
        if isinstance(batch, tuple | list):
            return model, tuple(batch)
        self._refuse(f"returned {_kind(batch)} as the batch; return a dict, a tuple or a tensor")

    def _check(self, model: Any) -> None:
        """Count the parameters; they must be where a trace sees them, in the run's dtype."""
        params = list(model.parameters())
        self.num_parameters = sum(p.numel() for p in params)
        self.num_trained = sum(p.numel() for p in params if p.requires_grad)
        if not self.num_trained:
            self._refuse("made a model with no parameter that takes a gradient")
        places = {p.device.type for p in params} - {"cpu", "meta"}
        if places:
            self._refuse(f"made parameters on {places.pop()!r}; leave the device out, a trace has "
                         "no GPU and plays one")  # fmt: skip
        wanted = PURE.get(self.precision)
        wrong = {str(p.dtype).removeprefix("torch.") for p in params if p.requires_grad} - {wanted}
        if wanted and wrong:
            self._refuse(f"made {wrong.pop()} parameters, but training.precision is "
                         f"{self.precision!r}; return model.to(torch.{wanted})")  # fmt: skip

    def _check_loss(self, model: Any, args: Any, output: Any) -> None:
        import torch

        from .model import loss_of

        try:
            loss = loss_of(output)
        except (IndexError, KeyError):
            loss = None
        if not isinstance(loss, torch.Tensor):
            self._refuse(f"its model returned {_kind(output)}, which has no loss; return a scalar "
                         "tensor, a tuple that begins with it, or an output.loss")  # fmt: skip
        if loss.numel() != 1:
            shape = " x ".join(map(str, loss.shape))
            self._refuse(f"its model returned a tensor of {shape} as the loss, which must be one "
                         "number; is the loss computed in its forward?")  # fmt: skip
        if torch.is_grad_enabled() and not loss.requires_grad:
            self._refuse("the loss of its model takes no gradient")

    def _refuse(self, why: str) -> NoReturn:
        raise InputError([f"--function {self.spec}: {why}" if why[:3] in ("its", "the")
                          else f"--function {self.spec} {why}"])  # fmt: skip


def _kind(value: Any) -> str:
    name = type(value).__name__
    return "nothing" if value is None else f"{'an' if name[:1] in 'aeiouAEIOU' else 'a'} {name}"
