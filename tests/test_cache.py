"""--cache: the same batches as without it, from a file that is whole or absent and newer than its sources."""

import os
import pickle
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from conftest import assert_same_run, flags, succeed, two_processes

import config
import utils
from data.cache import Cache, build, find, fingerprint
from distributed.group import Group
from support.errors import UserError
from support.signals import StopRequest

REPO = Path(__file__).parent.parent


def sample(number: int) -> dict[str, np.ndarray]:
    """4 + number rows of 6 pixels: 18 bytes of image and 6 of label in each row."""
    rng = np.random.default_rng(number)
    image = rng.integers(0, 256, (4 + number, 6, 3), dtype=np.uint8)
    return {"image": image, "label": rng.integers(0, 3, (4 + number, 6), dtype=np.uint8)}


def check_holds(cache: Cache | None) -> None:
    """Check that a cache has the first five samples."""
    assert cache is not None
    assert len(cache) == 5
    for index in range(5):
        expected = sample(index)
        assert list(cache[index]) == list(expected)
        assert all(np.array_equal(values, expected[name]) for name, values in cache[index].items())


def test_cache_returns_what_was_read(tmp_path):
    cache = build(tmp_path / "a.cache", "s", sample, 5)
    check_holds(cache)
    check_holds(pickle.loads(pickle.dumps(cache)))  # as a spawned loader worker gets it
    with pytest.raises(ValueError, match="read-only"):
        cache[0]["label"][0, 0] = 1


def test_a_stopped_builder_leaves_no_file(tmp_path):
    answers = iter([False, True])
    assert build(tmp_path / "a.cache", "s", sample, 5, stop=lambda: next(answers)) is None
    assert not list(tmp_path.iterdir())


def test_an_unreadable_sample_is_named_and_leaves_no_file(tmp_path):
    def read(index: int):
        if index == 3:
            raise UserError("d.jpg: not a whole, readable image")
        return sample(index)

    with pytest.raises(UserError, match=r"d\.jpg"):
        build(tmp_path / "a.cache", "s", read, 5)
    assert not list(tmp_path.iterdir())


def test_a_file_is_used_only_if_it_is_whole_and_its_sources_are_unchanged(tmp_path):
    source, path = tmp_path / "a.png", tmp_path / "a.cache"
    source.write_bytes(b"1234")
    name, stamp = fingerprint([{"image": source}], "21 classes")
    build(path, stamp, sample, 5)
    check_holds(find(path, stamp))
    os.utime(source, ns=(0, 12345))
    changed = fingerprint([{"image": source}], "21 classes")
    assert changed[0] == name  # the new cache replaces the old file
    assert find(path, changed[1]) is None
    assert fingerprint([{"image": source}], "20 classes")[0] != name
    whole = path.read_bytes()
    for length in (0, 100, len(whole) - 1):
        path.write_bytes(whole[:length])
        assert find(path, stamp) is None
    # Any flipped bit of the index: it gave wrong samples, or an exception that is no UserError.
    for place in range(whole.index(b'{"stamp"'), len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 2]) + whole[place + 1 :])
        assert find(path, stamp) is None
    check_holds(build(path, stamp, sample, 5))


def test_a_folder_that_cannot_be_written_or_has_no_room_is_named(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"--cache_dir .*file: cannot be written to"):
        build(tmp_path / "file" / "a.cache", "s", sample, 5)
    # 4, 5, 6, 7 and 8 rows of 24 bytes: 720 bytes
    for free, fits in ((719, False), (720, True)):
        monkeypatch.setattr("shutil.disk_usage", lambda _, free=free: SimpleNamespace(free=free))
        if fits:
            check_holds(build(tmp_path / "a.cache", "s", sample, 5))
            continue
        with pytest.raises(UserError, match=r"--cache disk: .* needs about 7.2e-07 GB, .*name another --cache_dir"):
            build(tmp_path / "a.cache", "s", sample, 5)
        assert not (tmp_path / "a.cache").exists()


@pytest.mark.parametrize("workers", [0, 1])
def test_batches_are_equal_with_and_without_a_cache(demo_root, tmp_path, monkeypatch, workers):
    group = Group(torch.device("cpu"))
    values = {"batchsize": 4, "crop_size": 65, "seed": 5, "workers": workers}
    plain = config.parse(flags(dataset_path=demo_root, **values))
    cached = config.parse(flags(dataset_path=demo_root, cache="disk", cache_dir=tmp_path, **values))
    loaders = [utils.get_loader(each, "train", group) for each in (plain, cached)]
    for loader in loaders:
        loader.sampler.set_position(1, 0)
    for ours, theirs in zip(*loaders, strict=True):
        assert list(ours) == list(theirs)
        assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    monkeypatch.setattr("data.dataset.read_image", None)  # the next run decodes nothing
    assert len(utils.get_loader(cached, "train", group).dataset.cache) == 8


def test_a_signal_stops_the_filling_and_the_run_goes_on_to_stop(demo_root, tmp_path):
    stop = StopRequest()
    stop.reason = "SIGTERM"
    given = config.parse(flags(dataset_path=demo_root, cache="disk", cache_dir=tmp_path, batchsize=4))
    assert utils.get_loader(given, "train", Group(torch.device("cpu"), stop=stop)).dataset.cache is None
    assert not list(tmp_path.iterdir())


BUILD_SLOWLY = """
import sys, time, numpy as np
from pathlib import Path
from data.cache import build
def read(index):
    print(index, flush=True)
    time.sleep(0.2)
    return {"image": np.zeros((100, 100, 3), np.uint8)}
build(Path(sys.argv[1]), "", read, 1000)
"""


def test_a_killed_builder_leaves_nothing_that_the_next_one_uses(tmp_path):
    path = tmp_path / "a.cache"
    process = subprocess.Popen([sys.executable, "-c", BUILD_SLOWLY, path], cwd=REPO, stdout=subprocess.PIPE)
    process.stdout.readline()
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert find(path, "") is None
    others = [tmp_path / name for name in (".movie.part.cache", ".0123456789abcdef.part.png")]
    for other in others:
        other.touch()
    for scratch in tmp_path.iterdir():
        os.utime(scratch, (0, time.time() - 4000))  # older than an hour: the next builder removes it
    check_holds(build(path, "s", sample, 5))
    assert {*tmp_path.iterdir()} == {path, *others}


def test_ranks_that_cannot_open_the_cache_are_named(demo_root, tmp_path, caplog, monkeypatch):
    cfg = config.parse(flags(dataset_path=demo_root, cache="disk", cache_dir=tmp_path, batchsize=4))
    group = Group(torch.device("cpu"))
    utils.get_loader(cfg, "train", group)
    assert "no cache" not in caplog.text
    # Rank 1 built nothing and opened nothing.
    monkeypatch.setattr(Group, "gather", lambda self, value: [value, False if isinstance(value, bool) else None])
    utils.get_loader(cfg, "train", group)
    assert "ranks [1] have no cache" in caplog.text


@pytest.mark.slow
def test_two_ranks_share_a_cache_and_train_as_without_one(demo_flags, tmp_path):
    folder = {"cache": "disk", "cache_dir": tmp_path / "cache"}
    for name, more in (("plain", {}), ("cached", folder)):
        processes = two_processes(demo_flags(max_steps=3, batchsize=2, workers=1, name=name, **more), tmp_path)
        output = succeed(processes)
        assert ("cache: 8 training images" in output[0]) == (name == "cached")
    assert_same_run(tmp_path / "cached", tmp_path / "plain")
