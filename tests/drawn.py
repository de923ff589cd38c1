"""Numbers that several tests draw."""

import numpy as np

from sweep import layers as neutral


def trained_like(random, layers):
    """Canonical weights float32 by name, none of them zero or small as initial ones are; variances above 0."""
    return {name: (random.rand(*shape) + 0.1 if name.endswith("variance") else random.randn(*shape)).astype(np.float32)
            for name, shape in neutral.parameters(layers).items()}
