"""Ray Serve: applications of `ray.serve.llm`, which start vLLM."""
