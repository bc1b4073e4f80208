"""Reads the pickle of a memory snapshot, of which nothing is executed.

`torch.cuda.memory._dump_snapshot` writes dicts, lists, strings and whole numbers. Only their
opcodes are read, and every other one is refused. Entries of the trace are added up when they end,
and not kept; a stack that has nothing but references is kept as the place where it stands. So a
file of 300 MB takes less than 1 GiB.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping
from itertools import repeat
from sys import getrefcount
from typing import Any

from msgspec import Struct

from ...runfile.text.errors import InputError

MOST_STEPS, CHECKED = 160 * 10**6, 2**15  # opcodes: of a pickle, between two checks
MOST_OPEN, MOST_MEMO, MOST_DICTS, DEEPEST = 10**6, 14 * 10**6, 7 * 10**6, 64
ROOM = 350 * 10**6  # bytes of objects that are kept
DICT, PAIR, LIST, ITEM, TEXT = 150, 140, 80, 48, 128  # bytes of one, at most
LONGEST_TEXT, LONGEST_NUMBER = 2**20, 16  # bytes
RUN = re.compile(rb"\](\x94|q.|r.{4})?\(((?:h.|j.{4}){1,999})e", re.DOTALL)
GET = re.compile(rb"h(.)|j(.{4})", re.DOTALL)
TAKEN = object()  # in the place of an entry that was added up
LENGTHS = {0x8C: 1, ord("X"): 4, 0x8D: 8}  # bytes of the length of a text
BYTES = {ord("C"): 1, ord("B"): 4, 0x8E: 8}
CONSTANTS = {ord("N"): None, 0x88: True, 0x89: False}
TUPLES = {0x85: 1, 0x86: 2, 0x87: 3}
SKIPPED = {0x80: 2, 0x95: 9}  # PROTO and FRAME, which say nothing that is needed
MARKED = {ord("t"), 0x91}  # a tuple or a frozen set of what stands behind the mark


class SnapshotError(InputError):
    """A pickle that is no memory snapshot, or is more than is read of one."""

    def __init__(self, why: str) -> None:
        super().__init__(f"a pickle was given, and not read as torch's memory snapshot: {why}")


class DeviceTrace(Struct):
    """The entries of a GPU's trace, added up from its begin.

    - `held`, `reserved`: bytes asked for, and of segments, more than at the begin
    - `highest`: of `held`, at the event `highest_event`, which is `top`
    - `oom`: the last entry that says that there was no room, with both sums at that time
    """

    events: int = 0
    held: int = 0
    reserved: int = 0
    highest: int = 0
    highest_event: int = 0
    top: Mapping[str, Any] = {}
    last: Mapping[str, Any] = {}
    oom: tuple[Mapping[str, Any], int, int] | None = None

    def add(self, entry: Mapping[str, Any]) -> None:
        """One more entry."""
        self.events += 1
        self.last = entry
        action, size = entry["action"], entry.get("size")
        if type(size) is not int:
            return
        if action == "alloc":
            self.held += size
            if self.held > self.highest:
                self.highest, self.highest_event, self.top = self.held, self.events, entry
        elif action == "free_requested":
            self.held -= size
        elif action in ("segment_alloc", "segment_map"):
            self.reserved += size
        elif action in ("segment_free", "segment_unmap"):
            self.reserved -= size
        elif action == "oom":
            self.oom = (entry, self.held, self.reserved)


class SnapshotReader:
    """Reads the plain opcodes of a pickle; the others are refused, and nothing is executed."""

    def __init__(self, data: bytes) -> None:
        self.data, self.room = data, ROOM
        self.stack: list[Any] = []
        self.marks: list[int] = []  # where a mark stands on the stack, and in the memo
        self.places: list[int] = []
        self.memo: list[Any] = []
        self.texts: dict[bytes, str] = {}
        self.keys: list[Any] = []  # of the last dict
        self.dicts = 0

    def read(self) -> Any:
        """What a pickle says, without the entries of its traces, which are added up."""
        try:
            return self._read()
        except (IndexError, ValueError, struct.error) as error:
            if isinstance(error, SnapshotError):
                raise
            raise SnapshotError("it is damaged, or its end is missing") from None

    def _read(self) -> Any:
        """The loop; the opcodes of an entry of the trace stand first, the most frequent ones."""
        data, stack, memo = self.data, self.stack, self.memo
        marks, places, texts = self.marks, self.places, self.texts
        push, run, number = stack.append, RUN.match, int.from_bytes
        wide, signed = struct.Struct("<I").unpack_from, struct.Struct("<i").unpack_from
        at = 0
        for _ in range(MOST_STEPS // CHECKED):
            self._check()
            for _ in repeat(None, CHECKED):
                code = data[at]
                if code == 0x68:  # BINGET
                    push(memo[data[at + 1]])
                    at += 2
                elif code == 0x8A:  # LONG1
                    size = data[at + 1]
                    if size > LONGEST_NUMBER:
                        raise SnapshotError(f"it has a number of {size} bytes")
                    push(number(data[at + 2 : at + 2 + size], "little", signed=True))
                    at += 2 + size
                elif code == 0x4A:  # BININT
                    push(signed(data, at + 1)[0])
                    at += 5
                elif code == 0x6A:  # LONG_BINGET
                    push(memo[wide(data, at + 1)[0]])
                    at += 5
                elif code == 0x94:  # MEMOIZE
                    memo.append(stack[-1])
                    at += 1
                elif code == 0x8C:  # SHORT_BINUNICODE
                    end = at + 2 + data[at + 1]
                    text = texts.get(data[at + 2 : end])
                    if text is None:
                        end = self._rare(code, at)
                    else:
                        push(text)
                    at = end
                elif code == 0x4B:  # BININT1
                    push(data[at + 1])
                    at += 2
                elif code == 0x28:  # MARK
                    marks.append(len(stack))
                    places.append(len(memo))
                    at += 1
                elif code == 0x7D:  # EMPTY_DICT
                    push({})
                    at += 1
                    if data[at : at + 2] == b"\x94(":
                        memo.append(stack[-1])
                        marks.append(len(stack))
                        places.append(len(memo))
                        at += 2
                elif code == 0x75:  # SETITEMS
                    self._fill_dict(marks.pop(), places.pop())
                    at += 1
                elif code == 0x5D:  # EMPTY_LIST
                    found = run(data, at)
                    at = self._list(at) if found is None else self._run(found)
                elif code == 0x4D:  # BININT2
                    push(data[at + 1] | data[at + 2] << 8)
                    at += 3
                elif code == 0x2E:  # STOP
                    return stack[-1]
                else:
                    at = self._rare(code, at)
        raise SnapshotError(f"it has more than {MOST_STEPS:,} opcodes")

    def _check(self) -> None:
        """The limits of memory."""
        if len(self.marks) > DEEPEST:
            raise SnapshotError(f"it is nested more than {DEEPEST} deep")
        many = len(self.memo) > MOST_MEMO or self.dicts > MOST_DICTS
        if self.room < 0 or len(self.stack) > MOST_OPEN or many:
            raise SnapshotError(
                "it has more objects than are read; record fewer events (max_entries), or no"
                " frames of C++ (stacks='python')"
            )

    def _rare(self, code: int, at: int) -> int:
        """The other opcodes; the place behind one."""
        data, stack = self.data, self.stack
        if code in LENGTHS:
            raw, at = self._bytes(at, LENGTHS[code])
            if raw not in self.texts:
                self.room -= TEXT + (2 if raw.isascii() else 5) * len(raw)
                self._check()
                self.texts[raw] = raw.decode("utf-8", "surrogatepass")
            stack.append(self.texts[raw])
            return at
        if code in BYTES:
            raw, at = self._bytes(at, BYTES[code])
            self.room -= TEXT + len(raw)
            self._check()
            stack.append(raw)
            return at
        if code in (0x65, 0x90):  # APPENDS, ADDITEMS
            self._fill_list(self._mark())
        elif code == 0x61:  # APPEND
            self._fill_list(len(stack) - 1)
        elif code == 0x73:  # SETITEM
            self._fill_dict(len(stack) - 2)
        elif code in (0x71, 0x72):  # BINPUT, LONG_BINPUT
            return self._put(at)
        elif code in CONSTANTS:
            stack.append(CONSTANTS[code])
        elif code in TUPLES or code in MARKED:
            self._tuple(len(stack) - TUPLES[code] if code in TUPLES else self._mark())
        elif code in (0x29, 0x8F):  # EMPTY_TUPLE, EMPTY_SET
            return self._list(at)
        elif code in SKIPPED:
            return at + SKIPPED[code]
        elif code == 0x47:  # BINFLOAT
            stack.append(struct.unpack_from(">d", data, at + 1)[0])
            return at + 9
        elif code == 0x8B:  # LONG4
            raw, at = self._bytes(at, 4)
            if len(raw) > LONGEST_NUMBER:
                raise SnapshotError(f"it has a number of {len(raw):,} bytes")
            stack.append(int.from_bytes(raw, "little", signed=True))
            return at
        else:
            raise SnapshotError(
                f"its byte {at:,} is the opcode {code:#04x}, which is for more than plain data;"
                " nothing was executed"
            )
        return at + 1

    def _mark(self) -> int:
        self.places.pop()
        return self.marks.pop()

    def _bytes(self, at: int, width: int) -> tuple[bytes, int]:
        """The bytes of a text, and the place behind it."""
        start = at + 1 + width
        length = int.from_bytes(self.data[at + 1 : start], "little")
        if length > min(LONGEST_TEXT, len(self.data) - start):
            raise SnapshotError(f"it has a text of {length:,} bytes, which is too long")
        return self.data[start : start + length], start + length

    def _put(self, at: int) -> int:
        """Remember the last object under a number; the place behind."""
        end = at + (2 if self.data[at] == 0x71 else 5)
        number = int.from_bytes(self.data[at + 1 : end], "little")
        if number != len(self.memo):
            raise SnapshotError(f"it numbers its object {len(self.memo):,} as {number:,}")
        self.memo.append(self.stack[-1])
        return end

    def _list(self, at: int) -> int:
        self.room -= LIST
        self.stack.append([])
        return at + 1

    def _run(self, found: re.Match[bytes]) -> int:
        """A list of references alone is kept as its place."""
        self.stack.append(found.start())
        if found[1] == b"\x94":
            self.memo.append(found.start())
        elif found[1]:
            self._put(found.start(1))
        return found.end()

    def _fill_list(self, start: int) -> None:
        """What stands from a place on goes to the list or the set in front of it."""
        stack = self.stack
        items = [one for one in stack[start:] if one is not TAKEN]
        del stack[start:]
        self._charge(items)
        if type(stack[-1]) is not list:
            raise SnapshotError("it adds an item to what is no list")
        stack[-1] += items

    def _tuple(self, start: int) -> None:
        """What stands from a place on is a tuple."""
        if start < 0:
            raise SnapshotError("it has a tuple of more than there is")
        items = self.stack[start:]
        del self.stack[start:]
        self.room -= LIST
        self._charge(items)
        self.stack.append(items)

    def _charge(self, items: list[Any]) -> None:
        """What items take that are kept; a dict has been charged, but for an empty one."""
        self.room -= ITEM * len(items) + DICT * items.count({})

    def _fill_dict(self, start: int, place: int = 0) -> None:
        """What stands from a place on goes to the dict in front of it; an entry is then added up.

        place: in the memo, behind the dict
        """
        stack, memo = self.stack, self.memo
        self.dicts += 1
        items = stack[start:]
        del stack[start:]
        keys, given = items[::2], stack[-1]
        if type(given) is not dict or start < 1:
            raise SnapshotError("it sets a key of what is no dict")
        if keys != self.keys:
            self._take_keys(keys)
        given.update(zip(keys, items[1::2], strict=True))
        above = stack[-2] if len(stack) > 1 else None
        trace = stack[-3] if above is TAKEN else above
        if "action" not in given or type(trace) is not list:
            self.room -= DICT + PAIR * len(keys)
            return
        if above is TAKEN:
            stack.pop()
        else:
            stack[-1] = TAKEN
        if place and memo[place - 1] is given:
            memo[place - 1] = TAKEN
        if getrefcount(given) > 2:  # something else has it
            self.room -= DICT + PAIR * len(keys)
        if not trace or type(trace[0]) is not DeviceTrace:
            trace.insert(0, DeviceTrace())
        trace[0].add(given)

    def _take_keys(self, keys: list[Any]) -> None:
        """Keys are texts alone: of numbers many can have the same hash."""
        if any(type(one) is not str for one in keys):
            raise SnapshotError("it has a key that is no text")
        self.keys = keys

    def frames(self, given: Any) -> list[Mapping[str, Any]]:
        """The frames of a stack, the innermost first."""
        found = (
            RUN.match(self.data, given)
            if type(given) is int and 0 <= given < len(self.data)
            else None
        )
        if found is not None:
            numbers = (one[1] or one[2] for one in GET.finditer(found[2]))
            all_numbers = (int.from_bytes(one, "little") for one in numbers)
            given = [self.memo[one] for one in all_numbers if one < len(self.memo)]
        return [one for one in given if type(one) is dict] if type(given) is list else []
