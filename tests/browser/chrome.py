"""Which browser the page is looked at with, and a visit that notices what goes wrong."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from playwright.sync_api import Browser, ConsoleMessage, Error, Page, Playwright, Request

# the first has no window to draw, and takes a quarter less time
NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
# Nothing but this machine can be reached; what the page asks for all the same is noted.
ALONE = "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"
FLAGS = ("--no-sandbox", "--disable-gpu", "--disable-background-networking", ALONE)

# Whether the newest state is drawn, with its replay and its what-ifs; argument: redraws before it.
SETTLED = """before =>
  performance.getEntriesByName("redraw").length > before
  && !document.querySelector("#result.empty, .pending, .numbers .old, .chip-list.stale")
  && document.querySelector(".status")?.textContent === ""
  && document.querySelector(".chip-list")?.firstChild !== null"""
POLLING = 50  # milliseconds; at every frame, looking would take half of the processor
REDRAWS = "performance.getEntriesByName('redraw').length"
FORGET = "localStorage.clear(); sessionStorage.clear()"
ANSWERED = re.compile(r"the server responded with a status of (\d+)")
UNANSWERED = re.compile(r"net::ERR_")


def launched(playwright: Playwright) -> Browser:
    """The system's browser, else the one that Playwright brings."""
    own = next(filter(None, map(shutil.which, NAMES)), None)
    return playwright.chromium.launch(executable_path=own, args=list(FLAGS))


@dataclass
class Visit:
    """A page of the service, and everything odd that it did."""

    page: Page
    address: str
    strangers: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    # answers that a test provokes, which Chrome writes to its console; 0: no answer
    provoked: set[int] = field(default_factory=set)

    def open(self, path: str = "/", settled: bool = True) -> Page:
        """Go to an address of the service; the calculator has then drawn everything."""
        self.page.goto(self.address + path)
        if settled:
            self.settle()
        return self.page

    def settle(self, before: int = 0) -> None:
        """Wait until the newest state is drawn, with its replay and its what-ifs."""
        self.page.wait_for_function(SETTLED, arg=before, polling=POLLING)

    def change(self, act: Callable[[], Any]) -> None:
        """Do something that changes the state, and wait until that is drawn."""
        before = self.page.evaluate(REDRAWS)
        act()
        self.settle(before)

    def note(self) -> None:
        """Begin to notice requests elsewhere, errors of the page and lines of the console."""
        for event, notice in self._notices():
            self.page.on(event, notice)

    def leave(self) -> Page:
        """End the visit; the page is then as a new one, but for its size and its media."""
        for event, notice in self._notices():
            self.page.remove_listener(event, notice)
        self.page.unroute_all(behavior="ignoreErrors")
        if self.page.url.startswith(self.address):
            self.page.evaluate(FORGET)
        self.page.goto("about:blank")
        return self.page

    def _notices(self) -> tuple[tuple[Any, Callable[[Any], None]], ...]:
        return ("request", self._asked), ("pageerror", self._failed), ("console", self._said)

    def _asked(self, request: Request) -> None:
        if request.url.startswith("http") and not request.url.startswith(f"{self.address}/"):
            self.strangers.append(request.url)

    def _failed(self, error: Error) -> None:
        self.errors.append(str(error))

    def _said(self, line: ConsoleMessage) -> None:
        if line.type != "error":
            return
        answered = ANSWERED.search(line.text)
        status = int(answered[1]) if answered else 0 if UNANSWERED.search(line.text) else None
        if status not in self.provoked:
            self.errors.append(line.text)
