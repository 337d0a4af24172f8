"""Answers kept in memory, of questions whose answer never changes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from threading import Lock
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Answer = TypeVar("Answer")


class Kept(Generic[Key, Answer]):
    """Least recently used first out, so that all together weigh `most` or less."""

    def __init__(self, most: int, weigh: Callable[[Answer], int]) -> None:
        self.most, self.weigh = most, weigh
        self.lock = Lock()
        self.answers: OrderedDict[Key, Answer] = OrderedDict()
        self.weight = 0

    def get(self, key: Key) -> Answer | None:
        with self.lock:
            if key in self.answers:
                self.answers.move_to_end(key)
            return self.answers.get(key)

    def put(self, key: Key, answer: Answer) -> None:
        with self.lock:
            if key in self.answers:
                return
            self.answers[key] = answer
            self.weight += self.weigh(answer)
            while self.weight > self.most:
                self.weight -= self.weigh(self.answers.popitem(last=False)[1])
