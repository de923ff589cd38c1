"""Under the recipe `defaults` a framework does what its own layers and optimizers do, also where we have a faster way to it."""

import numpy as np
import pytest

from sweep.frameworks import _training
from sweep.layers import batch_norm, conv2d, dense, embedding, flatten, gru, image_input, lstm, resolved, tokens

# No convolution before the batch norm: its bias would have a gradient of nothing but rounding, which Adam makes whole steps of.
NET = [
    image_input(6, 6, 2), batch_norm("norm", "input"), conv2d("conv", "norm", 3, 3), flatten("flatten", "conv"),
    dense("logits", "flatten", 4),
]
PLAN = {
    "optimizer": "sgd", "learning_rate": 0.05, "momentum": 0.9, "epsilon": None, "l2": 0.0, "batch_size": 8, "epochs": 3,
    "decay": [[1, 0.1]], "recipe": "defaults", "seed": 0,
}
ORDER = np.stack([np.random.RandomState(epoch).permutation(20) for epoch in range(3)])


@pytest.fixture
def data():
    random = np.random.RandomState(0)
    return random.rand(20, 6, 6, 2).astype(np.float32), random.randint(0, 4, 20)


def batches():
    """(epoch, indices) in the order of the training."""
    return [(epoch, batch) for epoch, order in enumerate(ORDER) for batch in np.split(order, [8, 16])]


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # Keras'
@pytest.mark.parametrize("changes", [{}, {"momentum": 0.0}, {"optimizer": "adam", "learning_rate": 0.01}], ids=["momentum", "sgd", "adam"])
def test_keras_layers_and_optimizers(data, changes):
    keras, tf = pytest.importorskip("keras"), pytest.importorskip("tensorflow")
    from sweep.frameworks import tensorflow as framework

    framework.configure(1)
    (images, labels), plan = data, dict(PLAN, **changes)
    net = resolved(NET, "defaults", framework.FACTS["own"])
    ours, plain = framework.build(net, "defaults", 0), framework.build(net, "defaults", 0).model
    list(framework.train(ours, images, labels, plan, ORDER))
    rate = plan["learning_rate"]
    optimizer = keras.optimizers.Adam(rate) if plan["optimizer"] == "adam" else keras.optimizers.SGD(rate, momentum=plan["momentum"])
    for epoch, batch in batches():
        optimizer.learning_rate = _training.learning_rate(plan, epoch)
        with tf.GradientTape() as tape:
            logits = plain(images[batch], training=True)
            loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)(labels[batch], logits)
        optimizer.apply(tape.gradient(loss, plain.trainable_variables), plain.trainable_variables)
    for mine, theirs in zip(ours.model.variables, plain.variables):
        np.testing.assert_allclose(mine.value.numpy(), theirs.value.numpy(), rtol=1e-4, atol=1e-5, err_msg=mine.path)


@pytest.mark.parametrize("changes", [{}, {"optimizer": "adam", "learning_rate": 0.01}], ids=["momentum", "adam"])
def test_torch_layers_and_optimizers(data, changes):
    torch = pytest.importorskip("torch")
    from sweep.frameworks import pytorch as framework

    framework.configure(1)
    (images, labels), plan = data, dict(PLAN, **changes)
    ours = framework.build(resolved(NET, "defaults", framework.FACTS["own"]), "defaults", 0)
    torch.manual_seed(0)
    plain = torch.nn.Sequential(torch.nn.BatchNorm2d(2), torch.nn.Conv2d(2, 3, 3), torch.nn.Flatten(), torch.nn.Linear(48, 4))
    state = framework.get_weights(ours)
    np.testing.assert_array_equal(state["conv/kernel"].transpose(3, 2, 0, 1), plain[1].weight.detach().numpy())
    np.testing.assert_array_equal(state["conv/bias"], plain[1].bias.detach().numpy())
    # The canonical rows are in height-width-channel order, PyTorch's own columns in channel-height-width order.
    rows = np.arange(48).reshape(3, 4, 4).transpose(1, 2, 0).ravel()
    np.testing.assert_array_equal(state["logits/bias"], plain[3].bias.detach().numpy())
    with torch.no_grad():
        plain[3].weight[:, rows] = torch.from_numpy(state["logits/kernel"].T.copy())
    list(framework.train(ours, images, labels, plan, ORDER))
    optimizer = torch.optim.Adam(plain.parameters()) if plan["optimizer"] == "adam" else torch.optim.SGD(plain.parameters(), momentum=0.9)
    for epoch, batch in batches():
        optimizer.param_groups[0]["lr"] = _training.learning_rate(plan, epoch)
        logits = plain(torch.from_numpy(images[batch]).permute(0, 3, 1, 2))
        loss = torch.nn.functional.cross_entropy(logits, torch.from_numpy(labels[batch]))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    state = framework.get_weights(ours)
    np.testing.assert_allclose(state["norm/variance"], plain[0].running_var.numpy(), rtol=1e-4)  # unbiased, as PyTorch's is
    np.testing.assert_allclose(state["norm/gamma"], plain[0].weight.detach().numpy(), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(state["logits/kernel"].T, plain[3].weight.detach().numpy()[:, rows], rtol=1e-3, atol=1e-5)


GATED = [
    tokens(6, 10), embedding("embedding", "input", 10, 4), lstm("lstm", "embedding", 3, True), gru("gru", "lstm", 3), dense("logits", "gru", 4)
]


def test_keras_own_layers_for_texts():
    keras = pytest.importorskip("keras")
    from sweep.frameworks import tensorflow as framework

    norm, cells = keras.layers.BatchNormalization(), {"lstm": keras.layers.LSTM(3), "gru": keras.layers.GRU(3)}
    stated = {kind: {field: cell.get_config()[field] for field in framework.FACTS["own"][kind]} for kind, cell in cells.items()}
    assert framework.FACTS["own"] == dict(stated, batch_norm={"epsilon": norm.epsilon, "momentum": norm.momentum})
    weights = framework.get_weights(framework.build(resolved(GATED, "defaults", framework.FACTS["own"]), "defaults", 0))
    keras.utils.set_random_seed(0)
    plain = keras.Sequential([keras.layers.Embedding(10, 4), keras.layers.LSTM(3, return_sequences=True), keras.layers.GRU(3)])
    plain.build((None, 6))
    bias = weights.pop("gru/bias"), weights.pop("gru/recurrent_bias")
    expected = [variable.numpy() for variable in plain.variables if "seed" not in variable.path]
    for mine, theirs in zip([*list(weights.values())[:6], np.stack(bias)], expected):
        np.testing.assert_array_equal(mine, theirs)


def test_torch_own_layers_for_texts():
    torch = pytest.importorskip("torch")
    from sweep.frameworks import pytorch as framework

    norm = torch.nn.BatchNorm2d(2)
    assert framework.FACTS["own"]["batch_norm"] == {"epsilon": norm.eps, "momentum": 1 - norm.momentum}
    framework.configure(1)
    ours = framework.build(resolved(GATED, "defaults", framework.FACTS["own"]), "defaults", 0)
    torch.manual_seed(0)
    table, first, second = torch.nn.Embedding(10, 4), torch.nn.LSTM(4, 3, batch_first=True), torch.nn.GRU(3, 3, batch_first=True)
    ids = np.random.RandomState(0).randint(0, 10, (5, 6)).astype(np.int32)
    with torch.no_grad():
        expected = second(first(table(torch.from_numpy(ids).long()))[0])[0][:, -1].numpy()
    np.testing.assert_allclose(framework.layer_outputs(ours, ids)["gru"], expected, rtol=1e-6, atol=1e-7)
    bias = (first.bias_ih_l0 + first.bias_hh_l0).detach().numpy()
    np.testing.assert_array_equal(framework.get_weights(ours)["lstm/bias"], bias)


def test_torch_trains_both_biases_of_an_lstm_only_by_default():
    pytest.importorskip("torch")
    from sweep.frameworks import pytorch as framework

    framework.configure(1)
    net = [tokens(6, 10), embedding("embedding", "input", 10, 4), lstm("lstm", "embedding", 3, False, "sigmoid"), dense("logits", "lstm", 4)]
    random = np.random.RandomState(0)
    ids, labels = random.randint(0, 10, (8, 6)).astype(np.int32), random.randint(0, 4, 8)
    plan = dict(PLAN, momentum=0.0, batch_size=8, epochs=1)
    for recipe, times in (("defaults", 2), ("matched", 1)):
        model = framework.build(net, recipe, 0)
        before, gradient = framework.get_weights(model), framework.weight_gradients(model, ids, labels)
        list(framework.train(model, ids, labels, dict(plan, recipe=recipe), None))
        moved = framework.get_weights(model)["lstm/bias"] - before["lstm/bias"]
        np.testing.assert_allclose(moved, -plan["learning_rate"] * times * gradient["lstm/bias"], rtol=1e-3, atol=1e-7)


def test_learning_rate_and_resolved_values():
    plan = {"learning_rate": 1.0, "decay": [(2, 0.5), (4, 0.1)]}
    assert [_training.learning_rate(plan, epoch) for epoch in range(6)] == [1, 1, 0.5, 0.5, 0.05, 0.05]
    assert _training.adam_epsilon({"epsilon": 1e-3, "recipe": "defaults"}, 1e-8) == 1e-3
    assert _training.adam_epsilon({"epsilon": None, "recipe": "defaults"}, 1e-8) == 1e-8
    assert _training.adam_epsilon({"epsilon": None, "recipe": "matched"}, 1e-8) == 1e-7


def test_l2_holds_for_kernels_of_convolutions_and_dense_layers():
    assert _training.penalised(NET) == ["conv/kernel", "logits/kernel"]
    assert _training.penalised(GATED) == ["logits/kernel"]
