"""Classes of characters that an automaton does not tell apart, numbered; sets of them as bits.

    sets  [a-z] [0-9a-f]   ->   classes   0: all others   1: a-f   2: g-z   3: 0-9
                                [a-z] = 0b0110            [0-9a-f] = 0b1010

Surrogates are no characters of a text and are in no class.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence

from lmlang.grammar.charset import LAST, SURROGATES, Ranges


def _rank(code: int) -> tuple[int, int, int]:
    """Which characters a completion is made of: short ones in JSON, letters first."""
    character = chr(code)
    if not 0x20 <= code < 0x7F:
        size = 2 if character in "\b\f\n\r\t" else 6
    else:
        size = 2 if character in '"\\' else 1
    kind = 0 if character.islower() else 1 if character.isalnum() else 2
    return size, kind, code


_ASCII = sorted(range(128), key=_rank)
_RANKS = {code: rank for rank, code in enumerate(_ASCII)}


class Alphabet:
    """Classes of characters; immutable but for caches, thread-safe.

    Args:
        firsts: The first code points of all intervals, 0 the first.
        classes: The class of each interval; -1 for surrogates.
        count: How many classes there are.
    """

    def __init__(self, firsts: list[int], classes: list[int], count: int) -> None:
        self._firsts = firsts
        self._classes = classes
        self.count = count
        self.all = (1 << count) - 1
        """The set of all classes."""
        self._within: dict[tuple[int, int], int] = {}
        self._letters: dict[tuple[int, int], tuple[int, ...]] = {}
        self._sizes: dict[int, int] = {}
        self._choices: dict[int, str] = {}
        best = [-1] * count
        for code in _ASCII:
            number = self.letter(code)
            if best[number] < 0:
                best[number] = code
        for first, number in zip(firsts, classes, strict=True):
            if number >= 0 and best[number] < 0:
                best[number] = first
        self._best = best

    def letter(self, code: int) -> int:
        """The class of a code point; -1 for a surrogate."""
        return self._classes[bisect_right(self._firsts, code) - 1]

    def within(self, first: int, last: int) -> int:
        """The classes of which some character lies between two code points, both included."""
        found = self._within.get((first, last))
        if found is None:
            start, end = bisect_right(self._firsts, first), bisect_right(self._firsts, last)
            found = 0
            for number in {*self._classes[start - 1 : end]}:
                found |= 1 << number if number >= 0 else 0
            self._within[first, last] = found
        return found

    def letters(self, first: int, last: int) -> tuple[int, ...]:
        """The same as numbers."""
        found = self._letters.get((first, last))
        if found is None:
            start = bisect_right(self._firsts, first) - 1
            end = bisect_right(self._firsts, last)
            found = tuple(set(self._classes[start:end]) - {-1})
            self._letters[first, last] = found
        return found

    def first(self, some: int, first: int, last: int) -> int:
        """The first code point of some classes between two, both included; there must be one."""
        at = bisect_right(self._firsts, first) - 1
        wanted = set(bits(some))
        while self._classes[at] not in wanted:
            at += 1
        found = max(first, self._firsts[at])
        assert found <= last
        return found

    def ranges(self, some: int) -> Iterator[tuple[int, int]]:
        """The code points of some classes, in ascending order."""
        ends = [*self._firsts[1:], LAST + 1]
        for first, end, number in zip(self._firsts, ends, self._classes, strict=True):
            if number >= 0 and some >> number & 1:
                yield first, end - 1

    def size(self, some: int) -> int:
        """How many characters are in some classes."""
        found = self._sizes.get(some)
        if found is None:
            found = sum(last - first + 1 for first, last in self.ranges(some))
            self._sizes[some] = found
        return found

    def characters(self, some: int, limit: int) -> Iterator[str]:
        """The characters of some classes, up to a limit; `choice` is the first."""
        first = self.choice(some)
        yield first
        limit -= 1
        for start, last in self.ranges(some):
            for code in range(start, last + 1):
                if limit <= 0:
                    return
                if code != ord(first):
                    limit -= 1
                    yield chr(code)

    def choice(self, some: int) -> str:
        """The character of some classes that takes the fewest bytes, letters preferred."""
        found = self._choices.get(some)
        if found is None:
            codes = [self._best[number] for number in bits(some)]
            found = chr(min(codes, key=lambda code: _RANKS.get(code, code)))
            self._choices[some] = found
        return found


def bits(some: int) -> Iterator[int]:
    """The numbers of the bits that are set."""
    while some:
        low = some & -some
        yield low.bit_length() - 1
        some ^= low


def alphabet_of(sets: Sequence[Ranges]) -> tuple[Alphabet, list[int]]:
    """The alphabet that tells some sets apart, and each set as classes of it."""
    toggles: dict[int, int] = {0: 0}
    for number, ranges in enumerate((*sets, (SURROGATES,))):
        bit = 1 << number
        for first, last in ranges:
            toggles[first] = toggles.get(first, 0) ^ bit
            toggles[last + 1] = toggles.get(last + 1, 0) ^ bit
    toggles.pop(LAST + 1, None)
    none = 1 << len(sets)
    firsts, classes, numbers, here = sorted(toggles), [], dict[int, int](), 0
    for first in firsts:
        here ^= toggles[first]
        classes.append(-1 if here & none else numbers.setdefault(here, len(numbers)))
    masks = [0] * len(sets)
    for inside, number in numbers.items():
        for index in bits(inside):
            masks[index] |= 1 << number
    return Alphabet(firsts, classes, len(numbers)), masks


def alphabet_of_characters(characters: Sequence[str]) -> tuple[Alphabet, list[int]]:
    """The alphabet that tells some characters apart, in ascending order, and each as its class."""
    starts = {0: 0, SURROGATES[0]: -1, SURROGATES[1] + 1: 0}
    for number, character in enumerate(characters, 1):
        starts[ord(character)] = number
        if ord(character) < LAST:
            starts.setdefault(ord(character) + 1, 0)
            if ord(character) + 1 == SURROGATES[0]:
                starts[SURROGATES[0]] = -1
    firsts = sorted(starts)
    alphabet = Alphabet(firsts, [starts[first] for first in firsts], len(characters) + 1)
    return alphabet, [1 << number for number in range(1, len(characters) + 1)]


def product_of(alphabets: Sequence[Alphabet]) -> tuple[Alphabet, list[list[int]]]:
    """The alphabet that tells apart what any of some does.

    Returns:
        It, and for each of the others what each of its classes is in it.
    """
    firsts = sorted({first for alphabet in alphabets for first in alphabet._firsts})
    columns = []
    for alphabet in alphabets:
        column, at, ends = [], 0, alphabet._firsts[1:]
        for first in firsts:
            while at < len(ends) and ends[at] <= first:
                at += 1
            column.append(alphabet._classes[at])
        columns.append(column)
    numbers: dict[tuple[int, ...], int] = {}
    classes = [
        -1 if letters[0] < 0 else numbers.setdefault(letters, len(numbers))
        for letters in zip(*columns, strict=True)
    ]
    lifted = [[0] * alphabet.count for alphabet in alphabets]
    for letters, number in numbers.items():
        for index, letter in enumerate(letters):
            lifted[index][letter] |= 1 << number
    return Alphabet(firsts, classes, len(numbers)), lifted
