"""TextRNN with long short-term memory: an embedding as in `textcnn`, and as many units as the study's file sizes leave.

The study states 16 MB without optimizer state (`gru`: 15 MB, `textcnn`: 13 MB), and no sizes of layers. For 10,000 words, two classes:

    embedding 10,000 x 300 = 3,000,000;  lstm 4 x (300 + 384 + 1) x 384 = 1,052,160;  dense 384 x 2 + 2 = 770
    4,052,930 parameters of four bytes are 15.46 MiB

384 units fit both recurrent networks, read as all of the study's sizes can be: in MiB, rounded up (128.3 to 129 for `vgg16`). With the
two moments of Adam they are 46.4 MiB, 1.6 below the 48 MB stated for training, as `textcnn` is 1.5 and `vgg16` 1.4 below.
The sizes alone do not decide: 15,000 words of 200 numbers and 400 units, say, are nearly as near.

No dropout: its random numbers can't be equal across frameworks. Padding is not masked; it comes before the words.
"""

from sweep.layers import dense, embedding, lstm, tokens

PARAMETERS = {((200,), 2, 10000): 4052930}


def layers(input_shape, classes, vocabulary=None):
    """An embedding, one recurrent layer whose last state counts, the classes."""
    if vocabulary is None:
        raise ValueError("it reads texts, not images")
    return [
        tokens(input_shape[0], vocabulary),
        embedding("embedding", "input", vocabulary, 300),
        lstm("lstm", "embedding", 384),
        dense("logits", "lstm", classes),
    ]
