"""torchvision's DeepLabV3, computed by ours, as --pretrained and --checkpoint."""

import pytest
import torch
import torchvision
from conftest import flags
from test_fold import varied
from torch import Tensor, nn

from distributed.group import Group
from flags import parse_flags
from inference.trained import TrainedModel
from support.errors import UserError
from training import checkpoint
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
    start = read_start_weights(cfg, Group(CPU), checkpoint.read(file), {})
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
        read_start_weights(cfg, Group(CPU), checkpoint.read(file), {})
