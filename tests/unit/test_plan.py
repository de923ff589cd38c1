"""The graph of distinct stages: what cells share, what they are made of, and what changes a key."""

import shutil
from collections import Counter

import pytest

from sweep import plan, sources
from sweep.errors import ConfigError

HOST = plan.Host("here", "a processor", "cpu")
REBUILT = {"transplant_via": "tensorflow"}


def kinds(made):
    return Counter(stage.kind for stage in made.stages.values())


def only(made):
    (planned,) = made.cells
    return planned


def route_of(made, planned, role="model"):
    """Kinds of the stages above and with a cell's role, inputs first."""
    return [made.stages[key].kind for key in made.upstream(planned.stages[role])]


def test_a_native_cell_needs_no_conversion(make_plan):
    made = make_plan()
    planned = only(made)
    assert kinds(made) == {"train": 1, "evaluate": 1}
    assert planned.stages["model"] == planned.stages["source"]
    assert planned.stages["evaluation"] == planned.stages["source_evaluation"]
    assert planned.reason is None
    assert planned.access is None


def test_cells_over_one_training_share_it(make_plan):
    """3 quantizations on one runtime, and native: 4 cells.

    One training, one export and three deployments; one evaluation each, native's own also being what the others are compared with.
    """
    made = make_plan([{"runtime": ["onnxruntime"], "quantization": ["float32", "float16", "static_int8"]}, {"runtime": ["native"]}])
    assert len(made.cells) == 4
    assert kinds(made) == {"train": 1, "convert": 4, "evaluate": 4, "simulate": 2, "diagnose": 3}
    assert len({planned.stages["source"] for planned in made.cells}) == 1
    assert route_of(made, made.cells[0]) == ["train", "convert", "convert"]
    exports = {made.stages[planned.stages["model"]].inputs["model"] for planned in made.cells[:3]}
    assert [made.stages[key].settings["step"] for key in exports] == ["export"]


def test_inputs_stand_before_what_reads_them(make_plan):
    made = make_plan({"framework": ["pytorch", "tensorflow"], "runtime": ["onnxruntime", "litert"], "attack": ["fgsm"]}, measure={}, **REBUILT)
    assert {planned.reason for planned in made.cells} == {None}
    seen = set()
    for key, stage in made.stages.items():
        assert set(stage.inputs.values()) <= seen
        assert stage.key == key
        seen.add(key)


def test_a_calibrated_conversion_reads_the_data_set(make_plan):
    made = make_plan({"runtime": ["onnxruntime"], "quantization": ["static_int8", "dynamic_int8"]})
    static, dynamic = (made.stages[planned.stages["model"]].settings for planned in made.cells)
    assert (static["dataset"], static["dataset_digest"], static["splits"]) == ("mnist", "data of mnist", "splits of mnist")
    assert "dataset" not in dynamic


def test_a_calibrated_conversion_is_shared_by_the_attacks_on_it(make_plan):
    """Cells: without attack, with two. The calibrated deployment is one stage; each attack is crafted once and carried over once."""
    made = make_plan({"runtime": ["onnxruntime"], "quantization": ["static_int8"], "attack": ["none", "fgsm", "pgd"]})
    assert kinds(made) == {"train": 1, "convert": 2, "evaluate": 2, "simulate": 1, "diagnose": 1, "attack": 4}
    assert len({planned.stages["model"] for planned in made.cells}) == 1


def test_a_rebuilt_network_is_no_conversion_of_the_first(make_plan):
    made = make_plan([{"runtime": ["litert"]}, {"runtime": ["onnxruntime"]}], **REBUILT)
    through, direct = made.cells
    assert through.params["route"] == "transplant:tensorflow"
    assert route_of(made, through) == ["train", "evaluate", "transplant", "convert", "convert"]
    assert made.stages[made.upstream(through.stages["model"])[2]].settings["framework"] == "tensorflow"
    assert direct.params["route"] == "onnx"
    assert route_of(made, direct) == ["train", "convert", "convert"]
    assert through.stages["source_evaluation"] == direct.stages["source_evaluation"]


def test_nothing_is_rebuilt_unless_the_sweep_says_in_what(make_plan):
    made = make_plan({"runtime": ["litert", "onnxruntime"]})
    assert [planned.reason for planned in made.cells] == ["pytorch exports no saved_model or tflite, which litert needs", None]


def test_threads_are_a_setting_of_what_computes_and_not_of_what_converts(make_plan):
    made = make_plan({"runtime": ["litert"], "attack": ["fgsm"]}, threads=3, measure={}, **REBUILT)
    threads = {(stage.kind, stage.settings.get("threads")) for stage in made.stages.values()}
    assert threads == {("train", 3), ("transplant", None), ("convert", None), ("evaluate", 3), ("diagnose", 3), ("measure", 3), ("attack", 3)}


def test_what_converts_is_told_by_the_packages_that_it_converts_with(make_plan):
    made = make_plan({"runtime": ["litert"]}, **REBUILT)
    locks = [(stage.kind, stage.settings["lock"]) for stage in made.stages.values() if stage.kind in ("transplant", "convert")]
    assert locks == [
        ("transplant", "lock of tensorflow and its converters"), ("convert", "lock of tensorflow and its converters"),
        ("convert", "lock of litert and its converters"),
    ]


def test_the_evaluation_is_told_what_was_quantized(make_plan):
    made = make_plan({"runtime": ["onnxruntime"], "quantization": ["float32", "float16"]})
    assert [made.stages[planned.stages["evaluation"]].settings["quantization"] for planned in made.cells] == ["float32", "float16"]
    assert len({planned.stages["source_evaluation"] for planned in made.cells}) == 1


def test_the_same_weights_are_the_masters_training(make_plan):
    made = make_plan({"framework": ["pytorch", "tensorflow"], "weights": ["trained", "same"]}, same_weights_from="tensorflow")
    cells = {(planned.cell.framework, planned.cell.weights): planned for planned in made.cells}
    assert kinds(made) == {"train": 2, "transplant": 1, "evaluate": 3, "diagnose": 1}
    assert cells["tensorflow", "same"].stages == cells["tensorflow", "trained"].stages
    taken = made.stages[cells["pytorch", "same"].stages["source"]]
    assert taken.kind == "transplant"
    assert taken.settings["framework"] == "pytorch"
    master = cells["tensorflow", "trained"].stages
    assert taken.inputs == {"model": master["source"], "evaluation": master["source_evaluation"]}
    assert len({planned.key for planned in made.cells}) == 4


def test_a_network_with_anothers_weights_is_held_against_that_one(make_plan):
    made = make_plan({"framework": ["pytorch"], "weights": ["same"], "runtime": ["onnxruntime"]}, same_weights_from="tensorflow")
    stages = only(made).stages
    own = made.stages[stages["source_evaluation"]]
    assert own.inputs["model"] == stages["source"]
    master = made.stages[own.inputs["source"]]
    assert made.stages[master.inputs["model"]].settings["framework"] == "tensorflow"
    assert (master.settings["exact"], master.settings["reference_examples"]) == ("computed", 1000)
    assert (own.settings["exact"], own.settings["reference_examples"]) == ("source", 0)  # equal weights: not computed again
    assert made.stages[stages["evaluation"]].inputs["source"] == stages["source_evaluation"]
    diagnosis = made.stages[stages["diagnosis"]]
    assert diagnosis.inputs == {"model": stages["source"], "source": master.inputs["model"], "evaluation": stages["source_evaluation"]}
    assert diagnosis.settings["when"] == "parity_fails"
    never = make_plan({"framework": ["pytorch"], "weights": ["same"]}, same_weights_from="tensorflow", diagnose={"when": "never"})
    assert "diagnosis" not in only(never).stages


def test_controls_are_trainings_of_their_own(make_plan):
    made = make_plan({"control": ["none", "one_ulp", "float64"]})
    assert kinds(made) == {"train": 3, "evaluate": 3}
    assert [made.stages[planned.stages["source"]].settings["control"] for planned in made.cells] == ["none", "one_ulp", "float64"]


def test_controls_of_the_same_weights_are_transplants_also_in_the_master(make_plan):
    grid = {"framework": ["tensorflow", "pytorch"], "weights": ["same"], "control": ["none", "one_ulp"]}
    made = make_plan(grid, same_weights_from="tensorflow", diagnose={"when": "never"})
    assert kinds(made) == {"train": 1, "transplant": 3, "evaluate": 4}
    found = {(p.cell.framework, p.cell.control): made.stages[p.stages["source"]] for p in made.cells}
    assert found["tensorflow", "none"].kind == "train"
    moved = [p for p in made.cells if p.cell.control == "one_ulp"]
    assert {made.stages[p.stages["source_evaluation"]].settings["exact"] for p in moved} == {"computed"}  # other weights
    assert found["tensorflow", "one_ulp"].settings["control"] == found["pytorch", "one_ulp"].settings["control"] == "one_ulp"


def test_an_open_model_runs_where_its_framework_is_and_a_converted_one_where_its_runtime_is(make_plan, make_facts):
    facts = make_facts(tensorflow={"toolchain": "old"})
    made = make_plan({"framework": ["tensorflow"], "runtime": ["native", "litert"], "attack": ["fgsm"]}, facts, measure={"reference": "native"})
    native, converted = made.cells
    where = {role: made.stages[key].settings["toolchain"] for role, key in native.stages.items()}
    assert set(where.values()) == {"old"}
    assert made.stages[converted.stages["model"]].settings["toolchain"] == "default"
    assert made.stages[made.stages[converted.stages["model"]].inputs["model"]].settings["toolchain"] == "old"  # its export
    measured = made.stages[converted.stages["measurement"]].settings
    assert (measured["toolchain"], measured["reference"]["toolchain"]) == ("default", "old")
    assert made.stages[converted.stages["attack"]].settings["toolchain"] == "default"


def test_steps_are_traced_here_and_in_what_they_are_held_against_with_their_controls(make_plan, make_facts):
    content = {"trace": {"steps": 20, "against": "tensorflow"}}
    made = make_plan({"framework": ["pytorch", "tensorflow"], "recipe": ["identical", "matched"]}, **content)
    assert kinds(made) == {"train": 4, "evaluate": 4, "trace": 10, "compare": 1}
    (compared,) = (stage for stage in made.stages.values() if stage.kind == "compare")
    assert set(compared.inputs) == {
        f"{side}_{control}" for side in ("own", "against") for control in ("none", "one_ulp_0", "one_ulp_1", "one_ulp_2", "float64")
    }
    assert made.stages[compared.inputs["own_float64"]].settings["framework"] == "pytorch"
    assert made.stages[compared.inputs["against_one_ulp_2"]].settings["control"] == "one_ulp"
    assert {made.stages[key].settings["steps"] for key in compared.inputs.values()} == {20}
    traced = [planned for planned in made.cells if "trace" in planned.stages]
    assert [(p.cell.framework, p.cell.recipe) for p in traced] == [("pytorch", "identical")]
    single = make_plan({"recipe": ["identical"]}, make_facts(pytorch={"float64": False}), **content)
    assert {role for stage in single.stages.values() if stage.kind == "compare" for role in stage.inputs} >= {"own_one_ulp_0", "against_float64"}
    assert "own_float64" not in {role for stage in single.stages.values() for role in stage.inputs}
    with pytest.raises(ConfigError, match="trace.against: tensorflow can't be used here"):
        make_plan({"recipe": ["identical"]}, make_facts(tensorflow={"missing": "gone"}), **content)


def test_what_can_not_be_had_gives_way_to_any_version_of_it(make_plan, make_facts):
    gone = only(make_plan(facts=make_facts(pytorch={"missing": "gone"})))
    first, second = (only(make_plan(facts=make_facts(pytorch={"version": version}))) for version in ("1", "2"))
    assert first.key != second.key
    assert first.replaces == second.replaces == gone.key
    assert gone.replaces == ""


def test_a_label_is_shown_and_changes_no_training(make_plan):
    plain, labelled = make_plan(), make_plan(train={"label": "smoke"})
    assert only(labelled).params["label"] == "smoke"
    assert "label" not in only(plain).params
    assert only(labelled).stages == only(plain).stages
    assert only(labelled).key != only(plain).key


def test_white_box_on_the_framework_and_transfer_on_what_is_converted(make_plan):
    made = make_plan({"runtime": ["native", "onnxruntime"], "attack": ["fgsm"]})
    native, converted = made.cells
    assert (native.access, converted.access) == ("white-box", "transfer:same-weights")
    carried = made.stages[converted.stages["attack"]]
    assert carried.inputs == {"model": converted.stages["model"], "attack": native.stages["attack"]}
    assert made.stages[native.stages["attack"]].inputs == {"model": native.stages["source"]}
    assert native.params["attack_eps"] == 0.3
    assert "attack_eps" not in make_plan().cells[0].params


def test_corrupted_inputs_are_made_once_for_all_models(make_plan):
    made = make_plan(
        {"framework": ["pytorch", "tensorflow"], "runtime": ["onnxruntime"], "quantization": ["float32", "static_int8"], "seed": [0, 1],
         "corruption": ["none", "rotate(severity=5)"]},
        evaluate={"examples": 20}, diagnose={"examples": 32},
    )
    assert kinds(made)["corrupt"] == 1
    assert kinds(made)["evaluate"] == 2 * 2 * 2 * 3  # frameworks, seeds, corruptions; the source and two conversions
    (corrupt,) = [stage for stage in made.stages.values() if stage.kind == "corrupt"]
    assert corrupt.settings["corruption_settings"] == {"severity": 5, "seed": 0}
    assert corrupt.settings["examples"] == 32  # the diagnosis reads more of them than the evaluation
    at = {planned.cell.corruption: planned for planned in made.cells if planned.cell.quantization == "static_int8"}
    corrupted, clean = at["rotate(severity=5)"], at["none"]
    assert corrupted.stages["model"] == clean.stages["model"]  # trained and calibrated on the data set's own
    evaluation = made.stages[corrupted.stages["evaluation"]]
    assert {role: made.stages[key].inputs.get("corrupted") for role, key in evaluation.inputs.items() if role in ("source", "simulated")} == {
        "source": corrupt.key, "simulated": corrupt.key,
    }
    assert evaluation.inputs["corrupted"] == made.stages[corrupted.stages["deployed_diagnosis"]].inputs["corrupted"] == corrupt.key
    assert (corrupted.params["corruption"], corrupted.params["corruption_severity"]) == ("rotate(severity=5)", 5)


def test_weights_that_were_taken_over_are_judged_on_corrupted_inputs_by_their_owner_on_them(make_plan):
    made = make_plan({"framework": ["pytorch"], "weights": ["same"], "corruption": ["fog"]}, same_weights_from="tensorflow")
    (planned,) = made.cells
    own = made.stages[planned.stages["evaluation"]]
    owner = made.stages[own.inputs["source"]]
    assert own.settings["exact"] == "source"
    assert owner.inputs["corrupted"] == own.inputs["corrupted"]
    assert owner.inputs["model"] == made.stages[planned.stages["source"]].inputs["model"]
    assert "corrupted" not in made.stages[made.stages[planned.stages["source"]].inputs["evaluation"]].inputs  # the proof is on clean ones


@pytest.mark.parametrize(("grid", "reason"), [
    ({"corruption": ["saturate"]}, "saturate is of images with 3 channels, and mnist has 1"),
    ({"corruption": ["fog"], "attack": ["fgsm"]}, "attacks start from the data set's own images, not from corrupted ones"),
])
def test_corruptions_that_mean_nothing_here(make_plan, grid, reason):
    assert only(make_plan(grid)).reason == reason


def test_searches_for_disagreements_are_one_for_each_converted_model(make_plan):
    made = make_plan({"runtime": ["native", "onnxruntime"], "attack": ["none", "fgsm"], "corruption": ["none"]}, search={"examples": 9})
    assert [("search" in planned.stages) for planned in made.cells] == [False, False, True, True]
    (stage,) = [stage for stage in made.stages.values() if stage.kind == "search"]
    assert stage.inputs == {"model": made.cells[2].stages["model"], "twin": made.cells[2].stages["source"]}
    assert (stage.settings["examples"], stage.settings["eps"], stage.settings["rounds"]) == (9, 0.1, 200)


def test_balls_that_are_larger_than_the_images_are_refused(make_plan):
    assert only(make_plan({"attack": ["pgd(eps=28.0,eps_step=1.0,norm=2)"]})).reason is None  # the diagonal of 784 values
    with pytest.raises(ConfigError, match="attack pgd: eps is 28.1, but two images are at most 28 apart under norm 2"):
        make_plan({"attack": ["pgd(eps=28.1,eps_step=1.0,norm=2)"]})
    with pytest.raises(ConfigError, match="attack single_pixel: eps is 785, but two images are at most 784 apart under norm 0"):
        make_plan({"attack": ["single_pixel(eps=785)"]})


def test_where_adversarial_inputs_are_crafted(make_plan):
    """By default white-box ones on the source, whose set is carried over, and black-box ones on each model itself."""
    made = make_plan({
        "runtime": ["native", "onnxruntime"], "quantization": ["float32"],
        "attack": ["pgd", "pgd(crafted_on=deployed)", "pgd(crafted_on=tensorflow)", "square", "square(crafted_on=source)"],
    })
    at = {(planned.cell.runtime, planned.cell.attack): planned for planned in made.cells}
    access = {key: planned.access.partition(":")[0] for key, planned in at.items()}
    assert access == {
        ("native", "pgd"): "white-box", ("native", "pgd(crafted_on=deployed)"): "white-box", ("native", "pgd(crafted_on=tensorflow)"): "transfer",
        ("native", "square"): "score", ("native", "square(crafted_on=source)"): "score",
        ("onnxruntime", "pgd"): "transfer", ("onnxruntime", "pgd(crafted_on=deployed)"): "white-box",
        ("onnxruntime", "pgd(crafted_on=tensorflow)"): "transfer",
        ("onnxruntime", "square"): "score", ("onnxruntime", "square(crafted_on=source)"): "transfer",
    }
    stage = {key: made.stages[planned.stages["attack"]] for key, planned in at.items()}
    assert stage["native", "pgd"] is stage["native", "pgd(crafted_on=deployed)"]
    model, source = at["onnxruntime", "pgd"].stages["model"], at["onnxruntime", "pgd"].stages["source"]
    straight = stage["onnxruntime", "pgd(crafted_on=deployed)"]
    assert straight.inputs == {"model": model, "twin": source}
    assert straight.settings["access"] == at["onnxruntime", "pgd(crafted_on=deployed)"].access == "white-box:straight-through"
    assert stage["onnxruntime", "square"].inputs == {"model": model}
    carried = stage["native", "pgd(crafted_on=tensorflow)"]
    crafted = made.stages[carried.inputs["attack"]]
    assert made.stages[crafted.inputs["model"]].settings["framework"] == "tensorflow"
    assert at["native", "pgd(crafted_on=tensorflow)"].access == f"transfer:{crafted.inputs['model']}"


def test_an_attacks_row_waits_for_the_others_on_its_model(make_plan):
    made = make_plan({"runtime": ["native", "onnxruntime"], "attack": ["none", "fgsm", "square", "deepfool", "fgsm(eps=0.1)"]})
    fgsm = made.cells[1]
    assert [(other.attack, other.eps, other.access) for other in fgsm.beside] == [("square", 0.3, "score"), ("fgsm(eps=0.1)", 0.1, "white-box")]  # deepfool's ball is another
    assert all(made.stages[other.stage].inputs["model"] == fgsm.stages["model"] for other in fgsm.beside)
    assert made.cells[0].beside == ()


def test_attack_settings_are_the_data_sets_own_unless_given(make_plan):
    settings = {"attack": {"pgd": {"eps": "8/255", "eps_step": 0.01}}}
    params = only(make_plan({"attack": ["pgd"]}, settings=settings)).params
    assert (params["attack_eps"], params["attack_eps_step"], params["attack_max_iter"]) == (8 / 255, 0.01, 40)


def test_a_measurement_reads_the_reference_beside_the_model(make_plan):
    made = make_plan({"runtime": ["onnxruntime"], "quantization": ["float16", "float32"]}, measure={"reference": "onnxruntime"})
    half, full = made.cells
    assert made.stages[half.stages["measurement"]].inputs == {"model": half.stages["model"], "reference": full.stages["model"]}
    assert made.stages[full.stages["measurement"]].inputs == {"model": full.stages["model"], "reference": full.stages["model"]}
    assert kinds(made) == {"train": 1, "evaluate": 3, "simulate": 1, "diagnose": 2, "convert": 3, "measure": 2}


def test_a_measurement_is_told_by_all_settings_of_its_reference(make_plan):
    made = make_plan({"runtime": ["native"]}, threads=2, measure={"reference": "onnxruntime"})
    assert made.stages[only(made).stages["measurement"]].settings["reference"] == {
        "runtime": "onnxruntime", "module": "onnxruntime", "toolchain": "default", "version": "onnxruntime 1.0", "lock": "lock of onnxruntime",
        "options": {"optimization": "all"}, "threads": 2,
    }


def test_a_measurement_goes_without_a_reference_that_is_not_here(make_plan, make_facts):
    made = make_plan(facts=make_facts(onnxruntime={"missing": "gone"}), measure={"reference": "onnxruntime"})
    measurement = made.stages[only(made).stages["measurement"]]
    assert measurement.inputs.keys() == {"model"}
    assert measurement.settings["reference"] is None


def test_a_component_that_is_missing_costs_its_own_cells_alone(make_plan, make_facts):
    made = make_plan({"runtime": ["litert", "native"]}, facts=make_facts(litert={"missing": "gone"}, fake={"missing": "gone"}))
    skipped, planned = made.cells
    assert skipped.reason == "env_unavailable: runtime litert can't be used here (gone)"
    assert (skipped.stages, planned.reason) == ({}, None)
    assert kinds(made) == {"train": 1, "evaluate": 1}


def test_skipped_cells_have_their_axes_and_no_stages(make_plan):
    skipped = only(make_plan({"quantization": ["float16"]}))
    assert skipped.reason == "native has no float16"
    assert skipped.stages == {}
    assert skipped.params["quantization"] == "float16"
    assert skipped.params["framework_version"] == "pytorch 1.0"


def test_an_exclusion_of_everything(make_plan):
    with pytest.raises(ConfigError, match="exclude: every cell of the grid is excluded"):
        make_plan(exclude=[{"framework": "pytorch"}])


def test_options_that_a_component_does_not_have(make_plan):
    with pytest.raises(ConfigError, match=r"options.fake: there is no 'fautls'; did you mean 'faults'\?"):
        make_plan(options={"fake": {"fautls": {}}})
    with pytest.raises(ConfigError, match=r"options.pytorch: there is no 'workers'; it has no options"):
        make_plan(options={"pytorch": {"workers": 3}})


def test_attack_steps_beyond_the_ball_are_refused(make_plan):
    with pytest.raises(ConfigError, match=r"eps_step 0.01 exceeds eps 0.001"):
        make_plan({"attack": ["pgd"]}, settings={"attack": {"pgd": {"eps": 0.001}}})


def keys(made):
    """Stage keys by kind, and the cell's."""
    assert len(made.cells) == 1
    return {stage.kind + stage.settings.get("step", ""): key for key, stage in made.stages.items()} | {"cell": made.cells[0].key}


CONVERTED = {"runtime": ["onnxruntime"], "quantization": ["static_int8"], "attack": ["fgsm"]}


def changed(before, after):
    return {kind for kind in before if before[kind] != after[kind]}


def test_the_params_of_a_row(make_plan):
    """The axes, the versions and every setting that its figures are of; each by its name, all in the key."""
    data = {"mnist": plan.PreparedData("mnist", "0123456789abcdef", "splits", (28, 28, 1), 10)}
    train = {"learning_rate": 0.1, "momentum": 0.5, "l2": 0.25, "batch_size": 7, "epochs": 3, "examples": 1000}
    grid = {"runtime": ["onnxruntime"], "quantization": ["float16"], "seed": [5]}
    planned = only(make_plan(grid, data=data, train=train, threads=2, evaluate={"examples": 300}))
    axes = {
        "framework": "pytorch", "dataset": "mnist", "architecture": "lenet5", "recipe": "defaults", "seed": 5, "weights": "trained",
        "control": "none", "runtime": "onnxruntime", "quantization": "float16", "device": "localhost", "corruption": "none", "attack": "none",
    }
    trained = {f"train_{name}": value for name, value in train.items()}
    assert planned.params == axes | trained | {
        "train_optimizer": "sgd", "train_epsilon": None, "train_decay": [],
        "framework_version": "pytorch 1.0", "runtime_version": "onnxruntime 1.0", "dataset_digest": "0123456789ab",
        "threads": 2, "eval_examples": 300, "route": "onnx", "runtime_optimization": "all",
    }
    assert planned.key == plan.digest({name: value for name, value in planned.params.items() if name != "route"})


def test_params_of_attacks_and_of_weights_that_were_taken_over(make_plan):
    bare, attacked, taken = make_plan(
        [{}, {"attack": ["fgsm"]}, {"weights": ["same"]}], same_weights_from="tensorflow", attack={"examples": 20},
    ).cells
    assert {name: attacked.params[name] for name in attacked.params.keys() - bare.params.keys()}["attack_examples"] == 20
    assert attacked.params["attack_eps"] == 0.3
    assert taken.params["weights_from"] == "tensorflow"
    assert not [name for name in bare.params if name.startswith("attack_") or name == "weights_from"]


def test_the_number_of_attacked_examples_is_nothing_to_a_cell_without_attack(make_plan):
    assert only(make_plan(attack={"examples": 10})).key == only(make_plan()).key


def test_rows_that_differ_in_a_training_setting_alone_are_two(make_plan):
    few, many = (only(make_plan(train={"epochs": epochs})) for epochs in (3, 4))
    assert few.key != many.key
    assert {name for name in few.params if few.params[name] != many.params[name]} == {"train_epochs"}
    assert (few.params["train_epochs"], many.params["train_epochs"]) == (3, 4)


EVERYTHING = {"train", "convertexport", "convertdeploy", "evaluate", "simulate", "diagnose", "attack", "measure"}


@pytest.mark.parametrize(
    ("content", "affected"),
    [
        ({}, set()),
        ({"name": "other"}, set()),
        ({"slots": 7, "limits": {"memory_gb": 1}, "store": {"tracking_uri": "http://elsewhere"}}, set()),
        ({"train": {"epochs": 11}}, EVERYTHING | {"cell"}),  # everything rests on the training
        ({"settings": {"architecture": {"lenet5": {"epochs": 11}}}}, EVERYTHING | {"cell"}),
        ({"settings": {"architecture": {"lenet1": {"epochs": 11}}}}, set()),
        ({"threads": 2}, EVERYTHING | {"cell"}),
        ({"evaluate": {"examples": 10}}, {"evaluate", "diagnose", "simulate", "cell"}),
        ({"settings": {"attack": {"fgsm": {"eps": 0.2}}}}, {"attack", "cell"}),
        ({"attack": {"examples": 10}}, {"attack", "cell"}),
        ({"transplant_via": "tensorflow"}, set()),  # the way that it goes needs none
        ({"measure": {"blocks": 31}}, {"measure"}),
    ],
)
def test_which_settings_change_which_keys(make_plan, content, affected):
    before = keys(make_plan(CONVERTED, measure={}))
    after = keys(make_plan(CONVERTED, **({"measure": {}} | content)))
    assert changed(before, after) == affected


@pytest.mark.parametrize(
    ("changes", "affected"),
    [
        ({"pytorch": {"lock": "another"}}, EVERYTHING),
        ({"pytorch": {"version": "pytorch 2.0"}}, EVERYTHING | {"cell"}),
        ({"pytorch": {"convert_lock": "another"}}, {"convertexport", "convertdeploy", "evaluate", "diagnose", "attack", "measure"}),
        ({"onnxruntime": {"lock": "another"}}, {"evaluate", "diagnose", "attack", "measure"}),
        ({"onnxruntime": {"version": "another"}}, {"convertdeploy", "evaluate", "diagnose", "attack", "measure", "cell"}),
        ({"onnxruntime": {"convert_lock": "another"}}, {"convertdeploy", "evaluate", "diagnose", "attack", "measure"}),
        ({"native": {"lock": "another"}}, {"evaluate", "diagnose", "simulate", "measure"}),
        ({"attacks": {"lock": "another"}}, {"attack"}),
        ({"tensorflow": {"lock": "another"}}, set()),
    ],
)
def test_which_packages_change_which_keys(make_plan, make_facts, changes, affected):
    before = keys(make_plan(CONVERTED, measure={}))
    assert changed(before, keys(make_plan(CONVERTED, facts=make_facts(**changes), measure={}))) == affected


def test_where_it_is_measured_changes_the_measurement_alone(make_plan):
    before = keys(make_plan(CONVERTED, measure={}))
    assert changed(before, keys(make_plan(CONVERTED, host=HOST._replace(name="there"), measure={}))) == {"measure"}
    assert changed(before, keys(make_plan(CONVERTED, host=HOST._replace(cpu="another"), measure={}))) == {"measure"}


def test_the_processor_that_trains_is_part_of_what_was_trained(make_plan, make_facts):
    gpu = HOST._replace(processor="gpu")
    before = keys(make_plan(CONVERTED, measure={}))
    assert changed(before, keys(make_plan(CONVERTED, host=gpu, measure={}))) == EVERYTHING
    trained = [stage for stage in make_plan(host=gpu).stages.values() if stage.kind == "train"]
    assert [stage.gpu for stage in trained] == [True]
    without = make_facts(pytorch={"processors": ["cpu"]})
    assert [stage.gpu for stage in make_plan(host=gpu, facts=without).stages.values()] == [False, False]


def test_the_data_are_part_of_what_reads_them(make_plan):
    before = make_plan()
    other = {"mnist": plan.PreparedData("mnist", "other data", "splits of mnist", (28, 28, 1), 10)}
    assert before.stages.keys().isdisjoint(make_plan(data=other).stages)
    other = {"mnist": plan.PreparedData("mnist", "data of mnist", "other splits", (28, 28, 1), 10)}
    assert before.stages.keys().isdisjoint(make_plan(data=other).stages)


@pytest.fixture
def tree(tmp_path, monkeypatch):
    """A copy of the sources that may be edited; the digests are of it."""
    copy = tmp_path / "sweep"
    shutil.copytree(sources.ROOT, copy, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(sources, "ROOT", copy)
    sources._read.cache_clear()
    sources.digest.cache_clear()

    def edit(file, old, new):
        text = (copy / file).read_text()
        assert old in text
        (copy / file).write_text(text.replace(old, new, 1))
        sources._read.cache_clear()
        sources.digest.cache_clear()

    yield edit
    monkeypatch.undo()
    sources._read.cache_clear()
    sources.digest.cache_clear()


@pytest.mark.parametrize(
    ("file", "affected"),
    [
        ("stages/train.py", EVERYTHING),
        ("frameworks/pytorch.py", EVERYTHING),
        ("layers.py", EVERYTHING),
        ("stages/convert.py", EVERYTHING - {"train", "simulate"}),
        ("runtimes/onnxruntime.py", {"convertdeploy", "evaluate", "diagnose", "attack", "measure"}),
        ("metrics.py", {"evaluate", "diagnose", "simulate", "attack"}),
        ("timing.py", {"evaluate", "diagnose", "simulate", "attack", "measure"}),  # the device's module reads it, whatever the device is asked for
        ("devices/localhost.py", {"evaluate", "diagnose", "simulate", "attack", "measure"}),
        ("work/__init__.py", EVERYTHING),
        ("work/train.py", EVERYTHING),
        ("work/convert.py", EVERYTHING - {"train", "simulate"}),
        ("work/evaluate.py", {"evaluate", "diagnose", "simulate"}),
        ("work/simulate.py", {"evaluate", "diagnose", "simulate"}),
        ("simulation.py", {"evaluate", "diagnose", "simulate"}),
        ("work/attack.py", {"attack"}),
        ("work/outcomes.py", {"evaluate", "diagnose", "simulate", "attack"}),
        ("work/measure.py", {"measure"}),
        ("execution.py", set()),
        ("workers.py", set()),
        ("frameworks/tensorflow.py", set()),
        ("progress.py", set()),
    ],
)
def test_which_sources_change_which_keys(make_plan, tree, file, affected):
    before = keys(make_plan(CONVERTED, measure={}))
    with (sources.ROOT / file).open("a") as source:
        source.write("\nADDED = 1\n")
    sources._read.cache_clear()
    sources.digest.cache_clear()
    assert changed(before, keys(make_plan(CONVERTED, measure={}))) == affected


def test_words_about_the_code_change_no_key(make_plan, tree):
    before = keys(make_plan(CONVERTED, measure={}))
    with (sources.ROOT / "stages/train.py").open("a") as source:
        source.write("\n\n# a further comment\n")
    tree("layers.py", '"""The neutral description', '"""Another description')
    tree("layers.py", "    total = 0\n", "\n    total = 0  # none yet\n")
    assert changed(before, keys(make_plan(CONVERTED, measure={}))) == set()
    tree("layers.py", "    total = 0  # none yet\n", "    total = 1\n")
    assert changed(before, keys(make_plan(CONVERTED, measure={}))) == EVERYTHING


def test_what_a_quantization_costs_by_itself_is_computed_once_for_all_runtimes(make_plan):
    grid = {"framework": ["tensorflow"], "runtime": ["onnxruntime", "litert"], "quantization": ["static_int8", "float32"]}
    made = make_plan(grid)
    assert kinds(made)["simulate"] == 1
    stages = {(planned.cell.runtime, planned.cell.quantization): made.stages[planned.stages["evaluation"]] for planned in made.cells}
    assert stages["onnxruntime", "static_int8"].settings["quantization_options"] == {"granularity": "channel", "samples": None, "draw": 0}
    assert "simulated" not in stages["onnxruntime", "float32"].inputs


def test_an_operator_is_one_stage_on_the_way_of_its_framework(make_plan, make_facts):
    facts = make_facts(tensorflow={"operators": ["conv2d", "softmax"]}, pytorch={"operators": ["conv2d"]})
    nothing = {"dataset": ["none"], "architecture": ["none"]}
    grid = nothing | {"framework": ["tensorflow", "pytorch"], "operator": ["conv2d", "softmax"], "runtime": ["litert", "onnxruntime(optimization=basic)"]}
    made = make_plan(grid, facts=facts, probes={"count": 7, "seed": 3})
    reasons = [planned.reason for planned in made.cells]
    no_way = "pytorch exports no saved_model or tflite, which litert needs"
    assert sorted(filter(None, reasons)) == sorted([no_way, "pytorch builds no softmax", "pytorch builds no softmax"])
    assert kinds(made) == {"probe": 5}
    planned = next(each for each in made.cells if each.cell.framework == "tensorflow" and each.cell.base("runtime") == "onnxruntime")
    assert planned.stages.keys() == {"probe"}
    settings = made.stages[planned.stages["probe"]].settings
    assert (settings["count"], settings["seed"], settings["format"], settings["operator"]) == (7, 3, "onnx", "conv2d")
    assert settings["runtime"]["options"] == {"optimization": "basic"}
    assert planned.params["probes_count"] == 7
    assert not planned.params.keys() & {"dataset", "architecture", "recipe", "seed", "attack"}
