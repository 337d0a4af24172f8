"""Answers kept in memory, of questions whose answer never changes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Mapping
from threading import Lock
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Answer = TypeVar("Answer")


class Kept(Generic[Key, Answer]):
    """Least recently used first out, so that all together weigh `most` or less; without `weigh` each weighs 1."""

    def __init__(self, most: int, weigh: Callable[[Answer], int] = lambda answer: 1) -> None:
        self.most, self.weigh = most, weigh
        self.lock = Lock()
        self.answers: OrderedDict[Key, Answer] = OrderedDict()
        self.weight = 0

    def get(self, key: Key) -> Answer | None:
        with self.lock:
            if key in self.answers:
                self.answers.move_to_end(key)
            return self.answers.get(key)

    def all(self, keys: Iterable[Key], make: Callable[[list[Key]], Mapping[Key, Answer]]) -> dict[Key, Answer]:
        """The answers to all of these; those that are not kept are made together."""
        wanted = list(keys)
        with self.lock:
            found = {key: self.answers[key] for key in wanted if key in self.answers}
            for key in found:
                self.answers.move_to_end(key)
        missing = [key for key in wanted if key not in found]
        made = make(missing) if missing else {}
        for key, answer in made.items():
            self.put(key, answer)
        return {**found, **made}

    def put(self, key: Key, answer: Answer) -> None:
        with self.lock:
            if key in self.answers:
                return
            self.answers[key] = answer
            self.weight += self.weigh(answer)
            while self.weight > self.most:
                self.weight -= self.weigh(self.answers.popitem(last=False)[1])
