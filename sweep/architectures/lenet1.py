"""LeNet-1 as the study sizes it: 3,246 parameters on 28x28x1 with ten classes (its 14 KB file fits valid padding)."""

from sweep.layers import conv2d, dense, flatten, image_input, max_pool, relu

PARAMETERS = {((28, 28, 1), 10): 3246}


def layers(input_shape, classes):
    """Two convolutions of 4 and 12 filters, 5x5, each with ReLU and a 2x2 maximum, then the classes."""
    return [
        image_input(*input_shape),
        conv2d("conv1", "input", 4, 5),
        relu("relu1", "conv1"),
        max_pool("pool1", "relu1"),
        conv2d("conv2", "pool1", 12, 5),
        relu("relu2", "conv2"),
        max_pool("pool2", "relu2"),
        flatten("flatten", "pool2"),
        dense("logits", "flatten", classes),
    ]
