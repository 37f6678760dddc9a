"""Images really turn, labels really change, and both can be undone."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from server_kit.errors import InvalidSetting
from server_kit.simulation.rotation import _Blend, rotate
from server_kit.simulation.transforms import IDENTITY, Transform, next_label, swapped_pairs

PERMUTATIONS = st.integers(2, 12).flatmap(lambda size: st.permutations(range(size))).map(tuple)


def images(dtype: type = np.uint8, side: int = 7) -> np.ndarray:
    drawn = np.random.default_rng(0).integers(0, 256, (5, side, side))
    return drawn.astype(dtype)


class TestRotation:
    @pytest.mark.parametrize("dtype", [np.uint8, np.float32])
    def test_four_quarter_turns_are_none(self, dtype):
        turned = images(dtype)
        for turn in range(1, 5):
            turned = rotate(turned, 90)
            assert np.array_equal(turned, images(dtype)) == (turn == 4)
        assert turned.dtype == dtype

    def test_a_quarter_turn_takes_the_right_edge_to_the_top(self):
        image = np.zeros((1, 3, 3), np.uint8)
        image[0, :, 2] = [1, 2, 3]
        assert rotate(image, 90)[0].tolist() == [[1, 2, 3], [0, 0, 0], [0, 0, 0]]

    @pytest.mark.parametrize("degrees", [90, 180, 270])
    @pytest.mark.parametrize("side", [6, 7])
    def test_blending_agrees_with_exact_turns(self, degrees, side):
        flat = images(np.float32, side).reshape(5, -1)
        blended = _Blend.of(side, degrees).apply(flat).reshape(5, side, side)
        np.testing.assert_allclose(blended, rotate(images(np.float32, side), degrees), atol=1e-3)

    def test_turning_there_and_back_keeps_a_smooth_picture(self):
        down, right = np.mgrid[0:28, 0:28] - 13.5
        blob = np.exp(-((down - 3) ** 2 + (right + 4) ** 2) / 20).astype(np.float32)[None]
        there = rotate(blob, 45)
        assert np.abs(there - blob).max() > 0.3
        np.testing.assert_allclose(rotate(there, -45), blob, atol=0.05)

    def test_what_comes_in_from_outside_is_black(self):
        turned = rotate(np.full((1, 8, 8), 255, np.uint8), 45)
        assert turned[0, 0, 0] == 0
        assert turned[0, 4, 4] == 255

    def test_channels_turn_alike(self):
        colour = np.random.default_rng(1).integers(0, 256, (4, 3, 8, 8), dtype=np.uint8)
        for degrees in (90, 30):
            turned = rotate(colour, degrees)
            np.testing.assert_array_equal(turned[:, 1], rotate(colour[:, 1], degrees))

    @pytest.mark.parametrize("shape", [(3, 8), (3, 8, 6)])
    def test_only_square_images_turn(self, shape):
        with pytest.raises(InvalidSetting, match="square"):
            rotate(np.zeros(shape, np.float32), 90)


class TestLabels:
    @given(PERMUTATIONS)
    def test_a_permutation_can_be_undone(self, relabel):
        transform = Transform(relabel=relabel)
        labels = np.arange(len(relabel))
        np.testing.assert_array_equal(transform.inverse_labels.labels(transform.labels(labels)), labels)
        assert transform.then(transform.inverse_labels) == IDENTITY

    @pytest.mark.parametrize("relabel", [(0, 0), (1, 2), (0, 2)])
    def test_what_is_no_permutation_is_refused(self, relabel):
        with pytest.raises(InvalidSetting):
            Transform(relabel=relabel)

    def test_flips_are_what_they_are_called(self):
        labels = np.arange(5)
        assert next_label(5).labels(labels).tolist() == [1, 2, 3, 4, 0]
        assert swapped_pairs(5).labels(labels).tolist() == [1, 0, 3, 2, 4]
        assert swapped_pairs(4).labels(np.arange(4)).tolist() == [1, 0, 3, 2]


class TestComposition:
    @given(PERMUTATIONS, st.data())
    def test_then_is_one_after_the_other(self, first, data):
        second = tuple(data.draw(st.permutations(range(len(first)))))
        one, two = Transform(90, first), Transform(180, second)
        labels, pixels = np.arange(len(first)), images()
        np.testing.assert_array_equal(one.then(two).labels(labels), two.labels(one.labels(labels)))
        np.testing.assert_array_equal(one.then(two).inputs(pixels), two.inputs(one.inputs(pixels)))

    def test_doing_nothing_is_recognised_in_any_form(self):
        assert Transform(360, (0, 1, 2)) == IDENTITY
        assert next_label(3, by=3).is_identity
        assert Transform(45).then(Transform(-45)) == IDENTITY
        assert IDENTITY.inputs(pixels := images()) is pixels

    def test_relabellings_of_different_sizes_do_not_mix(self):
        with pytest.raises(InvalidSetting):
            next_label(3).then(next_label(4))
