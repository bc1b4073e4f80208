"""The user's model and batch: a function `package.module:function` that returns both."""

from __future__ import annotations

import inspect
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

from ...runfile.text.errors import InputError, nearest, quoted
from ...tools.translation.arguments import tables
from .model import dtype_name, loss_of

TABLES = tables(__file__)
STAND_IN: dict[str, Any] = TABLES["stand_in"]
"""A model section with which a run file can be read; its values are never shown."""
MADE_BY_FUNCTION = ("batch_size", "seq_len", "attention")
IN_FUNCTION: dict[str, str] = TABLES["in_function"]
ON_CUDA: dict[str, str] = TABLES["on_cuda"]
OURS = str(Path(__file__).parents[2]) + os.sep


def run_without_model(data: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """A run file with a stand-in model, and the keys that a function makes unused.

    Keys that change the model (adapters, quantization) are refused: the function must do that.
    """
    training = dict(data.get("training") or {})
    refused = "is not done to the model of --function"
    problems = [
        f"training.{key}={quoted(training[key])} {refused}; {verb} in the function and leave the "
        "key out"
        for key, verb in IN_FUNCTION.items()
        if training.get(key) not in (None, "none", 0)
    ]
    if problems:
        raise InputError(problems)
    unused = ["model"] if data.get("model") is not None else []
    for key in (*MADE_BY_FUNCTION, *IN_FUNCTION):
        if training.pop(key, None) is not None and key in MADE_BY_FUNCTION:
            unused.append(f"training.{key}")
    return {**data, "model": dict(STAND_IN), "training": training}, unused


def unused_sentence(keys: Sequence[str]) -> str:
    """The sentence for the unused keys of `run_without_model`."""
    return f"Not used, because the function makes them: {', '.join(keys)}."


def values_sentence(values: Mapping[str, Any]) -> str:
    """The sentence for the values of --with."""
    return f"The function was called with {', '.join(f'{k}={v!r}' for k, v in values.items())}."


def load(spec: str) -> Callable[..., Any]:
    """The function `package.module:function`; modules of the current folder are found, too."""
    name, colon, attribute = spec.partition(":")
    if not (name and colon and attribute.isidentifier()):
        raise InputError(f"--function {spec!r} must be package.module:function")
    folder = str(Path.cwd())
    sys.path.insert(0, folder)
    try:
        module = _module(spec, name)
    finally:
        sys.path.remove(folder)
    value = getattr(module, attribute, None)
    if not callable(value):
        known = [key for key, value in vars(module).items() if callable(value)]
        hint = nearest(attribute, known)
        raise InputError(f"--function {spec}: {name} has no function {attribute!r}{hint}")
    function: Callable[..., Any] = value
    return function


def _module(spec: str, name: str) -> ModuleType:
    parents = name.split(".")
    try:
        for count in range(1, len(parents) + 1):
            if find_spec(".".join(parents[:count])) is None:
                raise ModuleNotFoundError
    except (ModuleNotFoundError, ValueError):
        where = "in the current folder or among the installed ones"
        raise InputError(f"--function {spec}: there is no module {name!r} {where}") from None
    with user_errors(spec):
        return import_module(name)


@contextmanager
def user_errors(spec: str, device: str = "cpu") -> Iterator[None]:
    """Turn an error of the user's code into a sentence with its traceback.

    An out-of-memory error is not the code's fault, and is raised as it is.
    """
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        if _out_of_memory(error):
            raise
        hint = ON_CUDA[device] if "cuda" in str(error).lower() else ""
        trace = user_traceback(error)
        raise InputError(f"--function {spec} failed with its own error{hint}:\n{trace}") from error


def _out_of_memory(error: Exception) -> bool:
    return any(kind.__name__ == "OutOfMemoryError" for kind in type(error).__mro__)


def check_values(spec: str, function: Callable[..., Any], values: Mapping[str, Any]) -> None:
    """Raise for a --with that is no argument of the function, and for a required one without."""
    try:
        known = inspect.signature(function).parameters
    except (TypeError, ValueError):  # a callable without a signature
        return
    by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    names = [name for name, one in known.items() if one.kind in by_name]
    any_name = any(one.kind is one.VAR_KEYWORD for one in known.values())
    listed = f"it takes {', '.join(names)}" if names else "it takes none"
    problems = [
        f"--with {name}: {spec} has no such argument, {listed}{nearest(name, names)}"
        for name in values
        if name not in names and not any_name
    ]
    problems += [
        f"--function {spec} needs {name!r}; add --with {name}=VALUE"
        for name in names
        if known[name].default is inspect.Parameter.empty and name not in values
    ]
    problems += [
        f"--function {spec}: {name!r} cannot be given by its name; take the '/' away"
        for name, one in known.items()
        if one.kind is one.POSITIONAL_ONLY and one.default is inspect.Parameter.empty
    ]
    if problems:
        raise InputError(problems)


def user_traceback(error: BaseException) -> str:
    """A traceback that begins at the user's first frame, below this program's and torch's."""
    modules = (sys.modules.get("torch"), sys.modules.get("importlib"))
    files = [module.__file__ for module in modules if module is not None and module.__file__]
    libraries = (OURS, "<frozen", *(str(Path(file).parent) + os.sep for file in files))
    step = error.__traceback__
    while step is not None and step.tb_next is not None:
        if not step.tb_frame.f_code.co_filename.startswith(libraries):
            break
        step = step.tb_next
    return "".join(traceback.format_exception(type(error), error, step)).rstrip()


class UserFunction:
    """Calls the user's function once, and checks what it returns.

    - `spec`: `package.module:function`
    - `values`: the values of --with
    - `device`: where the job runs; "cpu" in a trace
    - `made_on`: torch's default device while the function runs, where it is another one
    """

    def __init__(
        self,
        spec: str,
        precision: str,
        values: Mapping[str, Any] | None = None,
        *,
        device: str = "cpu",
        made_on: str | None = None,
    ) -> None:
        self.spec = self.title = spec
        self.precision = precision
        self.values = dict(values or {})
        self.device, self.made_on = device, made_on or device
        self.function = load(spec)
        check_values(spec, self.function, self.values)
        self.num_parameters = self.num_trained = 0

    def __call__(self) -> tuple[Any, Any]:
        """The model, and its batch as a dict or tuple of arguments, on the job's device."""
        import torch
        from torch.utils._pytree import tree_map_only

        errors = user_errors(self.spec, self.device)
        with torch.device(self.made_on), errors, self._keyword_errors():
            returned = self.function(**self.values)
        model, batch = self._pair(returned)
        self._check(model)
        model.register_forward_hook(self._check_loss)
        return model, tree_map_only(torch.Tensor, lambda one: one.to(self.device), batch)

    @contextmanager
    def _keyword_errors(self) -> Iterator[None]:
        """Turn a TypeError for a --with that the function passes on by ** into a sentence."""
        try:
            yield
        except TypeError as error:
            match = re.match(r"(.+) got an unexpected keyword argument '(\w+)'", str(error))
            if match is None or match[2] not in self.values:
                raise
            callee = f"{match[1]}, which has no such argument"
            raise InputError(f"--with {match[2]}: {self.spec} hands it on to {callee}") from None

    def _pair(self, returned: Any) -> tuple[Any, Any]:
        import torch

        if not (isinstance(returned, tuple | list) and len(returned) == 2):
            self._refuse(f"must return a model and a batch, not {_kind(returned)}")
        model, batch = returned
        if not isinstance(model, torch.nn.Module):
            first = f"the first of what it returned is {_kind(model)}"
            self._refuse(f"must return a torch.nn.Module and a batch; {first}")
        if isinstance(batch, torch.Tensor):
            return model, (batch,)
        if isinstance(batch, Mapping):  # also a tokenizer's BatchEncoding
            return model, dict(batch)
        if isinstance(batch, tuple | list):
            return model, tuple(batch)
        self._refuse(f"returned {_kind(batch)} as the batch; return a dict, a tuple or a tensor")

    def _check(self, model: Any) -> None:
        """Count the parameters; raise where their device or dtype is not the run's."""
        params = list(model.parameters())
        self.num_parameters = sum(map(elements, params))
        self.num_trained = sum(elements(p) for p in params if p.requires_grad)
        if not self.num_trained:
            self._refuse("made a model with no parameter that takes a gradient")
        places = {p.device.type for p in params} - {"cpu", "meta", self.device}
        if places:
            why = ", a trace has no GPU and simulates one" if self.device == "cpu" else ""
            self._refuse(f"made parameters on {places.pop()!r}; leave the device out{why}")
        wanted = dtype_name(self.precision) if self.precision.endswith("_pure") else ""
        wrong = {str(p.dtype).removeprefix("torch.") for p in params if p.requires_grad} - {wanted}
        if wanted and wrong:
            precision = f"training.precision is {self.precision!r}; return model.to(torch.{wanted})"
            self._refuse(f"made {wrong.pop()} parameters, but {precision}")

    def _check_loss(self, model: Any, args: Any, output: Any) -> None:
        import torch

        try:
            loss = loss_of(output)
        except (IndexError, KeyError):
            loss = None
        if not isinstance(loss, torch.Tensor):
            fix = "return a scalar tensor, a tuple that begins with it, or an output.loss"
            self._refuse(f"its model returned {_kind(output)}, which has no loss; {fix}")
        if loss.numel() != 1:
            shape = " x ".join(map(str, loss.shape))
            fix = "which must be one number; is the loss computed in its forward?"
            self._refuse(f"its model returned a tensor of {shape} as the loss, {fix}")
        if torch.is_grad_enabled() and not loss.requires_grad:
            self._refuse("the loss of its model takes no gradient")

    def _refuse(self, why: str) -> NoReturn:
        colon = ":" if why.startswith(("its", "the")) else ""
        raise InputError(f"--function {self.spec}{colon} {why}")


def elements(parameter: Any) -> int:
    """Elements of a whole parameter, also where DeepSpeed's zero.Init has sharded it."""
    return int(getattr(parameter, "ds_numel", None) or parameter.numel())


def _kind(value: Any) -> str:
    name = type(value).__name__
    return "nothing" if value is None else f"{'an' if name[:1] in 'aeiouAEIOU' else 'a'} {name}"
