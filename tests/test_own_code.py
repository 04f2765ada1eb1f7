"""--loss FILE.py:NAME and --transform FILE.py:NAME keep the promises, and run only if the user names them."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import ALONE, DENSE, REPO, flags, refused
from test_distributed import train_three_ways
from test_label_losses import batch_of, loss_of, random_batch
from test_own_network import NETS, own_network

import models
import train
import utils
from data.transforms import CentreCrop, OwnTransform
from flags import own_code, parse_flags
from losses.criterion import Criterion
from losses.own import OwnTerm, count_losses, load_loss
from support import user_code
from support.errors import UserError

CODE = """
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

class CrossEntropy:
    def count(self, labels):
        return (labels != 255).sum()

    def sum(self, logits, labels):
        return F.cross_entropy(logits, labels.long(), ignore_index=255, reduction="sum")

class Focal(CrossEntropy):
    def sum(self, logits, labels):
        value = F.cross_entropy(logits, labels.long(), ignore_index=255, reduction="none")
        return ((1 - (-value).exp()) ** 2 * value).sum()

class NoCount:
    sum = None

class Matrix(CrossEntropy):
    def sum(self, logits, labels):
        return logits

class Negative(CrossEntropy):
    def count(self, labels):
        return -1

class Infinite(CrossEntropy):
    def count(self, labels):
        return float("inf")

class Words(CrossEntropy):
    def count(self, labels):
        return "many"

class Trained(CrossEntropy, nn.Module):
    def __init__(self):
        nn.Module.__init__(self)
        self.weight = nn.Parameter(torch.zeros(1))

focal = Focal()

def cut_out(image, labels, rng):
    top, left = rng.integers(0, 20, 2)
    image[top : top + 8, left : left + 8] = 0
    labels["label"][top : top + 8, left : left + 8] = 255
    return image, labels

wrong_type = lambda image, labels, rng: (image / 255, labels)
drops = lambda image, labels, rng: (image, {})
nothing = lambda image, labels, rng: None
fails = lambda image, labels, rng: (image[0].no_such_thing, labels)

def other_class(image, labels, rng):
    labels["label"][0, 0] = 5
    return image, labels

def other_pseudo(image, labels, rng):
    labels["pseudo"][0, 0] = 5
    return image, labels
"""


@pytest.fixture
def code(tmp_path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text(CODE)
    return path


def test_same_losses_and_weights_at_any_split_of_the_global_batch(demo_root, tmp_path, code):
    """With a loss, a transform and a network of one's own."""
    (tmp_path / "my_nets.py").write_text(NETS)
    own = own_network(f"{tmp_path}/my_nets.py:UNet") | {"loss": f"ce+0.5*{code}:focal", "transform": f"{code}:cut_out"}
    runs = train_three_ways(tmp_path, dataset_path=demo_root, epochs=2, val_epoch_frequency=2, **own)
    lines, weights, _ = runs["one"]
    assert weights["backbone.net.last.weight"].shape == (5, 4, 1, 1)
    assert set(lines[0]["losses"]) == {"seg", "focal"}
    # A focal loss of gamma 2 is below the cross entropy that it weights.
    assert all(0 < line["losses"]["focal"] < line["losses"]["seg"] for line in lines)
    for name in ("two", "accum"):
        for line, expected in zip(runs[name][0], lines, strict=True):
            assert line["losses"] == pytest.approx(expected["losses"], rel=1e-9)
        torch.testing.assert_close(runs[name][1], weights, rtol=1e-9, atol=1e-12)


def test_cross_entropy_written_by_hand_has_the_value_and_gradient_of_ours(code):
    own = {"own": f"{code}:CrossEntropy"}
    logits, label = random_batch()
    batch = replace(batch_of(label), own_counts=count_losses(label, own))
    criterion = Criterion({"own": 1.0}, own)
    values = criterion({"logits": logits}, batch, criterion.counts(batch).tolist())[0], loss_of("seg", logits, label)
    torch.testing.assert_close(*values)
    torch.testing.assert_close(*(torch.autograd.grad(value, logits)[0] for value in values))


def test_a_transform_is_drawn_from_seed_pass_and_index_in_any_process(demo_root, code):
    batches = []
    for workers in (0, 2):
        words = flags(dataset_path=demo_root, logdir=".", **DENSE | {"transform": f"{code}:cut_out"}, workers=workers)
        loader = utils.get_loader(parse_flags(words), "train", ALONE)
        batches.append([batch.image for batch in loader])
        holes = (loader.dataset[0, 0]["image"] == 0).all(-1) & (loader.dataset[0, 0]["label"] == 255)
        assert holes.sum() >= 8 * 8
    assert all(torch.equal(one, other) for one, other in zip(*batches, strict=True))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("wrong_type", r"its image is float64 of shape \(9, 9, 3\): it must be uint8 of shape \(9, 9, 3\)"),
        ("drops", r"its label is NoneType: it must be uint8 of shape \(9, 9\)"),
        ("fails", r"AttributeError: .*no_such_thing.*mine\.py line \d+"),
        ("nothing", r"returned a NoneType: return \(image, labels\)"),
        ("other_class", r"its label has the value 5: classes are 0\.\.4"),
        ("other_pseudo", r"its pseudo has the value 5: classes are 0\.\.4"),
        ("absent", "has no absent"),
    ],
)
def test_a_transform_that_returns_something_else_is_named(code, name, message):
    maps = {"image": np.zeros((12, 12, 3), np.uint8)}
    maps |= {name: np.zeros((12, 12), np.uint8) for name in ("label", "pseudo")}
    with pytest.raises(UserError, match=message):
        OwnTransform(CentreCrop(9), f"{code}:{name}", 5)(maps, np.random.default_rng(0))


def test_losses_that_cannot_be_used_are_named(demo_root, tmp_path, code):
    with refused("has no method count(): it needs count(labels) and sum(logits, labels)"):
        load_loss(f"{code}:NoCount")
    with refused("Trained: has parameters, which no optimizer trains"):
        load_loss(f"{code}:Trained")
    logits, label = random_batch()
    with refused("Words: count() returned no number: ValueError: could not convert string to float: 'many'"):
        count_losses(label, {"own": f"{code}:Words"})
    with refused("Infinite: count() returned inf"):
        count_losses(label, {"own": f"{code}:Infinite"})
    with refused("Matrix: sum() returned a tensor of shape (4, 4, 6, 5)"):
        OwnTerm(f"{code}:Matrix").sum({"logits": logits}, batch_of(label))
    with refused("Negative: count() returned -1.0"):  # by the loader
        train.main(flags(dataset_path=demo_root, logdir=tmp_path, **DENSE, loss=f"{code}:Negative"))
    for text, message in (
        (f"{code}:focal+{code}:focal", "is there twice"),
        ("ce+focal", "'focal' is not known"),
        (f"0*{code}:focal", "is not a factor"),
        ("a.b:seg", "has the name of a loss in the logs"),
    ):
        with refused(message):
            parse_flags(flags(dataset_path=demo_root, logdir=tmp_path, **DENSE, loss=text))
    with refused("--transform blur: give FILE.py:NAME"):
        parse_flags(flags(dataset_path=demo_root, logdir=tmp_path, **DENSE, transform="blur"))


def test_a_loss_without_labels_is_not_counted(demo_root, tmp_path, code):
    """A file's --loss may stand beside a --dataset that has pseudo-labels only."""
    file = tmp_path / "c.yaml"
    file.write_text(f"loss: ce+{code}:focal\n")
    words = flags(dataset_path=demo_root, logdir=".", config=file, dataset="PseudoOnly")
    batch = next(iter(utils.get_loader(parse_flags(words), "train", ALONE)))
    assert batch.own_counts == {}


def test_code_of_a_file_must_be_named_by_the_user():
    saved = {"model_type": "res50_ASPP", "loss": "ce+2*a.py:focal", "transform": "b.c:cut"}
    assert own_code.sources(saved) == {"transform": ["b.c:cut"], "loss": ["a.py:focal"]}
    with refused("x: its --transform is code, b.c:cut: to run that code, add --transform b.c:cut"):
        own_code.refuse_unnamed(saved, {"loss": "ce"}, "x")
    own_code.refuse_unnamed(saved, {"loss": "ce", "transform": ""}, "x")
    assert own_code.words(saved) == ["--transform", "b.c:cut", "--loss", "ce+2*a.py:focal"]


EXAMPLES = REPO / "docs/examples"


@pytest.mark.parametrize("name", ["noise_and_cut_out", "auto_contrast", "shadows"])
def test_examples_of_augmentations(demo_root, name):
    words = flags(dataset_path=demo_root, logdir=".", transform=f"{EXAMPLES / 'transforms.py'}:{name}")
    batches = [[batch.image for batch in utils.get_loader(parse_flags(words), "train", ALONE)] for _ in range(2)]
    assert all(torch.equal(one, other) for one, other in zip(*batches, strict=True))
    plain = [batch.image for batch in utils.get_loader(parse_flags(words[:-2]), "train", ALONE)]
    assert not all(torch.equal(one, other) for one, other in zip(batches[0], plain, strict=True))


def test_examples_of_losses_are_their_definitions():
    """Two classes in a row of four pixels, the last one ignored: p of class 1 is 0.2, 0.9, 0.6."""
    p = torch.tensor([0.2, 0.9, 0.6, 0.5])
    logits = torch.stack([torch.zeros(4), torch.log(p / (1 - p))])[None, :, None].requires_grad_()  # (1, 2, 1, 4)
    labels = torch.tensor([[[0, 1, 1, 255]]], dtype=torch.uint8)
    focal, tversky = (load_loss(f"{EXAMPLES / 'losses.py'}:{name}") for name in ("Focal", "Tversky"))
    assert (focal.count(labels), tversky.count(labels)) == (3, 2)
    right = np.array([0.8, 0.9, 0.6])
    assert focal.sum(logits, labels).item() == pytest.approx(-((1 - right) ** 2 * np.log(right)).sum(), rel=1e-5)
    # class 0: hit 0.8, missed 0.2, false 0.1 + 0.4; class 1: hit 0.9 + 0.6, missed 0.1 + 0.4, false 0.2
    expected = (1 - 0.8 / (0.8 + 0.7 * 0.2 + 0.3 * 0.5)) + (1 - 1.5 / (1.5 + 0.7 * 0.5 + 0.3 * 0.2))
    assert tversky.sum(logits, labels).item() == pytest.approx(expected, rel=1e-5)


def test_examples_of_networks(demo_root, tmp_path):
    images = torch.randint(0, 256, (2, 33, 47, 3), dtype=torch.uint8)
    model = models.build(f"{EXAMPLES / 'networks.py'}:SmallUNet", num_classes=5, model_args=["width=4"])
    assert model.eval()(images)["logits"].shape == (2, 5, 33, 47)
    pytest.importorskip("transformers")
    model = models.build(f"{EXAMPLES / 'networks.py'}:segformer", num_classes=5, model_args=["pretrained=False"])
    assert model.backbone.strides == (4,)


def test_each_file_gets_the_modules_beside_it(tmp_path):
    """Two folders have a helper.py each; a module of ours is not replaced."""
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "helper.py").write_text(f"VALUE = {name!r}\n")
        (tmp_path / name / "utils.py").write_text("raise AssertionError\n")
        (tmp_path / name / "same.py").write_text("import utils\nfrom helper import VALUE\ndef value(): return VALUE\n")
    loaded = [user_code.load("--loss", f"{tmp_path / name / 'same.py'}:value").value for name in ("a", "b", "a")]
    assert [function() for function in loaded] == ["a", "b", "a"]
