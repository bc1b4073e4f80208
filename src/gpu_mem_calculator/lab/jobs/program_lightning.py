"""Lightning's Trainer around a model of transformers, whose own loss is returned."""

from __future__ import annotations

from typing import Any

from .job import Job
from .model import import_extra
from .program_batches import token_rows
from .program_trainer import rows_needed
from .program_weights import load_model

# Arguments of the program that are the module's, not the trainer's.
MODULE = ("batch_size", "gradient_checkpointing", "fused")


def train_lightning(job: Job) -> None:
    """Run Lightning's Trainer for the world's number of optimizer steps."""
    lightning, torch = import_extra("lightning", "programs"), import_extra("torch", "torch")
    program = job.file.program
    assert program is not None
    args = {key: value for key, value in program.args.items() if key not in MODULE}
    rows = torch.tensor(
        token_rows(job.resolved.run.arch.vocab, int(job.resolved.run.seq), rows_needed(job))
    )
    loader = torch.utils.data.DataLoader(rows, batch_size=int(job.resolved.run.batch))
    short = {
        "accelerator": "gpu" if job.world.device == "cuda" else "cpu",
        "devices": 1,
        "max_steps": job.world.steps,
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    lightning.Trainer(**{**short, **args}).fit(_module(job, lightning, torch), loader)


def _module(job: Job, lightning: Any, torch: Any) -> Any:
    program, model = job.file.program, load_model(job)
    assert program is not None
    if program.args.get("gradient_checkpointing"):
        model.gradient_checkpointing_enable()
    model.train()

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model, self.ended = model, 0

        def on_train_start(self) -> None:
            job.world.mark("model")

        def on_train_batch_end(self, *args: Any) -> None:
            if self.trainer.global_step > self.ended:
                job.world.mark(f"s{self.ended}.step")
                self.ended = self.trainer.global_step

        def training_step(self, batch: Any, index: int) -> Any:
            return self.model(input_ids=batch, labels=batch).loss

        def configure_optimizers(self) -> Any:
            assert program is not None
            fused = program.args.get("fused")
            return torch.optim.AdamW(self.parameters(), lr=1e-5, fused=fused)

    return Module()
