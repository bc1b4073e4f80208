"""Lives of transformers.Trainer and of TRL's trainers."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

from tests.lives.models import Row

from .host import Phases
from .inputs import device, load, padded, pairs, token_rows, tokenizer

ROWS = 64  # of training, in a life
QUIET: Row = {"report_to": [], "disable_tqdm": True, "save_strategy": "no"}


def watch(phases: Phases, begin: str, *, each_step: bool) -> Any:
    """A callback that ends the phase before training, and each step."""
    from transformers import TrainerCallback

    class Watch(TrainerCallback):  # type: ignore[misc]
        """Ends phases."""

        def on_train_begin(self, *_: Any, **__: Any) -> None:
            """All before the first step."""
            phases.end(begin)

        def on_step_begin(self, *_: Any, **__: Any) -> None:
            """A step."""
            if each_step:
                phases.begin()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            """A step."""
            if each_step:
                phases.end_step()

    return Watch()


def adapted(model: Any, program: Row) -> Any:
    """The model with its adapters, as a user of PEFT adds them."""
    recomputed = bool(program["args"].get("gradient_checkpointing"))
    if program.get("quantization"):
        from peft import prepare_model_for_kbit_training

        model = prepare_model_for_kbit_training(model, use_gradient_checkpointing=recomputed)
    if not program.get("peft"):
        return model
    from peft import LoraConfig, get_peft_model

    if recomputed:
        model.enable_input_require_grads()
    return get_peft_model(model, LoraConfig(**program["peft"]))


def import_tool(program: Row) -> None:
    """Import the tool's packages, so that later phases do not count them."""
    names = ["transformers.trainer"]
    names += ["peft"] if program.get("peft") else []
    names += ["bitsandbytes"] if program.get("quantization") else []
    if program["tool"].startswith("trl."):
        names += ["datasets", "trl.trainer.sft_trainer", "trl.trainer.dpo_trainer"]
    for name in names:
        import_module(name)


def make_trainer(row: Row, model: Any, folder: Path, callback: Any) -> Any:
    """The tool's trainer."""
    program = row["config"]["program"]
    every = 1000 if "lengths" in program["data"] else 1
    args: Row = {"output_dir": str(folder), "logging_steps": every} | QUIET | program["args"]
    if device() == "cpu":
        args |= {"use_cpu": True}
    if program["tool"].startswith("trl."):
        return _trl(program, args, model, callback)
    from transformers import DataCollatorWithFlattening, Trainer, TrainingArguments

    data, vocabulary = program["data"], model.config.vocab_size
    more: Row = {}
    if "lengths" in data:
        rows = token_rows(data["lengths"], vocabulary)
        more["data_collator"] = padded(data.get("pad_to_multiple_of"))
        if "collator" in data:
            rows = [{k: v for k, v in one.items() if k != "attention_mask"} for one in rows]
            more["data_collator"] = DataCollatorWithFlattening()
    else:
        rows = token_rows([data["seq_len"]] * ROWS, vocabulary)
        length = data.get("eval_seq_len", data["seq_len"])
        more["eval_dataset"] = token_rows([length] * data["eval_rows"], vocabulary)
    if data.get("compute_metrics"):
        more["compute_metrics"] = lambda found: {"rows": float(len(found.predictions))}
    if data.get("preprocess_logits_for_metrics") == "argmax":
        more["preprocess_logits_for_metrics"] = lambda logits, _: logits.argmax(-1)
    return Trainer(
        model=adapted(model, program),
        args=TrainingArguments(**args),
        train_dataset=rows,
        callbacks=[callback],
        **more,
    )


def _trl(program: Row, args: Row, model: Any, callback: Any) -> Any:
    import trl
    from datasets import Dataset

    data, kind = program["data"], program["tool"].partition(".")[2]
    counts = {"train_dataset": ROWS, "eval_dataset": data.get("eval_rows", 0)}
    sets = {}
    for name, count in counts.items():
        if kind == "DPOTrainer":
            rows = pairs(count, data["prompt"], data["seq_len"])
        else:
            lengths = data.get("lengths") or [data["seq_len"]] * count
            rows = [
                {"input_ids": one["input_ids"]}
                for one in token_rows(lengths if count else [], model.config.vocab_size)
            ]
        if rows:
            sets[name] = Dataset.from_list(rows)
    more: Row = {}
    if program.get("peft"):
        from peft import LoraConfig

        more["peft_config"] = LoraConfig(**program["peft"])
    return getattr(trl, kind)(
        model=model,
        args=getattr(trl, kind.replace("Trainer", "Config"))(**args),
        processing_class=tokenizer(),
        callbacks=[callback],
        **sets,
        **more,
    )


def begin(row: Row, path: Path, phases: Phases) -> Any:
    """Import, start CUDA, load."""
    import torch

    program = row["config"]["program"]
    settings = program.get("env", {}).get("PYTORCH_CUDA_ALLOC_CONF")
    if settings and phases.real:
        torch._C._accelerator_setAllocatorSettings(settings)
    phases.note("before_imports")
    import_tool(program)
    phases.note("start")
    if phases.real:
        torch.cuda.init()
        torch.cuda.synchronize()
    phases.note("cuda")
    options = program["load"]
    if device() == "cpu":
        options = {k: v for k, v in options.items() if k != "device_map"}
    model = load(path, options, program.get("quantization"))
    phases.end("loaded")
    return model


def over_lengths(row: Row, path: Path, folder: Path, phases: Phases) -> None:
    """Training alone, step by step."""
    model = begin(row, path, phases)
    trainer = make_trainer(row, model, folder, watch(phases, "startup", each_step=True))
    trainer.train()
    phases.end("trained")


def resumed(row: Row, path: Path, folder: Path, phases: Phases) -> None:
    """A second process goes on from what the first one saved."""
    model = begin(row, path, phases)
    trainer = make_trainer(row, model, folder, watch(phases, "resumed", each_step=False))
    trainer.train(resume_from_checkpoint=str(folder / "checkpoint-2"))
    phases.end("trained")


def whole(row: Row, path: Path, folder: Path, phases: Phases) -> None:
    """Load, train, evaluate, generate, save, merge."""
    model = begin(row, path, phases)
    program = row["config"]["program"]
    trainer = make_trainer(row, model, folder, watch(phases, "startup", each_step=False))
    trainer.train()
    phases.end("trained")
    trainer.evaluate()
    phases.end("evaluated")
    if wanted := program.get("generate"):
        _generate(trainer.model, wanted)
        phases.end("generated")
    saved = folder / "checkpoint-2"
    trainer.save_model(str(saved))
    phases.end("saved_model")
    trainer._save_optimizer_and_scheduler(str(saved))
    phases.end("saved_optimizer")
    if row["life"].get("resumed_in_a_second_process"):
        trainer._save_rng_state(str(saved))
        trainer.state.save_to_json(str(saved / "trainer_state.json"))
    if row["life"].get("merged"):
        merged = trainer.model.merge_and_unload()
        phases.end("merged")
        merged.save_pretrained(folder / "merged")
        phases.end("saved_merged")


def _generate(model: Any, wanted: Row) -> None:
    import torch

    sizes = (wanted["batch_size"], wanted["prompt_len"])
    model.eval()
    model.generation_config.eos_token_id = None
    where = next(model.parameters()).device
    prompt = torch.randint(4, model.config.vocab_size, sizes, device=where)
    new = wanted["max_new_tokens"]
    model.generate(
        input_ids=prompt,
        attention_mask=torch.ones_like(prompt),
        max_new_tokens=new,
        min_new_tokens=new,
        do_sample=False,
        use_cache=wanted["use_cache"],
        pad_token_id=0,
    )
