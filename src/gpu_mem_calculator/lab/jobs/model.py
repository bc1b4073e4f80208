"""The model of a job: Hugging Face's code with random weights; nothing is downloaded."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from importlib import import_module
from types import ModuleType
from typing import Any
from weakref import WeakValueDictionary

from ...ledger.extras import install
from ...run.run import Run
from ...runfile.text.errors import InputError
from .job import Job

NO_PROGRAM = (
    "model: plain numbers describe no program that could be run; give a preset or a config.json"
)
DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}  # and torch's names


def import_extra(name: str, extra: str) -> ModuleType:
    """Import a module of an optional package; raises a sentence that says which extra has it."""
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and not name.startswith(error.name):
            raise
        package, fix = name.partition(".")[0], install(extra)
        raise InputError(f"this needs {package}, which is not installed: {fix}") from None


def dtype_name(precision: str) -> str:
    """torch's name of a dtype such as `bf16`, or of what `bf16_mixed` computes in."""
    return DTYPES[precision.partition("_")[0]]


def torch_dtype(precision: str) -> Any:
    """torch's dtype of that name."""
    return getattr(import_extra("torch", "torch"), dtype_name(precision))


def weight_dtype(run: Run) -> Any:
    """The torch dtype of the weights as the model is made: fp32 for mixed precision."""
    return torch_dtype("fp32" if mixed_dtype(run) else run.precision)


def mixed_dtype(run: Run) -> Any:
    """The torch dtype that a run of mixed precision computes in; None for others."""
    return torch_dtype(run.precision) if run.precision.endswith("_mixed") else None


def half_dtype(run: Run) -> Any:
    """The 16 bits of a run: fp16 where its precision says so, else bf16."""
    return torch_dtype("fp16" if run.precision.startswith("fp16") else "bf16")


def autocast_dtype(job: Job) -> Any:
    """The dtype of torch's autocast around the forward pass; None without autocast."""
    run = job.resolved.run
    mixed = job.resolved.engine.name == "pytorch_ddp" and mixed_dtype(run)
    return half_dtype(run) if run.autocast or mixed else None


def autocast(job: Job, **rest: Any) -> Any:
    """torch's autocast around the forward pass, where the run has one."""
    import torch

    dtype = autocast_dtype(job)
    return torch.autocast(job.world.device, dtype=dtype, **rest) if dtype else nullcontext()


def hf_config(job: Job) -> Any:
    """transformers' config object for the run's model."""
    config = job.resolved.model.config
    if config is None:
        raise InputError(NO_PROGRAM)
    auto = auto_config(config)
    if job.file.training.attention is not None:  # else transformers takes the model's default
        auto._attn_implementation = job.file.training.attention
    return auto


def auto_config(config: Mapping[str, Any]) -> Any:
    """transformers' config object for a config.json; raises for an unknown model_type."""
    transformers = import_extra("transformers", "torch")
    left_out = ("architectures", "auto_map", "quantization_config")
    values = {k: v for k, v in config.items() if k not in left_out}
    if values["model_type"] not in transformers.CONFIG_MAPPING:
        known = f"transformers {transformers.__version__}, and remote code is not run"
        kind, fix = values["model_type"], "use trace --function with your own"
        raise InputError(f"model_type={kind!r} is not part of {known}; {fix}")
    return transformers.AutoConfig.for_model(values.pop("model_type"), **values)


def build(job: Job, device: str) -> Any:
    """The run's model with random weights on a device, ready to train; "meta" allocates nothing."""
    import_extra("torch", "torch").manual_seed(0)
    run = job.resolved.run
    moved = job.resolved.engine.name == "pytorch_ddp" and run.options["init_device"] == "cpu"
    if moved or run.from_pretrained:
        model = causal_model(hf_config(job), run, "meta")
        return _moved(model, device, warm_up=run.from_pretrained)
    return causal_model(hf_config(job), run, device)


def _moved(model: Any, device: str, *, warm_up: bool) -> Any:
    """A model that was made elsewhere, on a device: each parameter is allocated once; after a
    tensor as large as all of them with `warm_up`, as from_pretrained does.
    """
    import torch

    if warm_up:
        size = sum(parameter.nbytes for parameter in model.parameters())
        torch.empty(size, dtype=torch.uint8, device=device)
    Materializer(device).all_of(model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 0.02)
    return model


def causal_model(config: Any, run: Run, device: str, **rest: Any) -> Any:
    """A causal model of transformers with random weights, ready to train; one with a score for
    loss reward.
    """
    torch, transformers = import_extra("torch", "torch"), import_extra("transformers", "torch")
    with torch.device(device):
        make = transformers.AutoModelForCausalLM.from_config
        if run.loss == "reward":
            config.num_labels, config.pad_token_id = 1, 0
            make = transformers.AutoModelForSequenceClassification.from_config
        model = make(config, dtype=weight_dtype(run), **rest)
    for module in model.modules() if run.disable_dropout else ():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    model.train()
    model.config.use_cache = run.use_cache
    return model


def tokens(job: Job) -> Any:
    """A micro-batch of random token ids, without padding."""
    import torch

    run = job.resolved.run
    shape = (int(run.batch), int(run.seq))
    return torch.randint(0, run.arch.vocab, shape, device=job.world.device)


def inputs(job: Job, batch: Any) -> Any:
    """The arguments of the model: the user's batch, or token ids that are also the labels."""
    if batch is not None:
        return batch
    ids = tokens(job)
    arguments = {"input_ids": ids, "labels": ids}
    if job.resolved.run.compile:  # as transformers' data collators do; the graph reads it
        arguments["attention_mask"] = ids.new_ones(ids.shape)
    return arguments


def layers(model: Any) -> list[Any]:
    """The decoder layers: the longest list of modules that is in no other list."""
    import torch

    kinds = (torch.nn.ModuleList, torch.nn.Sequential, torch.nn.ModuleDict)
    lists = [m for m in model.modules() if isinstance(m, kinds)]
    inner = {id(sub) for one in lists for sub in one.modules() if sub is not one}
    outer = [one for one in lists if id(one) not in inner]
    return max((list(one.children()) for one in outer), key=len, default=[])


def loss_of(output: Any) -> Any:
    """The loss of a model's output: its `loss`, the first of a tuple, or the tensor itself."""
    if isinstance(output, Mapping) and "loss" in output:
        return output["loss"]
    if getattr(output, "loss", None) is not None:
        return output.loss
    return output[0] if isinstance(output, tuple | list) else output


class Materializer:
    """Gives the tensors of meta modules memory; a tensor that two modules share gets it once."""

    def __init__(self, device: Any) -> None:
        self.device = device
        self.made: WeakValueDictionary[int, Any] = WeakValueDictionary()
        self.kept: list[Any] = []  # meta tensors, so that no other takes their address

    def own_tensors(self, module: Any) -> None:
        """Give a module's own parameters and buffers memory, without those of its children."""
        import torch

        def parameter(old: Any, data: Any) -> Any:
            return torch.nn.Parameter(data, requires_grad=old.requires_grad)

        self._fill(module._parameters, parameter)
        self._fill(module._buffers, lambda old, data: data)

    def all_of(self, model: Any) -> None:
        """Give a whole model memory."""
        for module in model.modules():
            self.own_tensors(module)

    def _fill(self, tensors: dict[str, Any], keep: Callable[[Any, Any], Any]) -> None:
        import torch

        for name, old in tensors.items():
            if old is None or old.device.type != "meta":
                continue
            new = self.made.get(id(old))
            if new is None:
                self.kept.append(old)
                new = keep(old, torch.empty_like(old, device=self.device))
                self.made[id(old)] = new
            tensors[name] = new
