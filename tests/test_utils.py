"""Flags become objects: each flag reaches what it is for (STYLE 10)."""

import dataclasses

import numpy as np
import pytest
import torch
from conftest import flags
from criterion import get_criterion
from optimizer import begin, get_optimizer
from torch import nn

import config
import models
import utils
from data.distance import main as distance_main
from data.distance import pseudo_distance, scribble_distance
from distributed.group import Group
from errors import UserError

CPU = torch.device("cpu")


def cfg(demo_root, **values) -> config.Config:
    return config.parse(flags(dataset_path=demo_root, **values))


def test_optimizer_and_schedule_follow_their_flags(demo_root):
    model = nn.Linear(1, 1)
    for rule, factor in (("linear", 4), ("sqrt", 2), ("none", 1)):
        given = cfg(demo_root, lr=0.5, momentum=0.7, wdecay=0.03, epochs=10, warmup_epochs=2, lr_scaling=rule)
        optimizer, lr_at = get_optimizer(given, model, Group(CPU, world_size=4), 3, begin(given, 4, 3))
        assert isinstance(optimizer, torch.optim.SGD)
        assert (optimizer.defaults["momentum"], optimizer.defaults["weight_decay"]) == (0.7, 0.03)
        assert not optimizer.defaults["maximize"]
        # 6 steps of warm-up: the first has a sixth of the rate, the sixth all of it
        assert lr_at(0) == pytest.approx(0.5 * factor / 6)
        assert lr_at(5) == 0.5 * factor
        assert lr_at(18) == pytest.approx(0.25 * factor)  # half of the 24 steps that remain


def test_warm_up_is_a_tenth_of_the_run_unless_told(demo_root):
    given = cfg(demo_root, lr=0.6, epochs=20, warmup_epochs=None)
    _, lr_at = get_optimizer(given, nn.Linear(1, 1), Group(CPU), 3, begin(given, 1, 3))
    # 2 of 20 epochs of 3 steps: the rate rises by a sixth a step
    assert [lr_at(step) for step in (0, 1, 5, 6)] == pytest.approx([0.1, 0.2, 0.6, 0.6])


def test_warm_up_and_length_in_steps(demo_root):
    given = cfg(demo_root, lr=0.6, epochs=3, max_steps=12, warmup_epochs=5, warmup_steps=4)  # steps go over epochs
    _, lr_at = get_optimizer(given, nn.Linear(1, 1), Group(CPU), 3, begin(given, 1, 3))
    # Up in 4 steps, then down in 8: half-way, in step 8, it is at a half, and at the 12th it would be 0.
    assert [lr_at(step) for step in (0, 3, 4, 8, 12)] == pytest.approx([0.15, 0.6, 0.6, 0.3, 0.0])
    given = cfg(demo_root, max_steps=40, warmup_epochs=None)
    _, lr_at = get_optimizer(given, nn.Linear(1, 1), Group(CPU), 3, begin(given, 1, 3))
    assert lr_at(0) == pytest.approx(0.01 / 4)  # a tenth of the run
    for values in ({"max_steps": 4, "warmup_epochs": None, "warmup_steps": 4}, {"max_steps": 3, "warmup_epochs": 1}):
        given = cfg(demo_root, **values)
        with pytest.raises(UserError, match="would never reach --lr"):
            get_optimizer(given, nn.Linear(1, 1), Group(CPU), 3, begin(given, 1, 3))


def test_total_batch_size_is_divided_and_leaves_the_lr(demo_root):
    given, said = cfg(demo_root, total_batchsize=32, accum_steps=2, lr=0.5), []
    shared = utils.share_batch(given, Group(CPU, world_size=4))
    assert shared.batchsize == 4  # 32 / (4 * 2)
    assert given.batchsize == 2  # as it was
    begun = begin(shared, 4, 3)
    _, lr_at = get_optimizer(shared, nn.Linear(1, 1), Group(CPU, world_size=4), 3, begun, said.append)
    assert lr_at(0) == 0.5
    assert "lr 0.5, as given: --total_batchsize 32 does not grow" in said[0]
    # 8 processes go on: a batch of 2 each, and the same lr
    shared = utils.share_batch(given, Group(CPU, world_size=8))
    assert shared.batchsize == 2
    _, lr_at = get_optimizer(shared, nn.Linear(1, 1), Group(CPU, world_size=8), 3, begun, said.append)
    assert lr_at(0) == 0.5
    assert "so the factor is kept" in said[-1]
    with pytest.raises(
        UserError, match=r"--total_batchsize 32 cannot be divided by 3 .* 2: use 30 or another multiple"
    ):
        utils.share_batch(given, Group(CPU, world_size=3))


def test_loaders_follow_their_flags(demo_root):
    given = cfg(demo_root, workers=2, val_workers=1, prefetch_factor=5, augment=None)
    train_loader, val_loader = (utils.get_loader(given, split, Group(CPU)) for split in ("train", "val"))
    assert (train_loader.num_workers, val_loader.num_workers) == (2, 1)
    assert (train_loader.prefetch_factor, train_loader.pin_memory) == (5, False)
    assert utils.get_loader(cfg(demo_root, val_workers=0, workers=2), "val", Group(CPU)).num_workers == 0
    assert utils.get_loader(cfg(demo_root, workers=2), "val", Group(CPU)).num_workers == 2
    assert utils.get_loader(cfg(demo_root, pin_memory=True), "val", Group(CPU)).pin_memory


def test_without_augmentation_samples_are_the_middle_of_their_images(demo_root):
    given = config.parse([*flags(dataset_path=demo_root, crop_size=40), "--no_augment"])
    samples = utils.get_loader(given, "train", Group(CPU)).dataset
    whole = utils.get_loader(cfg(demo_root), "train", Group(CPU), training=False).dataset
    for epoch in (0, 1):
        sample = samples[epoch, 2]
        # 120 x 160: rows 40 to 80, columns 60 to 100
        assert np.array_equal(sample["image"], whole[2]["image"][40:80, 60:100])
        assert set(sample) == {"image", "label", "pseudo", "distance_s", "distance_c"}


def test_zero1_shares_the_optimizer_out_in_a_group_only(demo_root):
    given = cfg(demo_root, zero1=True)
    optimizer, _ = get_optimizer(given, nn.Linear(1, 1), Group(CPU), 3, begin(given, 1, 3))
    assert type(optimizer) is torch.optim.SGD  # of one process, which has all of it anyway


def test_summary_follows_its_flags(demo_root):
    def summary(group=None, **values):
        given = cfg(demo_root, **values)
        return utils.get_summary(given, group or Group(CPU), get_criterion(given, lambda _: None))

    plain, two = summary(), Group(CPU, world_size=2)
    assert summary(two).momentum == plain.momentum
    assert summary(two, zero1=True).momentum < 0.6 * plain.momentum
    assert summary(ema=0.9).ema == plain.weights
    assert summary(momentum=0).momentum == 0
    assert summary(grad_checkpointing=True, crop_size=65).kept < summary(crop_size=65).kept
    assert summary(batchsize=4).batchsize == 4


def test_criterion_follows_its_flags(demo_root):
    given = cfg(demo_root, l_seg=2, l_pseudo=3, l_lorm=4, l_ds=5, l_dc=6, label_smooth=0.2)
    criterion = get_criterion(given)
    assert criterion.weights == {"seg": 2, "pseudo": 3, "lorm": 4, "ds": 5, "dc": 6}
    assert criterion.label_smooth == 0.2
    assert set(get_criterion(cfg(demo_root, l_ds=0, model_type="res50_ASPP")).weights) == {"seg", "pseudo", "dc"}
    with pytest.raises(UserError, match="leaves no loss"):
        get_criterion(cfg(demo_root, dataset="PseudoOnly", l_pseudo=0))


def test_loader_reads_the_folders_of_its_flags(demo_root, tmp_path):
    for name in ("scribbles", "masks", "pseudo", "s", "c"):
        (tmp_path / name).symlink_to(demo_root / "SegmentationClassAug")
    given = cfg(
        demo_root,
        train_path=tmp_path / "scribbles",
        val_path=tmp_path / "masks",
        pseudo_path=tmp_path / "pseudo",
        distancemap_s=tmp_path / "s",
        distancemap_c=tmp_path / "c",
        batchsize=4,
        accum_steps=2,
        crop_size=47,
        seed=9,
    )
    loader = utils.get_loader(given, "train", Group(CPU))
    folders = {name: path.parent.name for name, path in loader.dataset.files[0].items()}
    assert folders == {
        "image": "JPEGImages",
        "label": "scribbles",
        "pseudo": "pseudo",
        "distance_s": "s",
        "distance_c": "c",
    }
    assert (loader.batch_size, loader.sampler.global_batch, loader.sampler.seed, loader.dataset.seed) == (4, 8, 9, 9)
    assert loader.dataset.transform.crop_size == 47
    val_loader = utils.get_loader(given, "val", Group(CPU))
    assert {name: path.parent.name for name, path in val_loader.dataset.files[0].items()} == {
        "image": "JPEGImages",
        "label": "masks",
    }
    for chosen, background in (("0", 0), ("none", None)):
        computed = utils.get_loader(cfg(demo_root, background=chosen), "train", Group(CPU)).dataset.compute
        used = {name: (source, distance.func, distance.keywords) for name, (source, distance) in computed.items()}
        assert used == {
            "distance_s": ("label", scribble_distance, {"background": background}),
            "distance_c": ("pseudo", pseudo_distance, {"background": background}),
        }


@pytest.mark.parametrize("background", ["0", "none"])
def test_distance_maps_stored_and_computed_give_the_same_batch(demo_root, tmp_path, background):
    """Audit B2: both are made at the image's own size, and the same warp moves them."""
    for source, folder, out in (("scribbles", "pascal_2012_scribble", "s"), ("pseudo", "bmp_pseudolabel", "c")):
        words = [f"--{source}", demo_root / folder, "--out", tmp_path / out, "--background", background]
        distance_main([str(word) for word in words])
    computed = cfg(demo_root, background=background, batchsize=8, crop_size=129)
    stored = dataclasses.replace(computed, distancemap_s=str(tmp_path / "s"), distancemap_c=str(tmp_path / "c"))
    ours, theirs = (next(iter(utils.get_loader(flags, "train", Group(CPU)))) for flags in (computed, stored))
    assert set(ours) == set(theirs) == {"image", "label", "pseudo", "distance_s", "distance_c"}
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert all(ours[name].unique().numel() > 10 for name in ("distance_s", "distance_c"))


def test_evaluation_loader_gives_each_image_its_place_in_the_list(demo_root):
    given = cfg(demo_root, val_batchsize=2)
    assert [batch["index"].tolist() for batch in utils.get_loader(given, "val", Group(CPU))] == [[0, 1], [2]]
    of_train = utils.get_loader(given, "train", Group(CPU), training=False)
    batch = next(iter(of_train))
    assert len(of_train) == 4
    assert batch["label"].shape == (2, 120, 160)
    assert of_train.dataset.files[0]["label"].parent.name == "SegmentationClassAug"  # dense masks, not scribbles


def test_model_follows_its_flags(demo_root):
    model, wrapped = utils.get_model(cfg(demo_root, model_type="deeplabv3p", numclasses=7, freeze_bn=True), Group(CPU))
    assert wrapped is model
    assert type(model.head).__name__ == "DeepLabV3PlusHead"
    assert (model.num_classes, model.freeze_bn) == (7, True)
    model, _ = utils.get_model(cfg(demo_root, layers=50, stride_in_1x1=True), Group(CPU))
    assert model.backbone.layer2[0].conv1.stride == (2, 2)
    drawn, _ = utils.get_model(cfg(demo_root, head_init="release"), Group(CPU))
    assert drawn.lorm.query_conv.bias.abs().max() == 0
    same, _ = utils.get_model(cfg(demo_root, seed=1), Group(CPU))
    other, _ = utils.get_model(cfg(demo_root, seed=2), Group(CPU))
    assert (same.backbone.conv1.weight != other.backbone.conv1.weight).any()
    # ImageNet's 0.485, 0.456, 0.406 and 0.229, 0.224, 0.225, times 255
    assert model.mean.flatten().tolist() == pytest.approx([123.675, 116.28, 103.53])
    assert model.std.flatten().tolist() == pytest.approx([58.395, 57.12, 57.375])


def test_a14_conversion_leaves_no_unsynchronised_batch_norm():
    model = nn.SyncBatchNorm.convert_sync_batchnorm(models.build("res50_ASPP_lorm", layers=18, num_classes=3))
    norms = [module for module in model.modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)]
    assert len(norms) > 15
    assert all(type(module) is nn.SyncBatchNorm for module in norms)


def test_a18_only_rank_0_loads_start_weights(demo_root):
    said: list[str] = []
    for rank in (0, 1):
        group = Group(CPU, rank=rank, world_size=2)
        given, start = utils.get_start(cfg(demo_root), group, None, said.append)
        utils.get_model(given, group, said.append, start)
    assert said == ["start weights: random (--pretrained none)"]


@pytest.mark.parametrize(
    ("layers", "pretrained", "file", "name"),
    [
        # V1 and V2 of https://pytorch.org/vision/stable/models.html, by the hash in the file's name
        (50, "imagenet", "resnet50-11ad3fa6.pth", "ResNet50_Weights.IMAGENET1K_V2"),
        (50, "imagenet_v1", "resnet50-0676ba61.pth", "ResNet50_Weights.IMAGENET1K_V1"),
        (101, "imagenet", "resnet101-cd907fc2.pth", "ResNet101_Weights.IMAGENET1K_V2"),
        (101, "imagenet_v1", "resnet101-63fe2227.pth", "ResNet101_Weights.IMAGENET1K_V1"),
        (18, "imagenet", "resnet18-f37072fd.pth", "ResNet18_Weights.IMAGENET1K_V1"),
        (18, "imagenet_v1", "resnet18-f37072fd.pth", "ResNet18_Weights.IMAGENET1K_V1"),
    ],
)
def test_b4_imagenet_weights_are_the_version_named(demo_root, monkeypatch, layers, pretrained, file, name):
    urls: list[str] = []

    def download(url: str, **_) -> dict[str, torch.Tensor]:
        urls.append(url)
        return {"conv1.weight": torch.zeros(64, 3, 7, 7)}

    monkeypatch.setattr(torch.hub, "load_state_dict_from_url", download)
    said: list[str] = []
    given, start = utils.get_start(cfg(demo_root, layers=layers, pretrained=pretrained), Group(CPU), None, said.append)
    model, _ = utils.get_model(given, Group(CPU), said.append, start)
    assert [url.rpartition("/")[2] for url in urls] == [file]
    assert model.backbone.conv1.weight.abs().max() == 0
    assert len(said) == 1
    assert said[0].startswith(f"start weights: 1 from {name}; left random: ")
