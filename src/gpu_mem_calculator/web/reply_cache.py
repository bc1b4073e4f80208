"""Answers that were given before: the same question has the same answer.

Going back and forth in the page asks the same again and again. The oldest go first when they take
more than their share of memory; only what was answered is kept, never a refusal.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from .worker_messages import TaskReply

ENTRY_BYTES = 500  # what an entry takes beside its bytes


class ReplyCache:
    """Replies by question, within a number of bytes."""

    def __init__(self, most_bytes: int) -> None:
        self.most_bytes = most_bytes
        self.bytes = 0
        self._replies: OrderedDict[Any, TaskReply] = OrderedDict()

    def get(self, question: Any) -> TaskReply | None:
        """The reply, where there is one."""
        reply = self._replies.get(question)
        if reply is not None:
            self._replies.move_to_end(question)
        return reply

    def keep(self, question: Any, reply: TaskReply) -> None:
        """Remember a reply; the ones not asked for longest make room."""
        if question in self._replies:
            return
        self._replies[question] = reply
        self.bytes += _size(question, reply)
        while self.bytes > self.most_bytes:
            self.bytes -= _size(*self._replies.popitem(last=False))


def _size(question: Any, reply: TaskReply) -> int:
    _, body, options = question
    return ENTRY_BYTES + len(body) + len(reply.body) + sum(len(k) + len(v) for k, v in options)
