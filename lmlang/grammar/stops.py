"""What ends an output: the first stop text or pattern in a stream, no part of it shown."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from lmlang.grammar.search import search_for


class StopMatcher:
    """Finds the first stop in a stream of text and never lets a part of it through.

    The stop that is found is the one that ends first, the longest of those that end there; so it
    does not matter how the stream was cut. What may yet become a stop is held back, and no more;
    for a pattern such as ``a.*b`` that is all that comes behind an a, up to the line's end. Not
    thread-safe; a new one for every output.

    Args:
        stops: Texts to look for, none of them empty; may be none at all.
        patterns: Regular expressions to look for (see `Search`).
        acts: Whether a stop text that begins at a character of the stream is one; else it is
            content.
    """

    def __init__(
        self,
        stops: Sequence[str],
        patterns: Sequence[str] = (),
        acts: Callable[[int], bool] = lambda start: True,
    ) -> None:
        self._stops = tuple(stops)
        self._acts = acts
        self._patterns = tuple(patterns)
        self._stream = search_for(self._patterns).begin() if patterns else None
        self._length = 0
        self._held = ""
        self._found: str | None = None

    def skip(self, text: str) -> None:
        """Let text pass that is content, whatever it holds; only before the first `push`."""
        if text and self._patterns:
            self._stream = search_for(self._patterns).begin(text)

    def push(self, text: str) -> tuple[str, str | None]:
        """Take more of the stream.

        Returns:
            The text that may be shown now, and the stop if it is now complete; after that, what
            comes is ignored.
        """
        if self._found is not None:
            return "", self._found
        base, old = self._length - len(self._held), len(self._held)
        self._length += len(text)
        whole = self._held + text
        ends = [
            (start + len(stop), start)
            for stop in self._stops
            if (start := self._first(stop, whole, max(0, old - len(stop) + 1), base)) >= 0
        ]
        shown = len(whole) - max((_overlap(whole, stop) for stop in self._stops), default=0)
        if self._stream is not None:
            matched = self._stream.push(text)
            if matched is not None:
                ends.append((matched[1] - base, matched[0] - base))
            shown = min(shown, self._stream.first_live - base)
        if ends:
            end, start = min(ends)
            self._found, self._held = whole[start:end], ""
            return whole[:start], self._found
        self._held = whole[shown:]
        return whole[:shown], None

    def _first(self, stop: str, whole: str, start: int, base: int) -> int:
        """Where a stop text first stands that acts, from ``start`` on; -1 for nowhere."""
        while (start := whole.find(stop, start)) >= 0 and not self._acts(base + start):
            start += 1
        return start

    def finish(self) -> str:
        """The text that was held back, at the end of a stream without a stop."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of ``text`` that begins ``stop``."""
    start = max(0, len(text) - len(stop) + 1)
    while (start := text.find(stop[0], start)) >= 0:
        if stop.startswith(text[start:]):
            return len(text) - start
        start += 1
    return 0
