"""TextCNN (Kim 2014) with that paper's sizes: words of 300 numbers, 100 filters of each width.

The study states 13 MB without optimizer state. For 10,000 words and two classes:

    embedding 10,000 x 300 = 3,000,000;  filters (3 + 4 + 5) x 300 x 100 + 300 = 360,300;  dense 300 x 2 + 2 = 602
    3,360,902 parameters of four bytes are 12.82 MiB (13.44 MB)

The paper's dropout is left out: its random numbers can't be equal across frameworks, so training is not claimed to be the paper's.
"""

from sweep.layers import concatenate, conv1d, dense, embedding, global_max_pool, relu, tokens

PARAMETERS = {((200,), 2, 10000): 3360902}

_WIDTHS = (3, 4, 5)


def layers(input_shape, classes, vocabulary=None):
    """An embedding; beside each other convolutions over 3, 4 and 5 words with ReLU and a maximum over all places; then the classes."""
    if vocabulary is None:
        raise ValueError("it reads texts, not images")
    net = [tokens(input_shape[0], vocabulary), embedding("embedding", "input", vocabulary, 300)]
    for width in _WIDTHS:
        convolution, activation = "conv{}".format(width), "relu{}".format(width)
        net.append(conv1d(convolution, "embedding", 100, width))
        net.append(relu(activation, convolution))
        net.append(global_max_pool("pool{}".format(width), activation))
    net.append(concatenate("features", *["pool{}".format(width) for width in _WIDTHS]))
    net.append(dense("logits", "features", classes))
    return net
