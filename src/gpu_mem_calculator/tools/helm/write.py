"""Writes a run as values of the chart `deploy/helm/gpu-mem-calculator`: a Job that estimates it."""

from __future__ import annotations

from ...runfile.config import RunFile
from ...runfile.resolve.resolved_run import ResolvedRun
from ..run_file.write import run_data
from ..writing.texts import yaml_text


def write(file: RunFile, resolved: ResolvedRun) -> str:
    """The text of values.yaml; the Job fails where the run does not fit."""
    return yaml_text({"mode": "estimate", "run": run_data(file), "estimate": {"check": True}})
