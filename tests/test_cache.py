"""--cache: the same batches as without it, from a file that is whole or absent and newer than its sources."""

import os
import pickle
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import assert_same_run, flags, succeed, two_processes

import config
import utils
from data.cache import Builder, find, fingerprint, open_shared
from distributed.group import Group
from runs.messages import loader_advice
from support.errors import UserError
from support.signals import StopRequest

REPO = Path(__file__).parent.parent
linux = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="--cache ram needs Linux")


def sample(number: int) -> dict[str, np.ndarray]:
    """4 + number rows of 6 pixels: 18 bytes of image and 6 of label in each row."""
    rng = np.random.default_rng(number)
    image = rng.integers(0, 256, (4 + number, 6, 3), dtype=np.uint8)
    return {"image": image, "label": rng.integers(0, 3, (4 + number, 6), dtype=np.uint8)}


def check_holds(cache, number: int) -> None:
    assert len(cache) == number
    for index in range(number):
        expected = sample(index)
        assert list(cache[index]) == list(expected)
        assert all(np.array_equal(values, expected[name]) for name, values in cache[index].items())


@pytest.fixture(params=[pytest.param("ram", marks=linux), "disk"])
def build(request, tmp_path):
    """A function that builds a cache of 5 samples, and of 144, 120, ... bytes: 4 rows of 24 bytes, 5 rows, ..."""

    def built(**options):
        builder = Builder(sample, 5, **options)
        return builder.in_memory() if request.param == "ram" else builder.on_disk(tmp_path / "a.cache")

    return built


def test_cache_returns_what_was_read(build):
    cache = build(budget=1000)
    check_holds(cache, 5)
    check_holds(pickle.loads(pickle.dumps(cache)), 5)  # as a spawned loader worker gets it
    check_holds(open_shared([None, ("another machine", Path("/none"), ""), cache.address]), 5)
    with pytest.raises(ValueError, match="read-only"):
        cache[0]["label"][0, 0] = 1


def test_budget_limits_the_samples(build):
    # 4, 5 and 6 rows of 24 bytes: 96 + 120 + 144 = 360
    assert [len(build(budget=budget)) for budget in (359, 360)] == [2, 3]
    check_holds(build(budget=360), 3)


def test_a_stopped_builder_leaves_no_file(build, tmp_path):
    answers = iter([False, True])
    assert build(budget=1000, stop=lambda: next(answers)) is None
    assert not list(tmp_path.iterdir())


def test_an_unreadable_sample_is_named_and_leaves_no_file(tmp_path):
    def read(index: int):
        if index == 3:
            raise UserError("d.jpg: not a whole, readable image")
        return sample(index)

    with pytest.raises(UserError, match=r"d\.jpg"):
        Builder(read, 5, budget=1000).on_disk(tmp_path / "a.cache")
    assert not list(tmp_path.iterdir())


def test_a_file_on_disk_is_used_only_if_it_is_whole_and_its_sources_are_unchanged(tmp_path):
    source, path = tmp_path / "a.png", tmp_path / "a.cache"
    source.write_bytes(b"1234")
    name, stamp = fingerprint([{"image": source}], "21 classes")
    Builder(sample, 5, budget=1000, stamp=stamp).on_disk(path)
    check_holds(find(path, stamp), 5)
    os.utime(source, ns=(0, 12345))
    changed = fingerprint([{"image": source}], "21 classes")
    assert changed[0] == name  # the new cache replaces the old file
    assert find(path, changed[1]) is None
    assert fingerprint([{"image": source}], "20 classes")[0] != name
    whole = path.read_bytes()
    for damaged in (b"", whole[:-1], whole[:100]):
        path.write_bytes(damaged)
        assert find(path, stamp) is None


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"--cache_dir .*file: cannot be written to"):
        Builder(sample, 5, budget=1000).on_disk(tmp_path / "file" / "a.cache")


@pytest.mark.parametrize("kind", [pytest.param("ram", marks=linux), "disk"])
@pytest.mark.parametrize("workers", [0, 1])
def test_batches_are_equal_with_and_without_a_cache(demo_root, tmp_path, monkeypatch, kind, workers):
    group = Group(torch.device("cpu"))
    values = {"batchsize": 4, "crop_size": 65, "seed": 5, "workers": workers}
    plain = config.parse(flags(dataset_path=demo_root, **values))
    folder = {"cache_dir": tmp_path} if kind == "disk" else {}
    # The demo's images have 160x120 pixels and four maps, 7 bytes a pixel: 134 kB each, so 200 kB hold one.
    for gigabytes, num_cached in ((0.0002, 1), (0.1, None)):
        cached = config.parse(flags(dataset_path=demo_root, cache=kind, cache_gb=gigabytes, **folder, **values))
        loaders = [utils.get_loader(each, "train", group) for each in (plain, cached)]
        assert len(loaders[1].dataset.cache) == (num_cached or len(loaders[1].dataset))
        assert ("raise --cache_gb (1 of " in loader_advice(loaders[1])) == (num_cached == 1)
        for loader in loaders:
            loader.sampler.set_position(1, 0)
        for ours, theirs in zip(*loaders, strict=True):
            assert list(ours) == list(theirs)
            assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    if kind == "disk":  # the next run decodes nothing
        monkeypatch.setattr("data.dataset.read_image", None)
        assert len(utils.get_loader(cached, "train", group).dataset.cache) == len(loaders[1].dataset)


def test_a_signal_stops_the_filling_and_the_run_goes_on_to_stop(demo_root, tmp_path):
    stop = StopRequest()
    stop.reason = "SIGTERM"
    given = config.parse(flags(dataset_path=demo_root, cache="disk", cache_dir=tmp_path, batchsize=4))
    assert utils.get_loader(given, "train", Group(torch.device("cpu"), stop=stop)).dataset.cache is None
    assert not list(tmp_path.iterdir())


BUILD_SLOWLY = """
import sys, time, numpy as np
from pathlib import Path
from data.cache import Builder
def read(index):
    print(index, flush=True)
    time.sleep(0.2)
    return {"image": np.zeros((100, 100, 3), np.uint8)}
Builder(read, 1000, budget=1e9).on_disk(Path(sys.argv[1]))
"""


def test_a_killed_builder_leaves_nothing_that_the_next_one_uses(tmp_path):
    path = tmp_path / "a.cache"
    process = subprocess.Popen([sys.executable, "-c", BUILD_SLOWLY, path], cwd=REPO, stdout=subprocess.PIPE)
    process.stdout.readline()
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert find(path, "") is None
    for scratch in tmp_path.iterdir():
        os.utime(scratch, (0, time.time() - 4000))  # older than an hour: the next builder removes it
    check_holds(Builder(sample, 5, budget=1000).on_disk(path), 5)
    assert list(tmp_path.iterdir()) == [path]


def test_a_builder_removes_no_file_of_others(tmp_path):
    ours = tmp_path / ".0123456789abcdef.part.cache"
    others = [
        tmp_path / name
        for name in (".movie.part.cache", ".movie.part1.rar", ".0123456789abcdef.part.png", f"below/{ours.name}")
    ]
    (tmp_path / "below").mkdir()
    for path in (ours, *others):
        path.touch()
        os.utime(path, (0, time.time() - 4000))
    Builder(sample, 5, budget=1000).on_disk(tmp_path / "a.cache")
    assert not ours.exists()
    assert all(path.exists() for path in others)


def test_a_file_that_lacks_samples_is_replaced_once_the_budget_allows_one_more(tmp_path):
    # 4, 5, 6, 7 and 8 rows of 24 bytes: 96, 216, 360, 528 and 720 bytes together
    path, before = tmp_path / "a.cache", None
    for budget, number, is_new in ((360, 3, True), (1, 3, False), (527, 3, False), (528, 4, True), (9999, 5, True)):
        check_holds(Builder(sample, 5, budget=budget).on_disk(path), number)
        assert (path.stat().st_ino != before) == is_new
        before = path.stat().st_ino
    check_holds(Builder(sample, 5, budget=1).on_disk(path), 5)


def test_a_file_that_lacks_samples_is_used_where_nothing_can_be_written(small_disk):
    path = small_disk / "a.cache"
    Builder(sample, 5, budget=360).on_disk(path)
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    check_holds(Builder(sample, 5, budget=9999).on_disk(path), 3)


def test_a_disk_that_others_fill_meanwhile_holds_fewer_samples(small_disk, caplog):
    subprocess.run(["mount", "-o", "remount,size=1m", small_disk], check=True)

    def read(index: int):
        if index == 4:  # another job
            (small_disk / "other").write_bytes(bytes(500_000))
        return {"image": np.full((200, 500, 1), index, np.uint8)}

    cache = Builder(read, 20).on_disk(small_disk / "a.cache")
    # 0.9 of the free 2**20 bytes are 9 samples of 100 kB. With the other job's 500 kB, 2**20 bytes have room for 5; and
    # 0.9 of that is 4.
    assert len(cache) == 4
    assert [int(cache[index]["image"].max()) for index in range(4)] == [0, 1, 2, 3]
    assert "full after 0.0005 GB of images: caching at most 0.00045 GB" in caplog.text
    assert {path.name for path in small_disk.iterdir()} == {"a.cache", "other"}


OPEN_SHARED = """
import pickle, sys
from data.cache import open_shared
cache = open_shared([pickle.loads(bytes.fromhex(sys.argv[1]))])
print("None" if cache is None else len(cache))
"""


@linux
def test_containers_of_a_machine_share_files_but_not_process_numbers(build, tmp_path):
    container = ["unshare", "--map-root-user", "--pid", "--fork", "--mount-proc"]
    if not shutil.which("unshare") or subprocess.run([*container, "true"], capture_output=True).returncode:
        pytest.skip("unshare is missing or may not make namespaces")
    cache = build(budget=1000)
    code = [sys.executable, "-c", OPEN_SHARED, pickle.dumps(cache.address).hex()]
    inside, outside = (
        subprocess.run([*words, *code], cwd=REPO, check=True, capture_output=True, text=True).stdout.strip()
        for words in (container, [])
    )
    assert outside == "5"
    assert inside == ("5" if cache.path.is_relative_to(tmp_path) else "None")


def test_ranks_that_cannot_open_the_cache_are_named(demo_root, tmp_path, caplog, monkeypatch):
    # 1 kB is less than an image: that cache is empty, but it is one.
    cfg = config.parse(flags(dataset_path=demo_root, cache="disk", cache_dir=tmp_path, cache_gb=1e-6, batchsize=4))
    group = Group(torch.device("cpu"))
    utils.get_loader(cfg, "train", group)
    assert "cache: 0 of 8 training images" in caplog.text
    assert "no cache" not in caplog.text
    # Rank 1 built nothing and opened nothing.
    monkeypatch.setattr(Group, "gather", lambda self, value: [value, False if isinstance(value, bool) else None])
    utils.get_loader(cfg, "train", group)
    assert "ranks [1] have no cache" in caplog.text


@linux
@pytest.mark.slow
def test_two_ranks_share_a_cache_and_train_as_without_one(demo_flags, tmp_path):
    for name, kind in (("plain", "none"), ("cached", "ram")):
        processes = two_processes(demo_flags(max_steps=3, batchsize=2, workers=1, cache=kind, name=name), tmp_path)
        output = succeed(processes)
        assert ("cache: 8 of 8 training images" in output[0]) == (kind == "ram")
    assert_same_run(tmp_path / "cached", tmp_path / "plain")


def test_cache_with_a_damaged_index_is_not_used(tmp_path):
    """Any flipped bit of the index: it gave wrong samples, or an exception that is no UserError."""
    maps = {"image": np.zeros((2, 3, 3), np.uint8), "label": np.zeros((2, 3), np.uint8)}
    path = tmp_path / "x.cache"
    Builder(lambda index: maps, 2, stamp="s").on_disk(path)
    whole = path.read_bytes()
    for place in range(whole.index(b'{"stamp"'), len(whole)):
        damaged = bytearray(whole)
        damaged[place] ^= 2
        path.write_bytes(damaged)
        assert find(path, "s") is None
