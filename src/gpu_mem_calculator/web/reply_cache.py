"""Earlier replies: the same question has the same reply.

Going back and forth in the page repeats requests. The least recently used replies are dropped when
the cache exceeds its bytes; refusals are never kept.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from .worker_messages import TaskReply

ENTRY_BYTES = 500  # an estimate of the Python objects of one entry


class ReplyCache:
    """Replies by question, at most `most_bytes` in all."""

    def __init__(self, most_bytes: int) -> None:
        self.most_bytes = most_bytes
        self.bytes = 0
        self._replies: OrderedDict[Any, TaskReply] = OrderedDict()

    def get(self, question: Any) -> TaskReply | None:
        """The remembered reply, or None."""
        reply = self._replies.get(question)
        if reply is not None:
            self._replies.move_to_end(question)
        return reply

    def keep(self, question: Any, reply: TaskReply) -> None:
        """Remember a reply; drop the least recently used ones above `most_bytes`."""
        if question in self._replies:
            return
        self._replies[question] = reply
        self.bytes += _size(question, reply)
        while self.bytes > self.most_bytes:
            self.bytes -= _size(*self._replies.popitem(last=False))


def _size(question: Any, reply: TaskReply) -> int:
    _, body, options = question
    return ENTRY_BYTES + len(body) + len(reply.body) + sum(len(k) + len(v) for k, v in options)
