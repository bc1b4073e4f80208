"""LLaMA-Factory (commit ff6d4d1): llamafactory-cli train and its YAML files."""
