"""A sweep file is read strictly: what is wrong with it is said with the key, the value and the nearest valid one."""

import textwrap
from pathlib import Path

import pytest

from sweep import config
from sweep.errors import ConfigError

VALID = """
name: test
grid:
  framework: [pytorch, tensorflow]
  dataset: [mnist]
  architecture: [lenet5]
"""
JOINED = """
name: test
grid:
  - {framework: pytorch, dataset: mnist, architecture: lenet5}
  - {framework: [tensorflow], dataset: [mnist], architecture: [lenet1], runtime: litert, seed: 3}
"""


@pytest.fixture
def load(tmp_path):
    def read(text, *overrides):
        path = tmp_path / "sweep.yaml"
        path.write_text(textwrap.dedent(text))
        return config.load(path, overrides)

    return read


def refusal(load, text, *overrides):
    """The message, without the file's path at its start."""
    with pytest.raises(ConfigError) as error:
        load(text, *overrides)
    return str(error.value).split("sweep.yaml: ", 1)[-1]


def test_defaults(load):
    sweep = load(VALID)
    (grid,) = sweep.grid
    assert grid.framework == ["pytorch", "tensorflow"]
    assert (grid.recipe, sweep.seeds, grid.weights) == (["defaults"], [0], ["trained"])
    assert (grid.runtime, grid.quantization, grid.device, grid.attack) == (["native"], ["float32"], ["localhost"], ["none"])
    assert sweep.train.model_dump() == {
        "optimizer": "sgd", "learning_rate": 0.05, "momentum": 0.9, "epsilon": None, "l2": 0.0, "batch_size": 128, "epochs": 10,
        "decay": [], "examples": None, "test_examples": None, "label": None,
    }
    assert sweep.store.tracking_uri == "sqlite:///mlruns/mlflow.db"
    assert sweep.limits.seconds.convert == 900.0


SIZED = VALID + """
train: {epochs: 200}
sizes:
  small: {train: {epochs: 1, examples: 50}, settings: {architecture: {lenet5: {label: smoke}}}}
  full: {}
"""


def test_a_size_is_merged_in_and_overrides_win(load):
    assert load(SIZED).train.epochs == 200
    small = load(SIZED, "size=small")
    assert (small.train.epochs, small.train.examples, small.training("mnist", "lenet5").label) == (1, 50, "smoke")
    assert load(SIZED, "size=small", "train.epochs=7").train.model_dump()["epochs"] == 7
    assert load(SIZED, "size=full").train.epochs == 200
    with pytest.raises(ConfigError, match="size: there is no 'smal'; did you mean 'small'"):
        load(SIZED, "size=smal")


def test_a_version_is_part_of_the_value(load):
    assert load(VALID, "grid.framework=[pytorch@2.6]").grid[0].framework == ["pytorch@2.6"]
    with pytest.raises(ConfigError, match="grid.framework: there is no 'pytorhc@2'"):
        load(VALID, "grid.framework=[pytorhc@2]")


def test_traces_need_something_to_be_held_against(load):
    with pytest.raises(ConfigError, match="trace.against: steps are compared with those of a framework, which must be named"):
        load(VALID, "trace.steps=5")
    with pytest.raises(ConfigError, match="trace.steps: .* no grid trains by the recipe 'identical'"):
        load(VALID, "trace={steps: 5, against: pytorch}")
    with pytest.raises(ConfigError, match="size: 'full' is none, since there are no sizes"):
        load(VALID, "size=full")
    with pytest.raises(ConfigError, match="trace.against: there is no 'pytroch'; did you mean 'pytorch'"):
        load(VALID, "trace.against=pytroch")


def test_grids_are_joined_and_a_single_value_stands_for_a_list(load):
    first, second = load(JOINED).grid
    assert (first.framework, first.architecture, first.runtime, first.seed) == (["pytorch"], ["lenet5"], ["native"], None)
    assert (second.framework, second.architecture, second.runtime, second.seed) == (["tensorflow"], ["lenet1"], ["litert"], [3])


def test_settings_by_architecture_win_over_those_by_dataset_and_these_over_train(load):
    sweep = load(
        VALID + "train: {epochs: 3, batch_size: 32, learning_rate: 1}\n"
        "settings:\n  dataset: {mnist: {epochs: 4, batch_size: 64}}\n  architecture: {lenet5: {epochs: 5, decay: [[3, 0.1], [4, 0.5]]}}\n"
    )
    both = sweep.training("mnist", "lenet5")
    assert (both.epochs, both.batch_size, both.learning_rate, both.decay) == (5, 64, 1.0, [(3, 0.1), (4, 0.5)])
    assert sweep.training("mnist", "lenet1").epochs == 4
    assert sweep.training("cifar10", "lenet1").epochs == 3


def test_yaml_anchors_may_be_merged(load):
    sweep = load(
        "name: test\ngrid:\n  - &first {framework: pytorch, dataset: mnist, architecture: lenet5}\n  - {<<: *first, architecture: lenet1}\n"
    )
    assert [grid.architecture for grid in sweep.grid] == [["lenet5"], ["lenet1"]]
    assert sweep.grid[1].framework == ["pytorch"]


@pytest.mark.parametrize(
    ("added", "message"),
    [
        # a misspelt key, at every depth
        ("trian: {epochs: 1}", "there is no key 'trian'; did you mean 'train'?"),
        ("train: {epoch: 1}", "there is no key 'train.epoch'; did you mean 'epochs'?"),
        ("limits: {memory: 3}", "there is no key 'limits.memory'; did you mean 'memory_gb'?"),
        ("limits: {seconds: {trian: 3}}", "there is no key 'limits.seconds.trian'; did you mean 'train'?"),
        ("store: {tracking_url: x}", "there is no key 'store.tracking_url'; did you mean 'tracking_uri'?"),
        ("data: {mnist: {pth: x}}", "there is no key 'data.mnist.pth'; did you mean 'path'?"),
        ("settings: {architectures: {}}", "there is no key 'settings.architectures'; did you mean 'architecture'?"),
        ("measure: {zzz: 1}", "there is no key 'measure.zzz'; valid: enabled, reference, processes, blocks, throughput_batch"),
        # a misspelt value
        ("measure: {reference: onnxruntim}", "measure.reference: there is no 'onnxruntim'; did you mean 'onnxruntime'?"),
        ("data: {mnst: {path: x}}", "data: there is no 'mnst'; did you mean 'mnist'?"),
        ("data: {imdb: {settings: {lenght: 9}}}", "data.imdb.settings: there is no 'lenght'; did you mean 'length'?"),
        ("data: {mnist: {settings: {length: 9}}}", "data.mnist.settings: there is no 'length'; it has no settings"),
        ("options: {pytroch: {}}", "options: there is no 'pytroch'; did you mean 'pytorch'?"),
        ("same_weights_from: tensorflw", "same_weights_from: there is no 'tensorflw'; did you mean 'tensorflow'?"),
        ("train: {optimizer: adma}", "train.optimizer: input should be 'sgd' or 'adam', not 'adma'"),
        ("settings: {architecture: {lenet6: {}}}", "settings.architecture: there is no 'lenet6'; did you mean 'lenet5'?"),
        ("settings: {dataset: {mnits: {}}}", "settings.dataset: there is no 'mnits'; did you mean 'mnist'?"),
        ("settings: {attack: {fgms: {}}}", "settings.attack: there is no 'fgms'; did you mean 'fgsm'?"),
        # settings by the value of an axis
        ("settings: {architecture: {lenet5: {epoch: 1}}}", "settings.architecture.lenet5: there is no 'epoch'; did you mean 'epochs'?"),
        ("settings: {dataset: {mnist: {batchsize: 1}}}", "settings.dataset.mnist: there is no 'batchsize'; did you mean 'batch_size'?"),
        ("settings: {attack: {pgd: {max_iters: 1}}}", "attack pgd: there is no setting 'max_iters' (given 1); did you mean 'max_iter'?"),
        ("settings: {attack: {fgsm: {eps: -1}}}", "attack fgsm: eps is -1, but must be a number above 0, such as 0.03 or 8/255"),
        # excluding
        ("exclude: [{framwork: pytorch}]", "exclude: there is no 'framwork'; did you mean 'framework'?"),
        ("exclude: [{framework: pytroch}]", "exclude.framework: there is no 'pytroch'; did you mean 'pytorch'?"),
        ("exclude: [{seed: one}]", "exclude.seed: a seed is a whole number, not 'one'"),
        ("exclude: [{framework: []}]", "exclude.framework is empty"),
        ("exclude: [{}]", "exclude: a rule without an axis would exclude every cell"),
        # values of other types, and out of range
        ("train: {epochs: two}", "train.epochs: input should be a valid integer, not 'two'"),
        ("train: {epochs: '2'}", "train.epochs: input should be a valid integer, not '2'"),
        ("train: {epochs: 2.0}", "train.epochs: input should be a valid integer, not 2.0"),
        ("train: {learning_rate: '0.1'}", "train.learning_rate: input should be a valid number, not '0.1'"),
        ("train: {epochs: 0}", "train.epochs: input should be greater than 0, not 0"),
        ("data: {imdb: {settings: {length: 0}}}", "data.imdb.settings.length: input should be greater than 0, not 0"),
        ("train: {momentum: 1}", "train.momentum: input should be less than 1, not 1"),
        ("train: {decay: [['3', 0.1]]}", "train.decay: input should be a valid integer, not '3'"),
        ("train: 3", "train: input should be a valid dictionary or instance of Training, not 3"),
        ("threads: true", "threads: input should be a valid integer, not True"),
        ("measure: {enabled: 'no'}", "measure.enabled: input should be a valid boolean, not 'no'"),
        ("measure: {processes: 2}", "measure.processes: input should be greater than or equal to 3, not 2"),
        ("settings: {dataset: {mnist: {epochs: '5'}}}", "settings.dataset.mnist.epochs: Input should be a valid integer, not '5'"),
        ("exclude: {framework: pytorch}", "exclude: input should be a valid list, not {'framework': 'pytorch'}"),
    ],
)
def test_what_is_wrong_is_named(load, added, message):
    assert refusal(load, VALID + added + "\n") == message


@pytest.mark.parametrize(
    ("axis", "value", "message"),
    [
        ("framework", "[pytroch]", "grid.framework: there is no 'pytroch'; did you mean 'pytorch'?"),
        ("dataset", "[mnits]", "grid.dataset: there is no 'mnits'; did you mean 'mnist'?"),
        ("architecture", "[lenet]", "grid.architecture: there is no 'lenet'; did you mean 'lenet5'?"),
        ("recipe", "[default]", "grid.recipe: there is no 'default'; did you mean 'defaults'?"),
        ("weights", "[sam]", "grid.weights: there is no 'sam'; did you mean 'same'?"),
        ("runtime", "[onxruntime]", "grid.runtime: there is no 'onxruntime'; did you mean 'onnxruntime'?"),
        ("quantization", "[int8]", "grid.quantization: there is no 'int8'; did you mean 'static_int8'?"),
        ("device", "[local]", "grid.device: there is no 'local'; did you mean 'localhost'?"),
        ("attack", "[pdg]", "grid.attack: there is no 'pdg'; did you mean 'pgd'?"),
        ("framework", "[]", "grid.framework is empty"),
        ("seed", "[]", "grid.seed is empty"),
        ("seed", "[one]", "grid.seed: input should be a valid integer, not 'one'"),
        ("seed", "true", "grid.seed: input should be a valid integer, not True"),
        ("framework", "[1]", "grid.framework: input should be a valid string, not 1"),
        ("framework", "1.5", "grid.framework: input should be a valid list, not 1.5"),
        ("framwork", "[pytorch]", "there is no key 'grid.framwork'; did you mean 'framework'?"),
    ],
)
def test_what_is_wrong_with_an_axis_is_named(load, axis, value, message):
    assert refusal(load, VALID, f"grid.{axis}={value}") == message


def test_the_grid_among_several_is_named(load):
    assert refusal(load, JOINED, "grid.1.runtime=[litret]") == "grid.1.runtime: there is no 'litret'; did you mean 'litert'?"
    assert refusal(load, JOINED, "grid.0.runtme=[litert]") == "there is no key 'grid.0.runtme'; did you mean 'runtime'?"
    assert refusal(load, JOINED, "grid.1.seed=[]") == "grid.1.seed is empty"


def test_several_mistakes_are_told_at_once(load):
    assert refusal(load, VALID, "train.epochs=x", "thread=2") == (
        "train.epochs: input should be a valid integer, not 'x'\n  there is no key 'thread'; did you mean 'threads'?"
    )


def test_what_must_be_there(load):
    assert refusal(load, "name: test\n") == "the key 'grid' is missing"
    assert refusal(load, "name: test\ngrid: {framework: fake, dataset: mnist}\n") == "grid: a grid has one of architecture, model and operator; here it has none of them"
    assert refusal(load, "name: test\ngrid: {framework: fake, operator: conv2d, runtime: native, attack: fgsm}\n") == (
        "grid: attack means nothing in a grid with 'operator'"
    )
    assert refusal(load, "name: test\ngrid: []\n") == "grid is empty"
    assert "the key 'name' is missing" in refusal(load, VALID.replace("name: test", ""))


@pytest.mark.parametrize("name", ["stages", "", "a b", "../up", "-x", "x" * 101])
def test_names_that_can_not_be_an_experiment(load, name):
    message = refusal(load, VALID.replace("name: test", f"name: '{name}'"))
    assert message.startswith("name: ")
    assert repr(name) in message


def test_the_same_weights_need_a_framework_to_come_from(load):
    assert refusal(load, VALID, "grid.weights=[trained, same]").startswith("same_weights_from: weights 'same' needs the framework")
    assert load(VALID, "grid.weights=[trained, same]", "same_weights_from=pytorch").same_weights_from == "pytorch"


def test_an_architecture_may_be_a_users_own(load):
    assert load(VALID, "grid.architecture=[my.nets:wide]").grid[0].architecture == ["my.nets:wide"]


def test_overrides(load):
    changes = ["train.epochs=1", "grid.framework=[pytorch]", "limits.seconds.train=5", "store={tracking_uri: 'http://a=b'}", "name=other"]
    sweep = load(VALID, *changes)
    assert (sweep.train.epochs, sweep.grid[0].framework, sweep.limits.seconds.train) == (1, ["pytorch"], 5)
    assert (sweep.store.tracking_uri, sweep.name) == ("http://a=b", "other")
    assert load(JOINED, "grid.1.framework=pytorch").grid[1].framework == ["pytorch"]


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("epochs", "an override is key=value, not 'epochs'"),
        ("=3", "an override is key=value, not '=3'"),
        ("train.epochs=[1", "the value of 'train.epochs' is not valid YAML: '[1'"),
        ("train={epochs: 1, epochs: 2}", "the value of 'train' is not valid YAML: '{epochs: 1, epochs: 2}'"),
        ("name.first=3", "'name.first' goes below 'name', which is a single value"),
        ("grid.framework.2=fake", "'grid.framework.2': '2' must be a number from 0 to 1, since a list stands there"),
        ("grid.framework.first=fake", "'grid.framework.first': 'first' must be a number from 0 to 1, since a list stands there"),
        ("trian.epochs=1", "there is no key 'trian'; did you mean 'train'?"),
        ("train.epochs=", "train.epochs: input should be a valid integer, not None"),
    ],
)
def test_overrides_that_can_not_be(load, override, message):
    assert refusal(load, VALID, override) == message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "sweep.yaml is empty"),
        ("# nothing but this\n", "sweep.yaml is empty"),
        ("- name\n- grid\n", "sweep.yaml must be a mapping of keys, not a list"),
        ("name\n", "sweep.yaml must be a mapping of keys, not a str"),
        ("name: [a\n", "is not valid YAML"),
        ("name: \x07\n", "is not valid YAML"),
        ("name: a\nname: b\n", "the key 'name' stands twice"),
        ("name: a\ngrid:\n  framework: [fake]\n  framework: [pytorch]\n", "the key 'framework' stands twice"),
        ("name: !!python/object/apply:os.getcwd []\n", "is not valid YAML"),
    ],
)
def test_files_that_are_no_sweep(load, text, message):
    assert message in refusal(load, text)


def test_files_that_can_not_be_read(tmp_path):
    with pytest.raises(ConfigError, match=r"can't read .*missing.yaml: No such file or directory"):
        config.load(tmp_path / "missing.yaml")
    with pytest.raises(ConfigError, match=r"can't read .*: Is a directory"):
        config.load(tmp_path)
    (tmp_path / "binary.yaml").write_bytes(b"name: \xff\xfe\n")
    with pytest.raises(ConfigError, match=r"can't read .*binary.yaml: .*utf-8.*can't decode"):
        config.load(tmp_path / "binary.yaml")


@pytest.mark.parametrize("path", sorted((Path(__file__).parents[2] / "configs").glob("*.yaml")), ids=lambda path: path.name)
def test_the_sweeps_that_are_shipped(path):
    assert config.load(path).name == path.stem
