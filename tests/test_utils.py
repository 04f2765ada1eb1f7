"""Flags become objects: each flag reaches what it is for."""

import dataclasses
import re
import shutil
from pathlib import Path
from types import SimpleNamespace

import cv2
import numpy as np
import pytest
import torch
from conftest import ALONE, flags
from torch.utils.data._utils.pin_memory import pin_memory

import data.demo
import models
import utils
from data.distance import main as distance_main
from data.distance import pseudo_distance, scribble_distance
from distributed.group import Group
from flags import Config, parse_flags
from losses.criterion import Criterion
from support.batch import Batch
from support.errors import UserError
from training.data import DEMO_ROOT, prepare_demo_data
from training.start_weights import read_start_weights

CPU = torch.device("cpu")


def cfg(demo_root, **values) -> Config:
    return parse_flags(flags(dataset_path=demo_root, **values))


def test_a_validation_mask_of_another_size_is_found_before_the_first_step(demo_root, tmp_path):
    root = Path(shutil.copytree(demo_root, tmp_path / "demo"))
    given = cfg(root)
    file = utils.get_loader(given, "val", ALONE).dataset.files[-1]["label"]
    cv2.imwrite(str(file), np.zeros((5, 4), np.uint8))
    with pytest.raises(UserError, match=f"{re.escape(str(file))}: 4x5 pixels, but its image .* has 160x120: resize"):
        utils.get_loader(given, "val", ALONE)


def test_deterministic_runs_spend_no_time_on_filling_memory():
    utils.set_deterministic(True)
    assert torch.are_deterministic_algorithms_enabled()
    assert not torch.utils.deterministic.fill_uninitialized_memory
    utils.set_deterministic(False)


@pytest.mark.parametrize("local_rank", [0, 1])
def test_one_process_draws_the_demo_data_and_all_wait_for_it(monkeypatch, local_rank):
    done = []
    monkeypatch.setattr(data.demo, "draw_dataset", lambda folder: done.append("drawn"))
    monkeypatch.setattr(Group, "barrier", lambda group: done.append("waited"))
    prepare_demo_data(SimpleNamespace(dataset_path=str(DEMO_ROOT)), Group(CPU, local_rank=local_rank))
    assert done == [*(["drawn"] if local_rank == 0 else []), "waited"]


def test_without_augmentation_samples_are_the_middle_of_their_images(demo_root):
    given = parse_flags([*flags(dataset_path=demo_root, crop_size=40), "--no_augment"])
    samples = utils.get_loader(given, "train", ALONE).dataset
    whole = utils.get_eval_loader(cfg(demo_root), "train", ALONE).dataset
    for epoch in (0, 1):
        sample = samples[epoch, 2]
        # 120 x 160: rows 40 to 80, columns 60 to 100
        assert np.array_equal(sample["image"], whole[2]["image"][40:80, 60:100])
        assert set(sample) == {"image", "label", "pseudo", "distance_s", "distance_c"}


def criterion_of(given: Config, class_weights: list[float] | None = None) -> Criterion:
    with torch.device("meta"):
        model = models.build(given.model_type, layers=18, num_classes=5)
    return utils.get_criterion(given, model, class_weights)


def test_criterion_follows_its_flags(demo_root):
    criterion = criterion_of(cfg(demo_root, l_seg=2, l_pseudo=3, l_lorm=4, l_ds=5, l_dc=6, label_smooth=0.2))
    assert criterion.weights == {"seg": 2, "pseudo": 3, "lorm": 4, "ds": 5, "dc": 6}
    assert criterion.terms["pseudo"].smooth == 0.2
    assert set(criterion_of(cfg(demo_root, l_ds=0, model_type="res50_ASPP")).weights) == {"seg", "pseudo", "dc"}
    weighted = criterion_of(cfg(demo_root, dataset="Dense", l_seg=2, loss="dice+0.5*ce"), [1, 2, 3, 4, 5])
    assert weighted.weights == {"seg_dice": 2, "seg": 1}
    assert weighted.terms["seg"].weight_of[:5].tolist() == [1, 2, 3, 4, 5]
    with pytest.raises(UserError, match="leaves no loss"):
        criterion_of(cfg(demo_root, dataset="PseudoOnly", l_pseudo=0))


def folders(loader) -> dict[str, str]:
    return {name: path.parent.name for name, path in loader.dataset.files[0].items()}


def test_loader_reads_the_folders_of_its_flags(demo_root, tmp_path):
    names = {"train_path": "scribbles", "val_path": "masks", "pseudo_path": "p"}
    names |= {"distancemap_s": "s", "distancemap_c": "c"}
    paths = {flag: tmp_path / name for flag, name in names.items()}
    for path in paths.values():
        path.symlink_to(demo_root / "SegmentationClassAug")
    given = cfg(demo_root, **paths, workers=2, batchsize=4, accum_steps=2, crop_size=47, seed=9)
    loader = utils.get_loader(given, "train", ALONE)
    maps = {"label": "scribbles", "pseudo": "p", "distance_s": "s", "distance_c": "c"}
    assert folders(loader) == {"image": "JPEGImages"} | maps
    assert folders(utils.get_loader(given, "val", ALONE)) == {"image": "JPEGImages", "label": "masks"}
    assert (loader.batch_size, loader.sampler.global_batch, loader.sampler.seed, loader.dataset.seed) == (4, 8, 9, 9)
    assert (loader.dataset.transform.crop_size, loader.num_workers) == (47, 2)
    assert utils.get_loader(cfg(demo_root, workers=2, val_workers=1), "val", ALONE).num_workers == 1
    for chosen, background in (("0", 0), ("none", None)):
        computed = utils.get_loader(cfg(demo_root, background=chosen), "train", ALONE).dataset.computed_maps
        used = {name: (source, distance.func, distance.keywords) for name, (source, distance) in computed.items()}
        assert used == {
            "distance_s": ("label", scribble_distance, {"background": background}),
            "distance_c": ("pseudo", pseudo_distance, {"background": background}),
        }


@pytest.mark.parametrize("background", ["0", "none"])
def test_distance_maps_stored_and_computed_give_the_same_batch(demo_root, tmp_path, background):
    """Both are made at the image's own size, and the same warp moves them."""
    for source, folder, out in (("scribbles", "pascal_2012_scribble", "s"), ("pseudo", "bmp_pseudolabel", "c")):
        words = [f"--{source}", demo_root / folder, "--out", tmp_path / out, "--background", background]
        distance_main([str(word) for word in words])
    computed = cfg(demo_root, background=background, batchsize=8, crop_size=129)
    stored = dataclasses.replace(computed, distancemap_s=str(tmp_path / "s"), distancemap_c=str(tmp_path / "c"))
    ours, theirs = (next(iter(utils.get_loader(flags, "train", ALONE))) for flags in (computed, stored))
    assert_same(ours, theirs)
    assert all(values.unique().numel() > 10 for values in (ours.distance_s, ours.distance_c))


def tensors(batch: Batch) -> list[torch.Tensor]:
    """All tensors of a batch with four maps and a foreground, but its counts."""
    assert list(batch.maps) == list(batch.counts) == ["label", "pseudo", "distance_s", "distance_c"]
    return [batch.image, *batch.maps.values(), batch.foreground.positions]


def assert_same(ours: Batch, theirs: Batch) -> None:
    pairs = zip([*tensors(ours), *ours.counts.values()], [*tensors(theirs), *theirs.counts.values()], strict=True)
    assert all(torch.equal(*pair) for pair in pairs)
    assert ours.foreground.counts == theirs.foreground.counts


@pytest.mark.slow
@pytest.mark.parametrize("start", ["fork", "spawn", "forkserver"])
def test_batches_are_the_same_from_workers_and_come_in_shared_memory(demo_root, start):
    given = cfg(demo_root, batchsize=4, crop_size=47, val_workers=1)
    alone, loader = (utils.get_loader(dataclasses.replace(given, workers=n), "train", ALONE) for n in (0, 1))
    loader.multiprocessing_context = start
    for ours, theirs in zip(alone, loader, strict=True):
        assert_same(ours, theirs)
        assert all(values.is_shared() for values in tensors(theirs))
    val_loader = utils.get_loader(given, "val", ALONE)
    val_loader.multiprocessing_context = start
    assert sum(len(batch.indices) for batch in val_loader) == 3


def test_only_the_counts_of_a_batch_stay_in_cpu_memory(demo_root, monkeypatch):
    batch = next(iter(utils.get_loader(cfg(demo_root), "train", ALONE)))
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda values: values.to("meta"))
    batch = dataclasses.replace(batch, points=torch.zeros(1))
    for moved in (batch.to(torch.device("meta")), pin_memory(batch)):  # the latter is what a DataLoader calls
        assert all(values.is_meta for values in (*tensors(moved), moved.points))
        assert moved.counts is batch.counts
        assert moved.foreground.counts == batch.foreground.counts


def test_model_follows_its_flags(demo_root):
    model, wrapped = utils.get_model(cfg(demo_root, model_type="deeplabv3p", numclasses=7, freeze_bn=True), ALONE)
    assert wrapped is model
    assert type(model.head).__name__ == "DeepLabV3PlusHead"
    assert (model.num_classes, model.freeze_bn) == (7, True)
    model, _ = utils.get_model(cfg(demo_root, layers=50, stride_in_1x1=True), ALONE)
    assert model.backbone.layer2[0].conv1.stride == (2, 2)
    drawn, _ = utils.get_model(cfg(demo_root, head_init="release"), ALONE)
    assert drawn.lorm.query_conv.bias.abs().max() == 0
    same, _ = utils.get_model(cfg(demo_root, seed=1), ALONE)
    other, _ = utils.get_model(cfg(demo_root, seed=2), ALONE)
    assert (same.backbone.conv1.weight != other.backbone.conv1.weight).any()


def test_only_rank_0_loads_start_weights(demo_root, caplog):
    caplog.set_level("DEBUG", "segtrain")
    for rank in (0, 1):
        group = Group(CPU, rank=rank, world_size=2)
        utils.get_model(cfg(demo_root), group, read_start_weights(cfg(demo_root), group, {}, {}))
    assert caplog.messages == ["start weights: random (--pretrained none)"]


@pytest.mark.parametrize(
    ("layers", "pretrained", "file", "name"),
    [
        # V1 and V2 of https://pytorch.org/vision/stable/models.html, by the hash in the file's name
        (50, "imagenet", "resnet50-11ad3fa6.pth", "ResNet50_Weights.IMAGENET1K_V2"),
        (50, "imagenet_v1", "resnet50-0676ba61.pth", "ResNet50_Weights.IMAGENET1K_V1"),
        (18, "imagenet", "resnet18-f37072fd.pth", "ResNet18_Weights.IMAGENET1K_V1"),
        (101, "coco", "deeplabv3_resnet101_coco-586e9e4e.pth", "DeepLabV3_ResNet101_Weights.COCO_WITH_VOC_LABELS_V1"),
    ],
)
def test_downloaded_weights_are_the_version_named(demo_root, monkeypatch, caplog, layers, pretrained, file, name):
    urls: list[str] = []

    def download(url: str, **_) -> dict[str, torch.Tensor]:
        urls.append(url)
        return {"conv1.weight": torch.zeros(64, 3, 7, 7)}

    caplog.set_level("DEBUG", "segtrain")
    monkeypatch.setattr(torch.hub, "load_state_dict_from_url", download)
    kind = "deeplabv3_torchvision" if pretrained == "coco" else "res50_ASPP"
    given = cfg(demo_root, layers=layers, pretrained=pretrained, model_type=kind)
    model, _ = utils.get_model(given, ALONE, read_start_weights(given, ALONE, {}, {}))
    assert [url.rpartition("/")[2] for url in urls] == [file]
    assert model.backbone.conv1.weight.abs().max() == 0
    message = caplog.messages[-1]  # after the warning that most of the backbone is missing
    assert message.startswith(f"start weights: 1 from {name}; left random: ")
