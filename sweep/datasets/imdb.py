"""IMDb: film reviews, 25,000 for training and 25,000 for test, as sequences of word ids; the class is whether the writer liked it.

Ids are numbered as Keras does it: 0 is padding, 1 the start of a review, 2 a word outside the vocabulary, 3 nothing, and 3 + rank the
words by how often they occur, so that the most frequent one is 4. A review is its start and its words; of a longer one than `length`
the last `length` ids are kept, and a shorter one has padding before it (Keras' `pre` for both). `vocabulary` counts ids, not words.

From texts, words and ranks are of the training set alone (`_imdb_words`). In Keras' file they are given; which reviews were counted is
not known, and the words themselves only where imdb_word_index.json lies beside it.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from sweep.contracts import Source
from sweep.datasets import _imdb_keras, _imdb_reviews, _imdb_words
from sweep.datasets._files import fetch

INPUT = "tokens"
SETTINGS = {"length": 200, "vocabulary": 10_000}
CLASSES = ["negative", "positive"]
LICENCE = "none stated"
CITATION = "Maas et al., Learning word vectors for sentiment analysis, Proc. ACL 2011"
WANTED = (
    "Wanted: aclImdb/ with train/{pos,neg}/*.txt and test/{pos,neg}/*.txt, or it in an archive named aclImdb*.tar.gz or imdb*.tar.gz "
    "(also .tgz, .tar.xz), or Keras' imdb.npz."
)

_URL = "https://ai.stanford.edu/~amaas/data/sentiment/aclImdb_v1.tar.gz"
_SHA256 = "c40f74a18d3b61f90feba1e17730e0d38e8b97c05fde7008942e91923d1658fe"


def find(folders: list[Path], allow_subset: bool) -> Source | None:
    """See `sweep.contracts.Dataset`. No subset is known."""
    for folder in folders:
        source = _imdb_reviews.find(folder) or _imdb_keras.find(folder)
        if source:
            return source
    return None


def read(source: Source, length: int = SETTINGS["length"], vocabulary: int = SETTINGS["vocabulary"]) -> dict[str, np.ndarray]:
    if vocabulary <= _imdb_words.SPECIAL:
        raise ValueError(f"vocabulary is {vocabulary}; the first {_imdb_words.SPECIAL} ids are no words")
    ranks: Mapping[str, Iterable[Sequence[int]]]
    if source.kind == _imdb_keras.KIND:
        ranks, labels, words = _imdb_keras.read(source.path)
    else:
        texts, labels = _imdb_reviews.read(source.path)
        words = _imdb_words.by_frequency(texts["train"])
        ranks = {part: _imdb_words.ranks(texts[part], words) for part in texts}
    arrays = {"words": _imdb_words.by_id(words, vocabulary)}
    for part in ("train", "test"):
        arrays["x_" + part] = _imdb_words.rows(ranks[part], len(labels[part]), length, vocabulary)
        arrays["y_" + part] = labels[part]
    return arrays


def download(folder: Path) -> Source:
    return Source(_imdb_reviews.ARCHIVE, fetch(_URL, _SHA256, folder / "aclImdb_v1.tar.gz"))
