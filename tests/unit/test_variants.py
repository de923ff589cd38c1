"""Values of an axis with settings: one text each, both ways."""

import pytest

from sweep import variants


def test_lists_span_a_grid_of_their_own():
    assert variants.spanned({"pgd": {"eps": [0.1, "8/255"], "max_iter": 7}}) == ["pgd(eps=0.1,max_iter=7)", "pgd(eps=8/255,max_iter=7)"]
    assert variants.spanned({"a": {"x": [1, 2], "y": [True, "word"]}}) == ["a(x=1,y=true)", "a(x=1,y=word)", "a(x=2,y=true)", "a(x=2,y=word)"]
    assert variants.spanned("plain") == ["plain"]
    assert variants.spanned("b( z = 1 , a = q )") == ["b(a=q,z=1)"]  # one text for one meaning


@pytest.mark.parametrize("settings", [{"x": 3}, {"x": -0.5, "y": "1.x"}, {"x": 1e-05}, {"x": False}, {"x": "8/255"}, {}])
def test_a_text_is_read_as_it_was_written(settings):
    assert variants.parse(variants.write("name@1.2", settings)) == ("name@1.2", settings)
    assert variants.base(variants.write("name@1.2", settings)) == "name@1.2"


@pytest.mark.parametrize("text", ["a(", "a)", "a()", "(x=1)", "a(x)", "a(x=)", "a(=1)", "a(x=1)(y=2)", "a(x=1))"])
def test_what_is_no_variant(text):
    with pytest.raises(ValueError, match="not of the form"):
        variants.parse(text)


@pytest.mark.parametrize("value", ["1", "true", "a,b", "a)", "", None, [1]])
def test_settings_that_have_no_plain_text(value):
    with pytest.raises(ValueError, match="can't be a setting of an axis"):
        variants.write("a", {"x": value})


def test_a_mapping_must_have_settings():
    with pytest.raises(ValueError, match="'a' is followed by its settings"):
        variants.spanned({"a": ["x"]})
