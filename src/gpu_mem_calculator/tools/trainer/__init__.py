"""What programs on top of transformers share: loading, PEFT, optimizers, launches."""
