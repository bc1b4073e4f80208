"""Kubernetes manifests, KServe and compose files: the commands in their containers."""
