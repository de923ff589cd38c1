"""VGG-16 (Simonyan & Zisserman 2015, configuration D) for 32x32 images, with two dense layers of 4,096.

The study states 129 MB without optimizer state: 33,638,218 parameters of four bytes are 128.3 MiB (2,101,248 of them are the first
dense layer, 16,781,312 the second). The paper's dropout is left out: its random numbers can't be equal across frameworks, so training
is not claimed to be the paper's.
"""

from sweep.layers import conv2d, dense, flatten, image_input, max_pool, relu

PARAMETERS = {((32, 32, 3), 10): 33638218}

_BLOCKS = ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512))


def layers(input_shape, classes):
    """Thirteen 3x3 convolutions that keep the size, each with ReLU, in five blocks that each end in a 2x2 maximum; dense 4096, 4096
    and the classes. Under Glorot's kernels each ReLU halves the signal's variance, which fifteen in a row do not survive: these are He's.
    """
    net, last = [image_input(*input_shape)], "input"
    for block, filters in enumerate(_BLOCKS, start=1):
        for number, width in enumerate(filters, start=1):
            name = "conv{}_{}".format(block, number)
            net.append(conv2d(name, last, width, 3, padding=((1, 1), (1, 1)), initializer="he_normal"))
            last = "relu{}_{}".format(block, number)
            net.append(relu(last, name))
        net.append(max_pool("pool{}".format(block), last))
        last = "pool{}".format(block)
    return net + [
        flatten("flatten", last),
        dense("dense1", "flatten", 4096, initializer="he_normal"),
        relu("relu6", "dense1"),
        dense("dense2", "relu6", 4096, initializer="he_normal"),
        relu("relu7", "dense2"),
        dense("logits", "relu7", classes),
    ]
