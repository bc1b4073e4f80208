"""Train with Lightning."""

import json
import os
from types import SimpleNamespace

import torch
from transformers import AutoModelForCausalLM

try:
    import lightning as L  # noqa: N812
except ImportError:
    import pytorch_lightning as L  # noqa: N812

args = SimpleNamespace(**json.loads(os.environ["ARGS"]))


class Batches(torch.utils.data.Dataset):
    """One batch an item."""

    def __init__(self, vocab_size, batch_size, lengths):
        self.shapes = [(vocab_size, batch_size, length) for length in lengths]

    def __len__(self):
        return len(self.shapes)

    def __getitem__(self, index):
        vocab_size, batch_size, length = self.shapes[index]
        return torch.randint(0, vocab_size, (batch_size, length))


class LitModel(L.LightningModule):
    """The model and its optimizer."""

    def __init__(self):
        super().__init__()
        self.model = AutoModelForCausalLM.from_pretrained(
            args.model, dtype=getattr(torch, args.dtype), attn_implementation=args.attention
        )
        if args.gradient_checkpointing:
            self.model.gradient_checkpointing_enable()
        self.model.train()

    def training_step(self, batch, batch_idx):
        """The loss of a batch."""
        loss = self.model(input_ids=batch, labels=batch).loss
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch, batch_idx):
        """The loss of a batch of the validation set."""
        outputs = self.model(input_ids=batch, labels=batch)
        self.log("val_loss", outputs.loss, prog_bar=True)

    def configure_optimizers(self):
        """One optimizer for everything."""
        if args.optimizer == "sgd":
            return torch.optim.SGD(self.parameters(), lr=1e-3, momentum=0.9)
        return torch.optim.AdamW(self.parameters(), lr=2e-5, fused=args.fused)


def main():
    """Fit."""
    module = LitModel()
    vocab_size = module.model.config.vocab_size

    def loader(batch_size, lengths):
        return torch.utils.data.DataLoader(
            Batches(vocab_size, batch_size, lengths), batch_size=None, num_workers=0
        )

    shape = args.eval
    validation = (
        loader(shape["batch_size"], [shape["seq_len"]] * shape["batches"]) if shape else None
    )
    trainer = L.Trainer(
        accelerator=args.accelerator,
        devices=1,
        precision=args.precision,
        max_epochs=1,
        gradient_clip_val=args.gradient_clip_val,
        num_sanity_val_steps=0,
        logger=False,
        enable_checkpointing=False,
    )
    trainer.fit(module, loader(args.batch_size, args.lengths), validation)


if __name__ == "__main__":
    main()
