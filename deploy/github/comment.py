"""Writes one comment on a pull request: updates the one of an earlier run, else adds it.

    python comment.py FILE

The environment has GITHUB_API_URL and GITHUB_REPOSITORY, and the action's NUMBER, TOKEN and AUTHOR.
A token that may not write, as those of pull requests from forks, is a warning: the job's summary
has the same text.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

MARKER = "<!-- gpu-mem-calculator -->"
NOTHING = "no training or serving configuration changed"
PAGE, MOST_PAGES, SECONDS = 100, 50, 30


def main(path: str) -> int:
    """Write the comment of a file."""
    text = Path(path).read_text(encoding="utf-8")
    try:
        old = next(_own_comments(), None)
        if old is not None:
            _ask("PATCH", f"issues/comments/{old['id']}", {"body": text})
        elif NOTHING not in text.splitlines()[1]:
            _ask("POST", f"issues/{os.environ['NUMBER']}/comments", {"body": text})
    except HTTPError as error:
        if error.code not in (401, 403, 404):
            print(f"::error::the comment was not written: HTTP {error.code}")
            return 1
        print(f"::warning::the token may not write a comment (HTTP {error.code}); see the summary")
    except URLError as error:
        print(f"::error::the comment was not written: {error.reason}")
        return 1
    return 0


def _own_comments() -> Iterator[dict[str, Any]]:
    """The comments that begin with the marker and that the token's owner wrote."""
    for page in range(1, MOST_PAGES + 1):
        where = f"issues/{os.environ['NUMBER']}/comments?per_page={PAGE}&page={page}"
        found = _ask("GET", where)
        for one in found:
            author = (one.get("user") or {}).get("login")
            if (one.get("body") or "").startswith(MARKER) and author == os.environ["AUTHOR"]:
                yield one
        if len(found) < PAGE:
            return


def _ask(method: str, where: str, body: Any = None) -> Any:
    """The answer of the forge's API."""
    address = f"{os.environ['GITHUB_API_URL']}/repos/{os.environ['GITHUB_REPOSITORY']}/{where}"
    headers = {
        "Accept": "application/vnd.github+json",
        "Authorization": f"Bearer {os.environ['TOKEN']}",
        "Content-Type": "application/json",
        "X-GitHub-Api-Version": "2022-11-28",
    }
    data = None if body is None else json.dumps(body).encode()
    with urlopen(Request(address, data, headers, method=method), timeout=SECONDS) as answer:
        return json.load(answer)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1]))
