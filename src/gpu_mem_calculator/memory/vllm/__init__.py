"""vLLM: what its workers hold, one file per kind of memory."""
