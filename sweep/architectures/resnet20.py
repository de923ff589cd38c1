"""ResNet-20 for 32x32 images (He et al. 2016, section 4.2) as the study used it: convolutions with bias, 1x1 strided shortcuts."""

from sweep.layers import add, average_pool, batch_norm, conv2d, dense, flatten, image_input, relu, same_padding, shapes

PARAMETERS = {((32, 32, 3), 10): 274442}


def layers(input_shape, classes):
    """A 3x3 convolution of 16, then three groups of three residual blocks of 16, 32 and 64 filters, a global mean, the classes."""
    net = [image_input(*input_shape)]
    last = _convolution(net, "stem", "input", 16, 3, 1)
    for group, filters in enumerate((16, 32, 64), start=1):
        for block in range(1, 4):
            last = _residual_block(net, "g{}b{}".format(group, block), last, filters, downsample=group > 1 and block == 1)
    size = shapes(net)[last][0]
    net.append(average_pool("pool", last, size, size))
    net.append(flatten("flatten", "pool"))
    net.append(dense("logits", "flatten", classes, initializer="he_normal"))
    return net


def _convolution(net, name, source, filters, kernel, stride, activate=True, normalized=True):
    height, width = shapes(net)[source][:2]
    padding = (same_padding(height, kernel, stride), same_padding(width, kernel, stride))
    net.append(conv2d(name, source, filters, kernel, stride, padding, initializer="he_normal"))
    if not normalized:
        return name
    net.append(batch_norm(name + "_norm", name))
    if not activate:
        return name + "_norm"
    net.append(relu(name + "_relu", name + "_norm"))
    return name + "_relu"


def _residual_block(net, name, source, filters, downsample):
    stride = 2 if downsample else 1
    inner = _convolution(net, name + "_conv1", source, filters, 3, stride)
    inner = _convolution(net, name + "_conv2", inner, filters, 3, 1, activate=False)
    if downsample:
        source = _convolution(net, name + "_shortcut", source, filters, 1, stride, normalized=False)
    net.append(add(name + "_add", source, inner))
    net.append(relu(name + "_relu", name + "_add"))
    return name + "_relu"
