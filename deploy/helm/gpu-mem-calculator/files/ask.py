"""Asks the page's Service whether it is ready, for a minute, and then for an estimate."""

import json
import sys
import time
import urllib.request

RUN = {"model": {"name": "llama2-7b"}, "hardware": {"num_gpus": 8}}
service, until = sys.argv[1], time.monotonic() + 60


def ask(path: str, body: object = None) -> bytes:
    """The answer to a GET, or with a body to a POST."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(service + path, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=30) as answer:
        return bytes(answer.read())


while True:
    try:
        ask("/readyz")
        break
    except OSError as problem:
        if time.monotonic() > until:
            sys.exit(f"{service} is not ready after a minute: {problem}")
        time.sleep(1)
try:
    allocated = json.loads(ask("/api/calculate", RUN))["allocated_bytes"]
except (OSError, ValueError, KeyError) as problem:
    sys.exit(f"{service} is ready, but makes no estimate: {problem}")
print(f"{service} answers: llama2-7b on 8 GPUs allocates {allocated:,} bytes on each")
