"""torchvision's DeepLabV3, computed by ours, as --pretrained and --checkpoint."""

import re
from dataclasses import replace

import pytest
import torch
import torchvision
from conftest import flags
from test_fold import varied
from torch import Tensor, nn

import models
from distributed.group import Group
from flags import Config, parse_flags
from inference.trained import TrainedModel
from models.pretrained import load_start_weights
from support.errors import UserError
from training import checkpoint
from training.settle import choose_network
from training.start_weights import read_start_weights
from utils import get_model

pytestmark = pytest.mark.full_size
CPU = torch.device("cpu")
SIZES = [(65, 97), (64, 50)]  # 64: the max pool gets 32 rows; in ceil mode it would return one more


def pictures(height: int, width: int) -> Tensor:
    generator = torch.Generator().manual_seed(height)
    return torch.randint(0, 256, (1, height, width, 3), dtype=torch.uint8, generator=generator)


@pytest.fixture(scope="module")
def theirs() -> nn.Module:
    torch.manual_seed(0)
    build = torchvision.models.segmentation.deeplabv3_resnet50
    return varied(build(weights=None, weights_backbone=None, aux_loss=True))


@pytest.fixture(scope="module")
def file(theirs, tmp_path_factory):
    path = tmp_path_factory.mktemp("weights") / "deeplab.pth"
    torch.save(theirs.float().state_dict(), path)
    theirs.double()
    return path


def test_deeplabv3_computes_what_torchvisions_does(theirs, file):
    trained = TrainedModel(file, {"model_type": "deeplabv3_torchvision", "numclasses": 21})
    ours = trained.model("auto", CPU).double()
    for size in SIZES:
        images = pictures(*size)
        with torch.no_grad():
            found = ours(images)["logits"]
            x = (images.permute(0, 3, 1, 2).double() - ours.mean) / ours.std
            expected = theirs.classifier(theirs.backbone(x)["out"])
        assert found.shape == expected.shape
        assert expected.std() > 0.01
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-10 * float(expected.abs().max()))


def test_training_keeps_all_but_a_classifier_of_other_classes(demo_root, file, caplog):
    values = {"model_type": "deeplabv3_torchvision", "layers": 50, "numclasses": 5, "pretrained": file}
    cfg = parse_flags(flags(dataset_path=demo_root, **values))
    start = read_start_weights(cfg, Group(CPU), checkpoint.read(file))
    with caplog.at_level("INFO", "segtrain"):
        get_model(cfg, Group(CPU), start)
    # 53 convolutions of the ResNet and 7 of the head, each with a norm of 5 values.
    random = "head.classifier.3.weight, head.classifier.3.bias"
    assert caplog.messages == [
        f"start weights: {60 * 6} from {file}; left random: {random}; in the file but not used: {random}"
    ]


def test_deeplabv3_of_the_paper_is_dilated_differently_and_refuses_the_file(demo_root, file):
    use = "use --model_type deeplabv3_torchvision, with --layers 50 or 101"
    message = f"{file}: a file of torchvision's DeepLabV3: {use}"
    with pytest.raises(UserError, match=f"^--checkpoint {message}$"):
        TrainedModel(file, {"model_type": "deeplabv3", "numclasses": 21})
    cfg = parse_flags(flags(dataset_path=demo_root, model_type="deeplabv3", layers=50, pretrained=file))
    with pytest.raises(UserError, match=f"^--pretrained {message}$"):
        read_start_weights(cfg, Group(CPU), checkpoint.read(file))


def test_start_weights_for_classes_of_other_names_are_named(demo_root, tmp_path, caplog):
    content = {
        "config": {"numclasses": 2, "layers": 18, "model_type": "res50_ASPP_lorm"},
        "texts": {"classes": "sky\nroad"},
    }
    content |= {"model": {"head.x": torch.zeros(2)}}
    cfg = parse_flags(flags(dataset_path=demo_root, pretrained=tmp_path / "x.pt", numclasses=2))
    for text in ("", "sky\nroad", "sky\nwater"):
        read_start_weights(replace(cfg, texts={"classes": text}), Group(CPU), content)
    warning = f"--pretrained {tmp_path}/x.pt: its head was trained for classes of other names: 'road' is 'water' now"
    assert [line for line in caplog.messages if "other names" in line] == [warning]
    read_start_weights(replace(cfg, numclasses=3, texts={"classes": "a\nb\nc"}), Group(CPU), content)  # a new head
    assert caplog.messages.count(warning) == 1


RESNET18 = torchvision.models.resnet18().state_dict()
OURS = {"model_type": "deeplabv3p_lorm", "backbone": "timm:x", "output_stride": 8, "head_channels": 96, "numclasses": 9}


@pytest.mark.parametrize(
    ("content", "given", "expected"),
    [
        (RESNET18, {}, {"layers": 18}),
        (RESNET18, {"layers": 50}, {"layers": 50}),
        (RESNET18, {"backbone": "timm:x"}, {"backbone": "timm:x", "layers": Config().layers}),
        # A run's checkpoint: the demo has pseudo-labels, so the head keeps LoRM; with dense masks it has none.
        (OURS, {}, OURS | {"numclasses": 5}),
        (OURS, {"dataset": "Dense"}, OURS | {"numclasses": 5, "model_type": "deeplabv3p"}),
        # Another head on the same backbone; another backbone, whose features the head does not fit.
        (OURS, {"model_type": "deeplabv3"}, {"model_type": "deeplabv3", "backbone": "timm:x", "head_channels": 256}),
        (OURS, {"backbone": "timm:y"}, {"backbone": "timm:y", "model_type": "deeplabv3p_multi_lorm"}),
        # The stride of the features is no other backbone: neither here nor of a ResNet.
        (OURS, {"backbone": "timm:x", "output_stride": 16}, OURS | {"numclasses": 5, "output_stride": 16}),
        ({"model_type": "linear", "stride_in_1x1": True}, {"output_stride": 8}, {"stride_in_1x1": True}),
        # LoRM is no other head.
        (OURS, {"model_type": "deeplabv3p", "dataset": "Dense"}, {"model_type": "deeplabv3p", "head_channels": 96}),
        # The config.yaml of another run sets the default. The file wins: without the stride its weights would load too,
        # and give wrong results.
        ({"model_type": "linear", "stride_in_1x1": True}, {"no_stride_in_1x1": True}, {"stride_in_1x1": True}),
        ({"model_type": "linear_lorm"}, {}, {"model_type": "res50_ASPP_lorm"}),  # of another version
        ({"model_type": "linear"}, {}, {"model_type": "linear"}),  # has no form with LoRM
        ({"model_type": "net.py:Net"}, {}, {"model_type": "res50_ASPP_lorm"}),  # code that the user does not name
    ],
)
def test_the_network_is_that_of_the_start_weights_unless_the_user_sets_it(demo_root, content, given, expected):
    if "model_type" in content:
        content = {"config": content, "texts": {}, "step": 1, "model": {}, "ema": None}
    cfg = parse_flags(flags(dataset_path=demo_root, **{"layers": None, "pretrained": "x.pt"} | given))
    found = choose_network(cfg, Group(CPU), None, content)
    assert {name: getattr(found, name) for name in expected} == expected


@pytest.mark.parametrize(("theirs", "layers"), [(50, 18), (101, 50)])
def test_weights_of_another_depth_are_named(theirs, layers, caplog):
    """All weights of ResNet-50 are in a ResNet-101 by name and shape."""
    cfg = replace(Config(), layers=layers, pretrained="x.pt")
    start = read_start_weights(cfg, Group(CPU), torchvision.models.get_model(f"resnet{theirs}").state_dict())
    load_start_weights(models.build("res50_ASPP", num_classes=4, layers=layers), start, layers)
    assert re.search(rf"x.pt does not fit --layers {layers} \(\d+ .*\): use --layers {theirs}$", caplog.messages[0])
