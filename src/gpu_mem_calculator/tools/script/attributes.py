"""Attributes and items of a script's objects: what they are, and what an assignment changes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..translation.arguments import argument_table, tables
from .definitions import SHOWN
from .expressions import is_dtype
from .interpreter import Interpreter
from .methods import set_attribute
from .record import FREE, HONOURED, LIMIT, UNCLEAR
from .rows import is_plain_package
from .unknown_calls import LENGTHS
from .values import TRACKED, UNKNOWN, Imported, ScriptClass, ScriptFunction, Thing

TRAINER_TABLE = "transformers/arguments"
ACCOUNTED = (*TRACKED, "accelerator", "arguments", "config")
# Values on the run's machine, with the versions that are modelled.
KNOWN_NAMES: Mapping[str, Any] = tables(__file__)["known_names"]
ENUMS = ("TaskType", "IntervalStrategy", "SchedulerType", "OptimizerNames", "EvaluationStrategy")


class Attributes(Interpreter):
    """Follows a script, with its attributes and items."""

    words: list[str]  # sys.argv

    def attribute(self, base: Any, name: str) -> Any:
        """The value of an attribute."""
        if isinstance(base, Imported):
            path = f"{base.path}.{name}"
            if path in KNOWN_NAMES:
                return self.words if path == "sys.argv" else KNOWN_NAMES[path]
            if base.last in ENUMS:
                return name if base.last == "TaskType" else name.lower()
            return name if is_dtype(path) else Imported(path)
        if isinstance(base, Mapping):
            return base.get(name, UNKNOWN)
        if isinstance(base, ScriptClass):
            if name in base.fields:
                return base.fields[name]
            node = base.method(name)
            if node is not None:
                return ScriptFunction(node, base.scope)
            return Imported(f"script.{next(iter(sorted(base.roots)), base.name)}.{name}")
        if isinstance(base, Thing):
            return self._thing_attribute(base, name)
        if base is UNKNOWN and name in self.given:  # an object of a file that is not at hand
            return self.given[name]
        return UNKNOWN

    def _thing_attribute(self, base: Thing, name: str) -> Any:
        if base.kind == "model":
            if name == "config":
                default = Thing(kind="config", name="config", model=base, line=base.line)
                return base.values.setdefault("(config)", default)
            if name == "module":
                return base
            if name in ("dtype", "device", "is_gradient_checkpointing"):
                return UNKNOWN
            if name == "generation_config":
                return Thing(kind="data", name=name)
            return Thing(kind="part", name=f"{base.name}.{name}", model=base, line=base.line)
        if base.kind == "part":
            return (
                base
                if name not in ("shape", "dtype", "device", "ndim", "requires_grad")
                else UNKNOWN
            )
        if base.kind == "trainer":
            if name in ("accelerator", "state", "optimizer", "lr_scheduler"):
                kind = "accelerator" if name == "accelerator" else "data"
                return Thing(kind=kind, name=name)
            return base.values.get(name, UNKNOWN)
        if base.kind == "accelerator":
            main = {"is_main_process": True, "is_local_main_process": True, "process_index": 0}
            known = {**main, "num_processes": self.num_gpus, "local_process_index": 0}
            known["sync_gradients"] = True
            return known.get(name, UNKNOWN)
        if base.kind == "output":
            return base
        if base.kind == "arguments" and name not in base.values:
            own: dict[str, Any] = {
                "world_size": self.num_gpus,
                "do_train": True,
                "process_index": 0,
                "n_gpu": 1,
            }
            own |= {"local_rank": 0, "local_process_index": 0, "device": UNKNOWN}
            row = argument_table(TRAINER_TABLE).get(name)
            return own.get(name, row.default if row is not None else UNKNOWN)
        if base.kind == "instance" and name not in base.values:
            made = base.values.get("(class)")
            if not isinstance(made, ScriptClass) or (node := made.method(name)) is None:
                return UNKNOWN
            return ScriptFunction(node, made.scope, base)
        if base.kind in ("data", "loader", "tokenizer"):
            return (
                Thing(kind="data", name=name) if name not in ("pad_token", "eos_token") else UNKNOWN
            )
        return base.values.get(name, UNKNOWN)

    def set_attribute(self, owner: Any, name: str, value: Any, line: int, text: str) -> None:
        """Assign to an attribute."""
        text = text[:SHOWN]
        if isinstance(owner, Imported):
            plain = is_plain_package(owner.package) or owner.path.startswith("torch.backends")
            if plain or owner.path.startswith("transformers.logging"):
                self.seen(line, text, FREE, "a setting of speed or of logging")
            else:
                self.seen(line, text, UNCLEAR, "not understood: it replaces a part of a library")
        elif not isinstance(owner, Thing):
            return
        elif owner.kind in ("arguments", "peft", "quantization", "namespace", "instance"):
            owner.values[name] = value
            owner.lines[name] = line
            if owner.kind in ("arguments", "peft", "quantization"):
                self.found.conditions |= dict(self.unsure)
            if name.lower() in LENGTHS and isinstance(value, int) and value > 0:
                self.note_length(line, int(value), named=True)
        elif owner.kind == "tokenizer":
            if name in ("model_max_length", "max_length") and isinstance(value, int):
                self.note_length(line, value)
            self.seen(line, text, FREE, "texts and their tokens are on the host")
        elif owner.kind in ACCOUNTED:
            set_attribute(self, owner, name, value, line, text)

    def set_item(self, owner: Any, key: Any, value: Any, line: int, text: str) -> None:
        """Assign to an item of a dictionary, of the environment, of a tensor."""
        if isinstance(owner, dict) and isinstance(key, str | int):
            owner[key] = value
            self.item_lines(owner)[str(key)] = line
        elif isinstance(owner, Thing) and owner.kind == "part":
            self.seen(line, text, FREE, "values are written into a tensor that is there")
        elif isinstance(owner, Imported) and owner.path == "os.environ" and isinstance(key, str):
            self._variable(key, value, line, text)
        elif isinstance(owner, Thing) and owner.kind in ("namespace", "instance"):
            owner.values[str(key)] = value

    def _variable(self, key: str, value: Any, line: int, text: str) -> None:
        """A variable of the process."""
        self.environment = {**self.environment, key: str(value)}
        if key in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "CUBLAS_WORKSPACE_CONFIG"):
            self.found.facts.setdefault("environment", {})[key] = value
            self.seen(line, text, HONOURED)
        elif key in ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"):
            if isinstance(value, str) and "," in value:
                why = "the script chooses several GPUs itself; one of them is estimated"
                self.seen(line, text, LIMIT, why)
            else:
                self.seen(line, text, HONOURED)
        elif key.startswith(("ACCELERATE_", "FSDP_", "DEEPSPEED_")):
            self.seen(line, text, UNCLEAR, "not understood: it sets up the launch")
        else:
            self.seen(line, text, FREE, "a variable of libraries, without tensors")
