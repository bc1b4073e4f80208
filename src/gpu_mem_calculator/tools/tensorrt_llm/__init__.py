"""trtllm-serve and its YAML file."""
