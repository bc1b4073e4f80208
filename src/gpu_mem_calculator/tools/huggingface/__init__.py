"""Commands and files of programs on top of transformers.Trainer: TRL, examples, own scripts."""
