"""LeNet-5 as the study sizes it: 44,426 parameters on 28x28x1 with ten classes (its 176 KB file fits valid padding)."""

from sweep.layers import conv2d, dense, flatten, image_input, max_pool, relu

PARAMETERS = {((28, 28, 1), 10): 44426}


def layers(input_shape, classes):
    """Two convolutions of 6 and 16 filters, 5x5, each with ReLU and a 2x2 maximum, then dense 120, 84 and the classes."""
    return [
        image_input(*input_shape),
        conv2d("conv1", "input", 6, 5),
        relu("relu1", "conv1"),
        max_pool("pool1", "relu1"),
        conv2d("conv2", "pool1", 16, 5),
        relu("relu2", "conv2"),
        max_pool("pool2", "relu2"),
        flatten("flatten", "pool2"),
        dense("dense1", "flatten", 120),
        relu("relu3", "dense1"),
        dense("dense2", "relu3", 84),
        relu("relu4", "dense2"),
        dense("logits", "relu4", classes),
    ]
