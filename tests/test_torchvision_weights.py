"""torchvision's networks, computed by ours: DeepLabV3 as --pretrained and --checkpoint, and the ResNet of a U-Net."""

import pytest
import torch
import torch.nn.functional as F
import torchvision
from conftest import flags
from test_fold import varied
from torch import Tensor, nn

import models
from config import parse
from distributed.group import Group
from support.errors import UserError
from trained import TrainedModel
from utils import get_model, get_start

pytestmark = pytest.mark.full_size
CPU = torch.device("cpu")
SIZES = [(65, 97), (64, 50)]  # 64: the max pool gets 32 rows; in ceil mode it would return one more


def pictures(height: int, width: int) -> Tensor:
    generator = torch.Generator().manual_seed(height)
    return torch.randint(0, 256, (1, height, width, 3), dtype=torch.uint8, generator=generator)


def normalised(model: models.Segmenter, images: Tensor) -> Tensor:
    return (images.permute(0, 3, 1, 2).double() - model.mean.double()) / model.std.double()


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
            expected = theirs.classifier(theirs.backbone(normalised(ours, images))["out"])
        assert found.shape == expected.shape
        assert expected.std() > 0.01
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-10 * float(expected.abs().max()))


@pytest.mark.parametrize(
    ("num_classes", "random"), [(21, "none"), (5, "head.classifier.3.weight, head.classifier.3.bias")]
)
def test_training_keeps_all_but_a_classifier_of_other_classes(num_classes, random, demo_root, file, caplog):
    caplog.set_level("DEBUG", "segtrain")
    values = {"model_type": "deeplabv3_torchvision", "layers": 50, "numclasses": num_classes, "pretrained": file}
    cfg, start = get_start(parse(flags(dataset_path=demo_root, **values)), Group(CPU), None)
    model, _ = get_model(cfg, Group(CPU), start)
    # 53 convolutions of the ResNet and 7 of the head, each with a norm of 5 values; the classifier's weight and bias.
    num_copied = 60 * 6 + (2 if random == "none" else 0)
    assert caplog.messages == [
        f"--pretrained {file}: its auxiliary classifier is left out",
        f"start weights: {num_copied} from {file}; left random: {random}; in the file but not used: {random}",
    ]
    kept = torch.equal(model.head.classifier[3].weight[:2], start.state_dict["classifier.4.weight"][:2])
    assert kept == (num_classes == 21)


def test_deeplabv3_of_the_paper_is_dilated_differently_and_refuses_the_file(demo_root, file):
    message = (
        f"{file}: a file of torchvision's DeepLabV3: use --model_type deeplabv3_torchvision, with --layers 50 or 101"
    )
    with pytest.raises(UserError, match=f"^--checkpoint {message}$"):
        TrainedModel(file, {"model_type": "deeplabv3", "numclasses": 21})
    cfg = parse(flags(dataset_path=demo_root, model_type="deeplabv3", layers=50, pretrained=file))
    with pytest.raises(UserError, match=f"^--pretrained {message}$"):
        get_start(cfg, Group(CPU), None)


def test_unet_is_its_definition():
    """The plain loop of the paper over the features of torchvision's own ResNet-18, not dilated."""
    torch.manual_seed(0)
    ours = varied(models.build("unet", layers=18, num_classes=4))
    # Two 3x3 convolutions and norms for (channels from below, of the skip, out), and the classifier.
    stages = [(512, 256, 256), (256, 128, 128), (128, 64, 64), (64, 64, 32)]
    expected = sum(9 * (below + skip + out) * out + 4 * out for below, skip, out in stages) + 32 * 4 + 4
    assert sum(value.numel() for value in ours.head.parameters()) == expected

    resnet = torchvision.models.resnet18().double().eval()
    weights = {name.removeprefix("backbone."): value for name, value in ours.state_dict().items()}
    resnet.load_state_dict(weights, strict=False)
    for size in SIZES:
        images = pictures(*size)
        with torch.no_grad():
            x = resnet.relu(resnet.bn1(resnet.conv1(normalised(ours, images))))
            features = [x, resnet.layer1(resnet.maxpool(x))]
            for layer in (resnet.layer2, resnet.layer3, resnet.layer4):
                features.append(layer(features[-1]))
            x = features.pop()
            for stage in ours.head.fuse:
                skip = features.pop()
                x = torch.cat([F.interpolate(x, skip.shape[2:], mode="bilinear", align_corners=True), skip], dim=1)
                for conv, norm, _ in stage:
                    x = F.conv2d(x, conv.weight, padding=1)
                    x = F.batch_norm(x, norm.running_mean, norm.running_var, norm.weight, norm.bias).relu()
            expected = F.conv2d(x, ours.head.classifier.weight, ours.head.classifier.bias)
            torch.testing.assert_close(ours(images)["logits"], expected, rtol=1e-10, atol=1e-10)
