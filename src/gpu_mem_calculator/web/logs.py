"""The service's log: one line of JSON for each record, on stderr."""

from __future__ import annotations

import logging
import sys
import time
from traceback import format_exception
from typing import Any

import msgspec

from ..ledger.secrets import hide

LOG = logging.getLogger("gpu_mem_calculator.web")


class JsonLines(logging.Formatter):
    """A record as one line of JSON."""

    def format(self, record: logging.LogRecord) -> str:
        """The record's time (UTC), level, message and fields."""
        line: dict[str, Any] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
            + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "event": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["trace"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line).decode()


def start_logs(level: str) -> None:
    """Log lines of JSON to stderr from this level on."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    LOG.handlers[:] = [handler]
    LOG.setLevel(level.upper())
    LOG.propagate = False


def log_fault(name: str, error: BaseException) -> None:
    """Log a fault of ours: its id, which the client has, and its traceback without secrets."""
    trace = hide("".join(format_exception(error)))
    LOG.error("fault", extra={"fields": {"id": name, "trace": trace}})
