"""From texts to words, from words to ranks, from ranks to rows of ids."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

SPECIAL = 4  # ids that are no words
_PADDING, _START, _UNKNOWN = 0, 1, 2
_NAMES = ["<padding>", "<start>", "<unknown>", ""]
_BREAK = "<br />"  # the only markup in the reviews
_WORD = re.compile(r"[^\W_]+(?:'[^\W_]+)*")  # letters and digits of any script; an apostrophe belongs to a word only between them
_LONGEST = 100  # characters: the words are stored as an array of equal widths


def split(text: str) -> list[str]:
    """The words of a text, in lower case."""
    return _WORD.findall(text.lower().replace(_BREAK, " "))


def by_frequency(texts: Iterable[str]) -> list[str]:
    """The words of these texts by how often they occur, most frequent first, ties in the order of their letters."""
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(split(text))
    return sorted((word for word in counts if len(word) <= _LONGEST), key=lambda word: (-counts[word], word))


def ranks(texts: Iterable[str], words: Sequence[str]) -> Iterator[list[int]]:
    """For each text the ranks of its words, counted from 1; 0 for a word that is not in the list."""
    known = {word: rank for rank, word in enumerate(words, start=1)}
    for text in texts:
        yield [known.get(word, 0) for word in split(text)]


def by_id(words: Sequence[str], vocabulary: int) -> np.ndarray:
    """What each id stands for, str (vocabulary,); "" where it stands for nothing."""
    known = [*_NAMES, *words[: vocabulary - SPECIAL]]
    return np.array(known + [""] * (vocabulary - len(known)))


def rows(reviews: Iterable[Sequence[int]], count: int, length: int, vocabulary: int) -> np.ndarray:
    """Ids of `count` reviews given as ranks, int32 (count, length)."""
    found = np.full((count, length), _PADDING, np.int32)
    for row, review in zip(found, reviews, strict=True):
        tail = np.array(review[-length:], np.int64)
        ids = tail + (SPECIAL - 1)
        ids[(tail == 0) | (ids >= vocabulary)] = _UNKNOWN
        if len(review) < length:
            row[-len(review) - 1] = _START
        row[length - len(ids):] = ids
    return found
