"""Where a model lies: a file, a folder or the Hugging Face hub. Headers are read, never weights."""
