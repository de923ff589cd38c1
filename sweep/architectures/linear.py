"""Multinomial logistic regression: the smallest network there is, for scale runs and as a floor to compare with."""

from sweep.layers import dense, flatten, image_input

PARAMETERS = {((28, 28, 1), 10): 7850}


def layers(input_shape, classes):
    """A flatten and one dense layer."""
    return [image_input(*input_shape), flatten("flatten", "input"), dense("logits", "flatten", classes)]
