"""Data come in as they are on disk, compact and checked; what is wrong with a file is one typed sentence."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from server_kit.errors import InvalidSetting, ServerError
from server_kit.simulation.datasets import (
    Dataset,
    DatasetNotFound,
    Digits,
    IdxFiles,
    InvalidDataset,
    LabelCounts,
    LabelCountsFile,
    LeafFolder,
    NpzFile,
    Synthetic,
    count_labels,
    find_dataset,
    read_sizes,
)
from server_kit.simulation.datasets.idx import read_idx
from server_kit.simulation.ragged import Ragged


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def images(count: int = 12, side: int = 4) -> np.ndarray:
    return rng().integers(0, 256, (count, side, side), dtype=np.uint8)


def known(value):
    """What must be known here."""
    assert value is not None
    return value


class TestDataset:
    def test_bytes_stay_bytes_and_are_scaled_when_they_are_used(self):
        x = images()
        dataset = Dataset(x, np.arange(12) % 3, scale=1 / 255)
        assert dataset.x is x
        inputs = dataset.inputs(np.array([3, 5]))
        assert inputs.dtype == np.float32
        assert 0 <= inputs.min() <= inputs.max() <= 1
        np.testing.assert_allclose(inputs, x[[3, 5]] / 255, rtol=1e-6)

    def test_the_number_of_classes_follows_from_the_labels_or_is_given(self):
        assert Dataset(images(), np.arange(12) % 3).num_classes == 3
        assert Dataset(images(), np.arange(12) % 3, num_classes=5).class_counts.tolist() == [4, 4, 4, 0, 0]

    def test_a_subset_keeps_all_that_is_known_of_its_samples(self):
        number = np.arange(12)
        dataset = Dataset(images(), number % 3, users=number, split=number % 2, populations=number, blocks=number)
        part = dataset.subset(5, rng())
        assert len(part) == 5
        assert part.num_classes == 3
        rows = known(part.users)
        for beside in (part.populations, part.blocks):
            np.testing.assert_array_equal(beside, rows)
        np.testing.assert_array_equal(part.split, rows % 2)
        np.testing.assert_array_equal(part.x, dataset.x[rows])

    @pytest.mark.parametrize(
        ("x", "y", "more", "says"),
        [
            (images().astype(np.float64), np.zeros(12, np.int64), {}, "uint8 or float32"),
            (np.zeros(12, np.float32), np.zeros(12, np.int64), {}, "shape"),
            (np.zeros((0, 4), np.float32), np.zeros(0, np.int64), {}, "shape"),
            (np.full((2, 3), np.nan, np.float32), np.zeros(2, np.int64), {}, "NaN"),
            (images(), np.zeros(11, np.int64), {}, "y of data has shape"),
            (images(), np.zeros(12), {}, "int64"),
            (images(), np.full(12, -1), {}, "outside"),
            (images(), np.full(12, 3), {"num_classes": 3}, "outside"),
            (images(), np.zeros(12, np.int64), {"users": np.zeros(3, np.int64)}, "users"),
            (images(), np.zeros(12, np.int64), {"split": np.full(12, 2)}, "split"),
        ],
    )
    def test_what_cannot_be_used_is_refused(self, x, y, more, says):
        with pytest.raises(InvalidDataset, match=says):
            Dataset(x, y, **more)


class TestDigits:
    def test_are_real_digits_from_zero_to_one(self):
        digits = Digits().load()
        assert digits.x.shape == (1797, 8, 8)
        assert digits.x.dtype == np.uint8
        assert digits.inputs(np.arange(len(digits))).max() == 1.0
        assert digits.class_counts.min() > 150

    def test_are_found_without_a_folder(self):
        assert find_dataset("digits") == Digits()


class TestNpz:
    def test_reads_what_is_known_and_leaves_out_what_is_not(self, tmp_path):
        x, number = images(), np.arange(12)
        np.savez(
            tmp_path / "full.npz",
            x=x,
            y=(number % 3).astype(np.uint8),
            user=np.array(list("cabcabcabcab")),
            split=(number % 2).astype(np.uint8),
            population=np.where(number % 3, 4, 0),
            classes=np.array(["one", "two", "three", "four"]),
        )
        full = NpzFile(tmp_path / "full.npz").load()
        assert full.name == "full"
        assert full.num_classes == 4
        assert known(full.users)[:3].tolist() == [2, 0, 1]
        assert known(full.populations)[:3].tolist() == [0, 1, 1]
        assert known(full.split).tolist() == [0, 1] * 6
        assert full.scale == 1 / 255
        np.savez(tmp_path / "bare.npz", x=x.astype(np.float64), y=number)
        bare = NpzFile(tmp_path / "bare.npz").load()
        assert bare.x.dtype == np.float32
        assert bare.scale == 1.0
        assert (bare.users, bare.split, bare.populations, bare.blocks) == (None, None, None, None)

    def test_channels_come_first(self, tmp_path):
        x = rng().integers(0, 256, (5, 8, 8, 3), dtype=np.uint8)
        np.savez(tmp_path / "colour.npz", x=x, y=np.arange(5))
        loaded = NpzFile(tmp_path / "colour.npz").load()
        assert loaded.x.flags.c_contiguous
        np.testing.assert_array_equal(loaded.x[2, 1], x[2, :, :, 1])

    def test_a_block_is_one_experiment_of_one_user(self, tmp_path):
        np.savez(
            tmp_path / "windows.npz",
            x=np.zeros((6, 4), np.float32),
            y=np.zeros(6, np.uint8),
            user=np.array([1, 1, 1, 2, 2, 2]),
            experiment=np.array([0, 0, 1, 0, 1, 1]),
        )
        assert known(NpzFile(tmp_path / "windows.npz").load().blocks).tolist() == [0, 0, 1, 2, 3, 3]

    def test_a_pickle_in_the_file_is_refused_and_not_run(self, tmp_path):
        with (tmp_path / "hostile.npz").open("wb") as stream:
            np.savez(stream, x=np.array([Bomb()], dtype=object), y=np.arange(1), allow_pickle=True)
        with pytest.raises(InvalidDataset, match=r"hostile\.npz cannot be read"):
            NpzFile(tmp_path / "hostile.npz").load()
        assert not Bomb.went_off

    @pytest.mark.parametrize(
        ("arrays", "says"),
        [
            ({"x": images()}, "no array 'y'"),
            ({"x": images().astype(np.int32), "y": np.arange(12)}, "uint8 or floats"),
            ({"x": images(), "y": np.arange(12) / 2}, "whole numbers"),
            ({"x": images(), "y": np.arange(11)}, "shape"),
        ],
    )
    def test_wrong_arrays_are_named(self, tmp_path, arrays, says):
        np.savez(tmp_path / "wrong.npz", **arrays)
        with pytest.raises(InvalidDataset, match=says):
            NpzFile(tmp_path / "wrong.npz").load()

    @pytest.mark.parametrize("content", [b"", b"PK\x03\x04 not a zip after all", b"\x93NUMPY\x01\x00junk"])
    def test_broken_bytes_are_named(self, tmp_path, content):
        (tmp_path / "broken.npz").write_bytes(content)
        with pytest.raises(InvalidDataset, match=r"broken\.npz"):
            NpzFile(tmp_path / "broken.npz").load()

    def test_a_single_array_is_not_a_data_set(self, tmp_path):
        np.save(tmp_path / "single.npy", images())
        with pytest.raises(InvalidDataset, match="single array"):
            NpzFile(tmp_path / "single.npy").load()


class Bomb:
    went_off = False

    def __reduce__(self):
        return (setattr, (Bomb, "went_off", True))


def idx_bytes(array: np.ndarray) -> bytes:
    return bytes([0, 0, 8, array.ndim]) + b"".join(size.to_bytes(4) for size in array.shape) + array.tobytes()


class TestIdx:
    @pytest.mark.parametrize("zipped", [False, True])
    def test_reads_the_four_files_plain_or_gzipped(self, tmp_path, zipped):
        folder = tmp_path / "mnist"
        folder.mkdir()
        parts = {"train": images(7), "t10k": images(3)}
        for prefix, x in parts.items():
            for kind, array in {"images-idx3": x, "labels-idx1": np.arange(len(x), dtype=np.uint8)}.items():
                content = idx_bytes(array)
                name = f"{prefix}-{kind}-ubyte" + (".gz" if zipped else "")
                (folder / name).write_bytes(gzip.compress(content) if zipped else content)
        loaded = find_dataset("mnist", tmp_path).load()
        np.testing.assert_array_equal(loaded.x, np.concatenate([parts["train"], parts["t10k"]]))
        assert known(loaded.split).tolist() == [0] * 7 + [1] * 3
        assert loaded.scale == 1 / 255

    @pytest.mark.parametrize(
        ("content", "says"),
        [
            (b"", "no idx file"),
            (b"\x01\x02\x08\x01", "no idx file"),
            (bytes([0, 0, 0x0D, 1, 0, 0, 0, 1, 0, 0, 0, 0]), "unsigned bytes"),
            (bytes([0, 0, 8, 1, 0, 0, 0, 5, 1, 2, 3]), "5 bytes that it claims"),
            (bytes([0, 0, 8, 1, 0, 0, 0, 2, 1, 2, 3]), "2 bytes that it claims"),
            (bytes([0, 0, 8, 2, 255, 255, 255, 255, 255, 255, 255, 255]), "claims"),
        ],
    )
    def test_a_file_that_is_not_what_it_claims_is_refused(self, tmp_path, content, says):
        (tmp_path / "file").write_bytes(content)
        with pytest.raises(InvalidDataset, match=says):
            read_idx(tmp_path / "file")

    def test_images_without_their_labels_are_refused(self, tmp_path):
        (tmp_path / "train-images-idx3-ubyte").write_bytes(idx_bytes(images(3)))
        (tmp_path / "train-labels-idx1-ubyte").write_bytes(idx_bytes(np.zeros(2, np.uint8)))
        with pytest.raises(InvalidDataset, match="3 images of train have 2 labels"):
            IdxFiles(tmp_path).load()

    def test_a_broken_gzip_is_named(self, tmp_path):
        (tmp_path / "file.gz").write_bytes(gzip.compress(idx_bytes(images()))[:-20])
        with pytest.raises(InvalidDataset, match=r"file\.gz"):
            read_idx(tmp_path / "file")


def leaf(users: dict[str, tuple[list, list]]) -> str:
    data = {user: {"x": x, "y": y} for user, (x, y) in users.items()}
    return json.dumps({"users": list(users), "num_samples": [len(y) for _, y in users.values()], "user_data": data})


class TestLeaf:
    def test_users_keep_their_samples_and_their_split(self, tmp_path):
        for part in ("train", "test"):
            (tmp_path / "femnist" / part).mkdir(parents=True)
        (tmp_path / "femnist/train/a.json").write_text(leaf({"bo": ([[0.0] * 4] * 3, [0, 1, 2])}))
        (tmp_path / "femnist/train/b.json").write_text(leaf({"al": ([[0.5] * 4] * 2, [1, 1]), "none": ([], [])}))
        (tmp_path / "femnist/test/a.json").write_text(leaf({"bo": ([[1.0] * 4], [3.0])}))
        loaded = find_dataset("femnist", tmp_path).load()
        assert loaded.x.dtype == np.float32
        assert known(loaded.users).tolist() == [1, 1, 1, 0, 0, 1]
        assert known(loaded.split).tolist() == [0, 0, 0, 0, 0, 1]
        assert loaded.y.tolist() == [0, 1, 2, 1, 1, 3]
        assert LeafFolder(tmp_path / "femnist", image_shape=(2, 2)).load().x.shape == (6, 2, 2)

    def test_without_folders_there_is_no_split(self, tmp_path):
        (tmp_path / "all.json").write_text(leaf({"u": ([[1.0], [2.0]], [0, 1])}))
        assert LeafFolder(tmp_path).load().split is None

    @pytest.mark.parametrize(
        ("content", "says"),
        [
            ("{", "cannot be read"),
            ("[]", "cannot be read"),
            ('{"users": ["a"], "user_data": {}}', "cannot be read"),
            (leaf({"a": (["text"], [0])}), "not numbers"),
            (leaf({"a": ([[1.0], [1.0, 2.0]], [0, 1])}), "cannot be read"),
            (leaf({"a": ([[1.0]], [0.5])}), "whole numbers"),
            (leaf({"a": ([[1.0]], [0, 1])}), "1 inputs for 2 labels"),
            (leaf({"a": ([[1.0]], [0]), "b": ([[1.0, 2.0]], [0])}), "different shapes"),
            (leaf({"a": ([], [])}), "no users with samples"),
        ],
    )
    def test_wrong_files_are_refused(self, tmp_path, content, says):
        (tmp_path / "data.json").write_text(content)
        with pytest.raises(InvalidDataset, match=says):
            LeafFolder(tmp_path).load()

    def test_a_shape_that_does_not_fit_is_refused(self, tmp_path):
        (tmp_path / "data.json").write_text(leaf({"a": ([[1.0] * 5], [0])}))
        with pytest.raises(InvalidDataset):
            LeafFolder(tmp_path, image_shape=(2, 2)).load()


class TestSynthetic:
    def test_every_device_is_a_user_with_at_least_fifty_samples(self):
        data = Synthetic(num_devices=30, most_samples=200, seed=4).load()
        sizes = np.bincount(known(data.users))
        assert len(sizes) == 30
        assert 50 <= sizes.min() <= sizes.max() <= 200
        assert data.x.shape[1] == 60
        assert data.num_classes == 10

    def test_the_seed_decides(self):
        first, again, other = (Synthetic(num_devices=3, most_samples=60, seed=seed).load() for seed in (1, 1, 2))
        np.testing.assert_array_equal(first.x, again.x)
        assert not np.array_equal(first.x[:50], other.x[:50])

    def test_inputs_vary_as_the_formula_says(self):
        data = Synthetic(alpha=0, beta=0, num_devices=40, most_samples=10**6, seed=1).load()
        largest = np.bincount(known(data.users)).argmax()
        own = data.x[data.users == largest]
        expected = np.arange(1, 61) ** -1.2
        np.testing.assert_allclose(own.var(axis=0), expected, rtol=6 * np.sqrt(2 / len(own)))

    def test_beta_moves_inputs(self):
        def spread(beta: float) -> float:
            data = Synthetic(alpha=0, beta=beta, num_devices=60, most_samples=60).load()
            means = np.array([data.x[data.users == user].mean() for user in range(60)])
            return float(means.std())

        assert spread(5.0) > 5 * spread(0.0)

    def test_devices_label_by_rules_of_their_own_whatever_alpha_is(self):
        plain, shifted = (Synthetic(alpha=alpha, num_devices=20, most_samples=60).load() for alpha in (0.0, 3.0))
        np.testing.assert_array_equal(plain.y, shifted.y)
        commonest = [np.bincount(plain.y[plain.users == user]).argmax() for user in range(20)]
        assert len(set(commonest)) > 3
        assert np.mean([len(np.unique(plain.y[plain.users == user])) for user in range(20)]) > 2

    @pytest.mark.parametrize("wrong", [{"alpha": -1}, {"beta": float("nan")}, {"num_devices": 0}, {"most_samples": 0}])
    def test_senseless_settings_are_refused(self, wrong):
        with pytest.raises(InvalidSetting):
            Synthetic(**wrong)


class TestLabelCounts:
    def test_a_file_of_counts_is_enough_for_histograms(self, tmp_path):
        np.savez(tmp_path / "stats.npz", counts=np.array([[2, 0, 1], [0, 3, 0]], np.int32), sizes=np.array([3, 9]))
        counts = LabelCountsFile(tmp_path / "stats.npz", "counts").load()
        assert len(counts) == 2
        assert counts.sizes.tolist() == [3, 3]
        assert counts.labels(0).tolist() == [0, 0, 2]
        assert read_sizes(tmp_path / "stats.npz", "sizes").tolist() == [3, 9]
        with pytest.raises(InvalidDataset, match="no array 'other'"):
            LabelCountsFile(tmp_path / "stats.npz", "other").load()
        with pytest.raises(InvalidDataset, match="a number for each device"):
            read_sizes(tmp_path / "stats.npz", "counts")

    @pytest.mark.parametrize(
        "counts", [np.zeros((2, 2), np.int64), np.array([[1, -1]]), np.ones((2, 2)), np.ones(3, int)]
    )
    def test_impossible_counts_are_refused(self, counts):
        with pytest.raises(InvalidDataset):
            LabelCounts(counts)

    def test_counting_agrees_with_counting_by_hand(self):
        rows = Ragged.of_sizes(np.array([0, 1, 2, 3, 0]), np.array([2, 0, 3]))
        assert count_labels(rows, np.array([1, 1, 0, 2]), 3).tolist() == [[0, 2, 0], [0, 0, 0], [1, 1, 1]]


class TestFinding:
    @pytest.mark.parametrize("name", ["mnist", "../secrets", "a/b"])
    def test_what_is_not_there_is_said_with_the_way_out(self, name, tmp_path):
        for folder in (None, tmp_path):
            with pytest.raises(DatasetNotFound, match="give data_dir or use dataset = 'digits'"):
                find_dataset(name, folder)

    def test_missing_files_are_of_the_servers_errors_and_of_the_languages(self, tmp_path):
        for source in (NpzFile(tmp_path / "gone.npz"), IdxFiles(tmp_path), LeafFolder(tmp_path)):
            with pytest.raises(DatasetNotFound, match="use dataset = 'digits'") as caught:
                source.load()
            assert isinstance(caught.value, ServerError)
            assert isinstance(caught.value, FileNotFoundError)

    def test_nothing_is_read_before_it_is_loaded(self):
        assert NpzFile(Path("nowhere.npz")) == NpzFile(Path("nowhere.npz"))

    def test_a_file_is_found_by_its_name(self, tmp_path):
        np.savez(tmp_path / "mine.npz", x=images(), y=np.arange(12))
        assert find_dataset("mine", tmp_path) == NpzFile(tmp_path / "mine.npz")
        assert isinstance(find_dataset("synthetic"), Synthetic)
