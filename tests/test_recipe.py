"""The recipe: what flags that are not set become, from the data and the device."""

import itertools
import math
import re
import shlex
from itertools import chain

import pytest

from flags import FLAGS, Config, as_dict, parse_flags
from flags.auto_recipe import COLOURS, CPU, CUDA, FEW_STEPS, RECIPE_FLAGS, Recipe
from support.errors import DivergedError
from tools.check.__main__ import main as check_data
from train import main as train

PHOTOS = {"device": CUDA, "num_images": 43, "sizes": [(360, 480)] * 43, "memory": 79.0}


def recipe(data: dict, *given: str, **flags) -> dict:
    """{flag: value} that are chosen for flags as on a command line. data: arguments of Recipe."""
    values = as_dict(Config(**{"dataset": "Folder"} | flags))
    return {name: value for name, (value, _) in Recipe(values, {*given, *flags}, **data).choose_flags().items()}


def test_few_photos_on_a_gpu():
    # At least 4000 steps of 16; 20 validations: 3200 images each, 75 passes over 43.
    expected = {"layers": 50, "crop_size": 465, "batchsize": 16, "max_steps": 4000, "repeat": 75, "lr": 0.01}
    assert recipe(PHOTOS) == expected | COLOURS | {"loss": "ce+lovasz"}


def test_only_a_run_of_dense_masks_that_the_recipe_decides_gets_what_helps_on_other_streets():
    """A config or a command with a length keeps its results; lovasz takes much memory for many classes."""
    better = {*COLOURS, "loss", "head_lr_factor"}
    lite = {"backbone": "timm:tf_efficientnet_lite0"}
    assert better <= set(recipe(PHOTOS, **lite))
    for given in ({"epochs": 3}, {"max_steps": 1000}, {"dataset": "ScribbleOnly"}, {"dataset": "ScribblePseudoDsDc"}):
        assert not better & set(recipe(PHOTOS, **lite, **given)), given
    assert "loss" not in recipe(PHOTOS, numclasses=150)
    assert "loss" not in recipe(PHOTOS, numclasses=2)
    assert not set(COLOURS) & set(recipe(PHOTOS, augment=False))
    assert not set(COLOURS) & set(recipe(PHOTOS, hue=0.1))
    assert recipe(PHOTOS, **lite, pretrained="none")["lr"] == 1e-3
    assert "head_lr_factor" not in recipe(PHOTOS, **lite, lr=0.01)
    assert "head_lr_factor" not in recipe(
        PHOTOS | {"new_part": ""}, **lite
    )  # a file of start weights has the whole head
    assert recipe(PHOTOS, model_type="nets.py:unet")["lr"] == 1e-3
    assert recipe(PHOTOS, model_type="nets.py:segformer")["lr"] == 1e-4


def test_a_batch_is_not_larger_than_a_short_epoch():
    """With --epochs, an epoch is a pass over the list. 43 images on 2 ranks, 2 forward passes a step: 10 for each."""
    few = PHOTOS | {"world_size": 2}
    assert recipe(few, epochs=3, accum_steps=2)["batchsize"] == 10
    assert recipe(few, epochs=3, accum_steps=2, repeat=2)["batchsize"] == 16
    assert recipe(PHOTOS | {"num_images": 6}, max_steps=9)["batchsize"] == 6
    small = recipe(PHOTOS | {"num_images": 10, "memory": 4.0}, epochs=3)  # 4 fit
    assert (small["batchsize"], small["accum_steps"]) == (4, 2)
    assert recipe(PHOTOS | {"num_images": 1}, epochs=3)["batchsize"] == 1


def test_class_0_is_an_object_unless_its_name_is_background():
    streets = PHOTOS | {"class_names": ["road", "sky"]}
    assert recipe(streets)["background"] == "none"
    assert "background" not in recipe(streets, background="0")
    assert "background" not in recipe(PHOTOS | {"class_names": ["Background", "sky"]})
    for name, is_slip in (("backgruond", True), ("ground", False), ("sky", False)):
        values = as_dict(Config(dataset="Folder"))
        _, reason = Recipe(values, frozenset(), **PHOTOS | {"class_names": [name, "pole"]}).choose_flags()["background"]
        assert reason == f"class 0 is {name}" + ", not background: is it misspelt?" * is_slip


def test_scribbles_get_the_crf_loss_and_the_paper_does_not():
    weights = {"ScribbleOnly": 0.3, "ScribblePseudo": 0.3, "ScribblePseudoDsDc": None, "Dense": None}
    for dataset, weight in weights.items():
        assert recipe(PHOTOS, dataset=dataset).get("l_crf") == weight
        assert "l_crf" not in recipe(PHOTOS, dataset=dataset, l_crf=0.0)


def test_many_images_take_fifty_passes_and_very_many_take_80000_steps():
    voc = PHOTOS | {"num_images": 10_582}
    chosen = recipe(voc)
    assert chosen["max_steps"] == 50 * 10_582 // 16 == 33_068
    assert "repeat" not in chosen
    coco = recipe(PHOTOS | {"num_images": 118_000})
    # An epoch has 7375 steps, more than a tenth of 80,000 would be: 4000 * 2; so no validation in between.
    assert (coco["max_steps"], "val_step_frequency" in coco) == (80_000, False)
    # On a CPU, 5000 images are 625 steps of 1000: a validation every 100.
    assert recipe(PHOTOS | {"num_images": 5000, "device": CPU})["val_step_frequency"] == 100
    few = PHOTOS | {"num_images": 5000, "device": CPU}
    assert "val_step_frequency" not in recipe(few, val_epoch_frequency=1)
    # CDSP's own labels and number of images: its learning rate.
    assert recipe(voc, dataset="ScribblePseudoDsDc")["lr"] == 1e-3


@pytest.mark.parametrize("world_size", [1, 4])
@pytest.mark.parametrize("flags", [{}, {"batchsize": 4}, {"total_batchsize": 64}, {"accum_steps": 2}])
def test_any_batch_sees_as_many_images(flags, world_size):
    chosen = recipe(PHOTOS | {"world_size": world_size}, **flags)
    values = {"total_batchsize": 0, "accum_steps": 1} | chosen | flags
    batch = values["total_batchsize"] or values["batchsize"] * values["accum_steps"] * world_size
    assert chosen["max_steps"] == math.ceil(4000 * 16 / batch)
    assert chosen["repeat"] * 43 >= batch


def test_little_memory_accumulates_the_same_batch():
    # 465x465, ResNet-50: 1.5 GiB and 0.44 GiB an image. 8 GiB hold 14 images, so 8; 4 GiB hold 5, so 4.
    for memory, batch in ((8.0, 8), (4.0, 4), (2.0, 1), (80.0, 16)):
        chosen = recipe(PHOTOS | {"memory": memory})
        assert (chosen["batchsize"], chosen.get("accum_steps", 1), chosen["max_steps"]) == (batch, 16 // batch, 4000)
    # 930x930 takes four times as much, 1.76 GiB an image: 8 GiB hold 3, and a batch is 8, 4, 2 or 1.
    assert recipe(PHOTOS | {"memory": 8.0}, crop_size=930)["batchsize"] == 2


def test_what_is_given_is_kept():
    every = recipe(PHOTOS, *RECIPE_FLAGS)
    assert every == {}
    for name in ("epochs", "max_steps", "warmup_epochs"):
        assert not {"max_steps", "repeat"} & set(recipe(PHOTOS, name))
    # --lr does not decide the optimizer, but --momentum does, and the log says so.
    for name, kept in (
        ("lr", ("adamw", "usual for networks of timm; if the lr is for sgd, set --optimizer sgd")),
        ("momentum", ("sgd", "as --momentum is set; adamw is usual")),
    ):
        chosen = Recipe(as_dict(Config(backbone="timm:resnet18")), {name, "backbone"}, **PHOTOS).choose_flags()
        assert chosen["optimizer"] == kept
    # Weights of a file are for one depth: the default, or the one that is given.
    assert "layers" not in recipe(PHOTOS, pretrained="weights.pth")
    assert "layers" not in recipe(PHOTOS, stride_in_1x1=True)


def test_networks_of_timm_and_large_photos():
    chosen = recipe(PHOTOS, backbone="timm:tf_efficientnet_lite0")
    assert (chosen["optimizer"], chosen["lr"], chosen["wdecay"]) == ("adamw", 3e-4, 0.01)
    assert chosen["head_lr_factor"] == 10
    for name in ("vit_tiny_patch16_224", "davit_tiny", "nextvit_small", "swin_tiny_patch4_window7_224"):
        assert recipe(PHOTOS, backbone=f"timm:{name}")["lr"] == 1e-4
    large = PHOTOS | {"device": CPU, "sizes": [(3000, 4000)], "large": 700}
    assert recipe(large)["long_side"] == 700
    assert "long_side" not in recipe(large, "window")
    assert "long_side" not in recipe(large, distancemap_s="there")  # in pixels of the original images
    assert chosen["lr_scaling"] == "sqrt"  # AdamW's updates grow with the square root of the batch


def test_every_choice_is_a_value_of_its_flag_at_any_size_of_data_and_group():
    for world_size, num_images, side in itertools.product((1, 8, 27, 512), (1, 48, 200_000), (1, 8, 100, 20_000)):
        for device in (CPU, CUDA):
            data = {"device": device, "num_images": num_images, "sizes": [(side, side)], "world_size": world_size}
            chosen = recipe(data)
            assert {name: FLAGS[name].convert(value, name) for name, value in chosen.items()} == chosen
            assert chosen["max_steps"] >= FEW_STEPS  # no warning about the recipe's own choice


def test_a_short_run_validates_at_most_ten_times():
    # 48 images are 6 steps of 8: 160 steps would be 26 epochs, each with a validation. 3 passes are 18 steps.
    data = {"device": CPU, "num_images": 48, "sizes": [(100, 100)]}
    assert recipe(data, max_steps=160)["repeat"] == 3
    assert "repeat" not in recipe(data, max_steps=160, val_epoch_frequency=2)
    assert "repeat" not in recipe(data, max_steps=50)  # 8 validations


def test_the_check_prints_what_train_chooses(demo_root, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert check_data([str(demo_root), "--workers", "0"]) < 2
    output = capsys.readouterr().out
    printed = set(re.findall(r"^  --(\w+) (\S+) ", output, re.MULTILINE))
    data = shlex.split(output.splitlines()[-1].split("to train: ")[1])[2:]
    stop = {"lr": "1e30", "pretrained": "none", "amp": "none", "workers": "0", "crop_size": "33"}
    with pytest.raises(DivergedError):  # after a step or two, so that no long run is needed
        train([*data, *chain(*((f"--{name}", value) for name, value in stop.items())), "--logdir", str(tmp_path)])
    (file,) = tmp_path.glob("*/config.yaml")
    used = as_dict(parse_flags(["--config", str(file)]))
    assert len(printed) > 4
    assert {item for item in printed if item[0] not in stop} == {
        (name, str(used[name])) for name, _ in printed if name not in stop
    }
    assert (used["dataset"], used["numclasses"]) == ("ScribblePseudoDsDc", 5)
    assert "--layers 18 (for a CPU)" in file.with_name("train.log").read_text()
