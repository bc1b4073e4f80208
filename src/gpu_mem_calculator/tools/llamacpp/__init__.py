"""llama-server, llama-cli and their GGUF files."""
