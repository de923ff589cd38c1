"""Windows that lie elsewhere than the list's padding says, and what a pool makes of its edge."""

import numpy as np

from sweep import reference
from sweep.hypotheses._view import altered
from sweep.layers import same_padding

_PADDED = ("conv2d", "conv1d", "max_pool", "average_pool")
_POOLS = ("max_pool", "average_pool")


def _sides(layer):
    return [tuple(layer["padding"])] if layer["kind"] == "conv1d" else [tuple(side) for side in layer["padding"]]


def _window(layer):
    return layer["kernel"] if "kernel" in layer else layer["size"]


def _moved(layer, starts, counts=None, zeros=False):
    """The layer whose windows start `starts` before the edge, along each axis. There are as many as were observed (or as `counts` makes
    of the sizes); what lacks after the edge is padded (with `zeros`: by numbers that a pool counts), and what is too much is dropped."""

    def compute(view):
        values, window, stride = view.inputs[0], _window(layer), layer["stride"]
        sides, crops = [], [slice(None)]
        for axis, start in enumerate(starts):
            size = values.shape[axis + 1]
            count = view.observed.shape[axis + 1] if counts is None else counts(size, axis)
            after = (count - 1) * stride + window - size - start
            if count < 1 or after > 2 * window:
                return None
            crops.append(slice(max(-start, 0), size + min(after, 0)))
            sides.append([max(start, 0), max(after, 0)])
        values = np.ascontiguousarray(values[tuple(crops)])
        if zeros:
            values, sides = np.pad(values, [(0, 0)] + sides + [(0, 0)], mode="constant"), [[0, 0]] * len(sides)
        return reference.apply(dict(layer, padding=sides[0] if layer["kind"] == "conv1d" else sides), view.own, values)

    return compute


def _placed(layer, choices, zeros=False):
    """(detail, compute) for starts that differ along all axes alike, then along one alone; a choice is (detail, start by axis)."""
    own = [side[0] for side in _sides(layer)]
    names = ("height", "width") if len(own) > 1 else ("steps",)
    seen = {tuple(own)}
    for detail, starts in choices:
        forms = [(detail, tuple(starts))]
        if len(own) > 1:
            forms += [("{} along {}".format(detail, names[axis]), tuple(starts[axis] if axis == at else own[at] for at in range(2)))
                      for axis in range(2)]
        for text, form in forms:
            if form not in seen:
                seen.add(form)
                yield text, _moved(layer, form, zeros=zeros)


def _padding_sides(layer, _own, _around):
    sides, window = _sides(layer), _window(layer)
    choices = [
        ("the padding of the two sides swapped", [side[1] for side in sides]),
        ("the padding made symmetric", [-(-sum(side) // 2) for side in sides]),
        ("the padding made symmetric, rounded down", [sum(side) // 2 for side in sides]),
        ("all of the padding before", [sum(side) for side in sides]),
        ("all of the padding after", [0 for _ in sides]),
        ("as if padding kept the size", [(window - 1) // 2] * len(sides)),
        ("as if padding kept the size, the odd one before", [window // 2] * len(sides)),
    ]
    if any(map(sum, sides)):
        yield from _placed(layer, choices)


def _padding_missing(layer, _own, _around):
    sides, window, stride = _sides(layer), _window(layer), layer["stride"]
    if any(map(sum, sides)):
        yield "without its padding", _moved(layer, [0] * len(sides), lambda size, _axis: (size - window) // stride + 1)
    else:
        yield "with the padding that keeps ceil(size / stride)", lambda view: _same(layer, view)


def _same(layer, view):
    sides = [list(same_padding(size, _window(layer), layer["stride"])) for size in view.inputs[0].shape[1:-1]]
    return reference.apply(dict(layer, padding=sides[0] if layer["kind"] == "conv1d" else sides), view.own, view.inputs[0])


def _offsets(layer, _own, _around):
    own = [side[0] for side in _sides(layer)]
    choices = [
        ("windows that start {} {}".format(abs(by), "later" if by > 0 else "earlier"), [start - by for start in own])
        for distance in range(1, max(layer["stride"], 2)) for by in (distance, -distance)
    ]
    yield from _placed(layer, choices)
    if layer["kind"] in _POOLS:
        yield from _placed(layer, [(text + ", the edge counted as zeros", starts) for text, starts in choices], zeros=True)


def _padding_values(layer, _own, _around):
    for mode in ("edge", "reflect", "wrap"):

        def compute(view, mode=mode):
            sides = _sides(layer)
            if mode != "edge" and any(max(side) >= size for side, size in zip(sides, view.inputs[0].shape[1:])):
                return None
            padded = np.pad(view.inputs[0], [(0, 0)] + sides + [(0, 0)], mode=mode)
            return reference.apply(dict(layer, padding=[0, 0] if len(sides) == 1 else [[0, 0], [0, 0]]), view.own, padded)

        if any(map(sum, _sides(layer))):
            yield "padding by {} values in place of zeros".format(mode), compute


def _edge_counts(layer, _own, _around):
    if not any(map(sum, _sides(layer))):
        return

    def with_zeros(view):
        """Padding counts: as a zero in the mean, and as a zero that may be the maximum."""
        padded = np.pad(view.inputs[0], [(0, 0)] + _sides(layer) + [(0, 0)], mode="constant")
        return reference.apply(dict(layer, padding=[[0, 0], [0, 0]]), view.own, padded)

    yield "its padding counted as zeros", with_zeros


def _other_pools(layer, _own, _around):
    other = "average_pool" if layer["kind"] == "max_pool" else "max_pool"
    yield "the {} in place of the {}".format(*(("mean", "maximum") if other == "average_pool" else ("maximum", "mean"))), altered(
        layer, kind=other
    )
    if other == "average_pool" and any(map(sum, _sides(layer))):
        def counted(view):
            padded = np.pad(view.inputs[0], [(0, 0)] + _sides(layer) + [(0, 0)], mode="constant")
            return reference.apply(dict(layer, kind=other, padding=[[0, 0], [0, 0]]), view.own, padded)

        yield "the mean in place of the maximum, its padding counted", counted


def _sums(layer, _own, _around):
    area = layer["size"] ** 2
    yield "sums in place of means", lambda view: area * reference.apply(layer, view.own, *view.inputs)


def _remainders(layer, _own, _around):
    """Windows that begin inside and end outside, which make the output larger."""
    sides = _sides(layer)
    yield "the remainder at its edge pooled too", _moved(
        layer, [side[0] for side in sides],
        lambda size, axis: -(-(size + sum(sides[axis]) - layer["size"]) // layer["stride"]) + 1,
    )


def _global_means(_layer, _own, _around):
    def axes(view):
        return tuple(range(1, view.inputs[0].ndim - 1))

    yield "the mean in place of the maximum", lambda view: view.inputs[0].mean(axis=axes(view))
    yield "the sum in place of the maximum", lambda view: view.inputs[0].sum(axis=axes(view))
    yield "the last position in place of the maximum", lambda view: view.inputs[0][(slice(None),) + (-1,) * len(axes(view))]


WINDOWS = (
    ("padding_missing", _PADDED, _padding_missing),
    ("padding_side", _PADDED, _padding_sides),
    ("pool_edge_count", _POOLS, _edge_counts),
    ("pool_kind", _POOLS, _other_pools),
    ("pool_kind", ("average_pool",), _sums),
    ("pool_kind", ("global_max_pool",), _global_means),
    ("pool_remainder", _POOLS, _remainders),
    ("stride_offset", _PADDED, _offsets),
    ("padding_values", ("conv2d", "conv1d"), _padding_values),
)
