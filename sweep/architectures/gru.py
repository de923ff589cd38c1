"""TextRNN with gated recurrent units: as `lstm`, which says where the sizes come from.

The study states 15 MB without optimizer state. For 10,000 words and two classes:

    embedding 10,000 x 300 = 3,000,000;  gru 3 x (300 + 384 + 2) x 384 = 790,272;  dense 384 x 2 + 2 = 770
    3,791,042 parameters of four bytes are 14.46 MiB (1,152 fewer where the reset comes before the product)

No dropout: its random numbers can't be equal across frameworks. Padding is not masked; it comes before the words.
"""

from sweep.layers import dense, embedding, gru, tokens

PARAMETERS = {((200,), 2, 10000): 3791042}


def layers(input_shape, classes, vocabulary=None):
    """An embedding, one recurrent layer whose last state counts, the classes."""
    if vocabulary is None:
        raise ValueError("it reads texts, not images")
    return [
        tokens(input_shape[0], vocabulary),
        embedding("embedding", "input", vocabulary, 300),
        gru("gru", "embedding", 384),
        dense("logits", "gru", classes),
    ]
