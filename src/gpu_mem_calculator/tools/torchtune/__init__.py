"""torchtune: its `tune run` commands and its YAML files."""
