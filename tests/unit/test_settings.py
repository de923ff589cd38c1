"""Options: defaults, the sweep's, an axis's; and what nobody has is an error before any work."""

import pytest

from sweep import settings
from sweep.errors import ConfigError


def test_what_comes_over_what(make_sweep, make_facts):
    runtime = make_facts().runtimes["onnxruntime"]
    assert settings.serving_options(runtime, make_sweep(), {}) == {"optimization": "all"}
    sweep = make_sweep(options={"onnxruntime": {"optimization": "basic"}})
    assert settings.serving_options(runtime, sweep, {}) == {"optimization": "basic"}
    assert settings.serving_options(runtime, sweep, {"optimization": "disabled"}) == {"optimization": "disabled"}


def test_a_calibrated_row_has_a_size_and_a_draw(make_facts):
    runtime = make_facts().runtimes["onnxruntime"]
    found = settings.conversion_options(runtime, "static_int8(draw=2,granularity=tensor)")
    assert found == ("static_int8", {"granularity": "tensor", "samples": None, "draw": 2})
    assert settings.conversion_options(runtime, "dynamic_int8") == ("dynamic_int8", {})


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"options": {"onnxruntime": {"optimisation": "all"}}}, "options.onnxruntime: there is no 'optimisation'; did you mean 'optimization'?"),
        ({"options": {"onnxruntime": {"optimization": "some"}}}, "options.onnxruntime.optimization: can't be 'some'; valid: all, basic, disabled"),
        ({"grid": {"runtime": ["onnxruntime(x=1)"]}}, "grid.runtime: onnxruntime(x=1): onnxruntime has no option 'x'; valid: optimization"),
        (
            {"grid": {"runtime": ["onnxruntime"], "quantization": ["static_int8(granularity=row)"]}},
            "grid.quantization: static_int8(granularity=row): onnxruntime's static_int8: granularity can't be 'row'; valid: channel, tensor",
        ),
        (
            {"grid": {"runtime": ["onnxruntime"], "quantization": ["static_int8(samples=0)"]}},
            "grid.quantization: static_int8(samples=0): samples is a whole number of at least 1, not 0",
        ),
    ],
)
def test_what_nobody_has(make_sweep, make_facts, content, message):
    with pytest.raises(ConfigError) as caught:
        settings.check(make_sweep(**content), make_facts())
    assert str(caught.value) == message


def test_what_one_runtime_of_a_grid_lacks_is_a_skip(make_plan):
    made = make_plan({"framework": ["tensorflow"], "runtime": ["onnxruntime", "litert"], "quantization": ["static_int8(granularity=tensor)"]})
    assert [planned.reason for planned in made.cells] == [None, "litert's static_int8 has no option 'granularity'; it has no options"]


def test_how_a_model_is_served_changes_nothing_in_its_conversion(make_plan):
    grid = {"runtime": ["onnxruntime", "onnxruntime(optimization=disabled)"], "quantization": ["static_int8", "static_int8(draw=1)"]}
    made = make_plan(grid)
    stages = [planned.stages for planned in made.cells]
    assert len({each["model"] for each in stages}) == 2
    assert len({each["evaluation"] for each in stages}) == 4
    assert [planned.params["runtime_optimization"] for planned in made.cells] == ["all", "all", "disabled", "disabled"]
    assert [planned.params["quantization_draw"] for planned in made.cells] == [0, 1, 0, 1]
    assert made.cells[0].params["quantization_samples"] == "all"
