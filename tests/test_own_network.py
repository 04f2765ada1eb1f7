"""--model_type FILE.py:NAME: a network of the user's own keeps all promises, and runs only if the user names it."""

import shutil
import sys
from pathlib import Path

import pytest
import torch
from conftest import DENSE, assert_same_run, contents, flags, refused, using
from torch import nn

import evaluate
import export
import models
import predict
import pseudo
import segtrain
import train
from flags import as_dict, dump, parse_flags
from models.custom import CustomNetwork, logits_in, read_arguments
from models.fold import fold_batch_norm
from support.errors import UserError
from training.checkpoint import to_bytes
from training.optimizers import parameter_groups

# A U-Net whose image sides must be even; without gradient: `unused`. RAN is written by whoever imports the file.
NETS = """
from pathlib import Path
import torch
from torch import nn

(Path(__file__).parent / "RAN").touch()

def block(inside, outside):
    return nn.Sequential(nn.Conv2d(inside, outside, 3, padding=1, bias=False), nn.BatchNorm2d(outside), nn.ReLU())

class UNet(nn.Module):
    def __init__(self, num_classes, width=4, dropout=0.0):
        super().__init__()
        self.fine, self.coarse = block(3, width), block(width, 2 * width)
        self.up, self.drop, self.last = block(3 * width, width), nn.Dropout(dropout), nn.Conv2d(width, num_classes, 1)
        self.unused = nn.Linear(3, 3)

    def forward(self, x):
        x = self.fine(x)
        coarse = self.coarse(nn.functional.max_pool2d(x, 2))
        x = torch.cat([x, nn.functional.interpolate(coarse, scale_factor=2)], 1)
        return {"out": self.last(self.drop(self.up(x)))}

class Crossed(UNet):  # each convolution is followed by the other's norm in forward(), so folding would be wrong
    def __init__(self, num_classes):
        super().__init__(num_classes)
        self.a, self.norm_b = nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4)
        self.b, self.norm_a = nn.Conv2d(4, num_classes, 1), nn.BatchNorm2d(num_classes)

    def forward(self, x):
        return self.norm_a(self.b(self.norm_b(torch.tanh(self.a(x)))))

class Strict(UNet):  # has no use for another class in the place of its convolutions
    def forward(self, x):
        assert isinstance(self.last, nn.Conv2d)
        return super().forward(x)

class Odd(nn.Conv2d):
    def __init__(self, num_classes, mean=None, dtype=None, gives=None):
        super().__init__(3, num_classes, 1, dtype=dtype and getattr(torch, dtype))
        self.image_mean, self.gives = mean or [0.5, 0.5, 0.5], gives

    def forward(self, x):
        return super().forward(x) * float(self.gives or 1)

class Pooled(nn.Conv2d):  # as SegFormer, which reduces its features by 8
    def __init__(self, num_classes):
        super().__init__(3, num_classes, 1)

    def forward(self, x):
        x = super().forward(x)
        return x + nn.functional.interpolate(nn.functional.avg_pool2d(x, 32), x.shape[2:])

broken = lambda num_classes: 1 / (num_classes - 5)
words = lambda num_classes: "no module"
classifier = lambda num_classes: nn.Sequential(nn.Conv2d(3, num_classes, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten())
lazy = lambda num_classes: nn.LazyConv2d(num_classes, 1)
empty = lambda num_classes: nn.Identity()
positional = lambda classes: nn.Conv2d(3, classes, 1)
other_size = lambda num_classes: nn.Conv2d(3, num_classes + 1, 1)
number = 3
built = nn.Conv2d(3, 5, 1)
"""


@pytest.fixture
def nets(tmp_path) -> Path:
    path = tmp_path / "code" / "my_nets.py"
    path.parent.mkdir()
    path.write_text(NETS)
    return path


def own_network(model_type: str) -> dict:
    """Flags of a run of this network on dense masks."""
    return DENSE | {"model_type": model_type, "layers": None}


@pytest.fixture
def own(demo_flags, tmp_path, nets):
    """Words of a short run of the U-Net on dense masks."""
    return demo_flags(logdir=tmp_path / "log", **own_network(f"{nets}:UNet"), model_args="dropout=0.1")


def test_a_run_continues_bit_for_bit_if_the_user_names_its_code(own, tmp_path):
    words = [*own, "--save_step_frequency", "2"]
    assert train.main([*words, "--name", "whole"]) == 0
    folder = shutil.copytree(tmp_path / "log/whole", tmp_path / "log/x")
    resume = ["--resume", str(folder / "step_00000002.pt")]
    at = own.index("--model_type")
    assert own[at + 2] == "--model_args"
    name, unnamed = own[at + 1], words[:at] + words[at + 4 :]
    with refused(f"is code, {name}: to run that code, add --model_type"):
        train.main(resume)  # the run's config.yaml names the code, but the user does not
    for found in ("auto", resume[1]):  # without config.yaml, the checkpoint alone names the code
        with refused(f"--resume {found}: its --model_type is code, {name}: to run that code, add --model_type"):
            train.main([*unnamed, "--name", "x", "--resume", found])
    assert train.main([*words, "--name", "x", *resume]) == 0
    assert_same_run(folder, tmp_path / "log/whole")


def test_a_checkpoint_runs_no_loss_that_the_user_does_not_name(demo_run):
    folder = demo_run(name="x", **DENSE)
    content = torch.load(folder / "last.pt", weights_only=True)
    content["config"]["loss"] = "ce+a.py:focal"
    (folder / "last.pt").write_bytes(to_bytes(content))
    with refused("--resume auto: its --loss is code, ce+a.py:focal: to run that code, add --loss ce+a.py:focal"):
        demo_run(name="x", resume="auto", **DENSE)


@pytest.fixture
def trained(own, tmp_path, nets) -> Path:
    assert train.main([*own, "--name", "run", "--ema", "0.5"]) == 0
    (nets.parent / "RAN").unlink()
    for name in [name for name in sys.modules if name.startswith("segtrain_user_")]:
        del sys.modules[name]  # as in a new process
    return tmp_path / "log" / "run" / "best.pt"


def test_a_checkpoint_runs_no_code_unless_the_user_names_it(trained, nets, tmp_path, demo_root, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    name, images = f"{nets}:UNet", str(demo_root / "JPEGImages")
    uses = [
        lambda *words: evaluate.main(using(trained, *words)),
        lambda *words: predict.main(using(trained, "--input", images, *words)),
        lambda *words: pseudo.main(using(trained, *["--dataset", "ScribbleOnly", "--output", "labels"], *words)),
        lambda *words: export.main(["--checkpoint", str(trained), *words]),
        lambda *words: segtrain.load(trained, **({"model_type": words[1]} if words else {})),
    ]
    for use in uses:
        with refused(f"is code, {name}: to run that code"):
            use()
    with refused("none of its backbone's weights fits"):
        train.main(flags(dataset_path=demo_root, logdir=tmp_path / "log", **DENSE, pretrained=trained))
    assert not (nets.parent / "RAN").exists()
    for use in uses:
        use("--model_type", name)
    assert (nets.parent / "RAN").exists()
    assert "has changed" not in capsys.readouterr().out
    nets.write_text(NETS + "\n# more")
    segtrain.load(trained, model_type=name)
    assert f"--model_type {name}: its file has changed since {trained} was written" in capsys.readouterr().out


def test_an_export_is_compared_on_the_sizes_that_the_network_takes(demo_run, nets, capsys):
    folder = demo_run(max_steps=1, epochs=None, **own_network(f"{nets}:Pooled"))
    export.main(["--checkpoint", str(folder / "last.pt"), "--model_type", f"{nets}:Pooled"])
    lines = capsys.readouterr().out.splitlines()
    said = [line for line in lines if "takes no images of 130x17 pixels: RuntimeError: " in line]
    assert len(said) == 2  # of two batches
    assert "my_nets.py line" in said[0]
    assert (folder / "last.onnx").is_file()


@pytest.mark.parametrize(("name", "folds"), [("UNet", True), ("Crossed", False), ("Strict", False)])
def test_batch_norm_is_folded_only_if_a_trial_gives_the_same(nets, name, folds):
    model = models.build(f"{nets}:{name}", num_classes=5).eval()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            torch.nn.init.uniform_(module.running_var, 0.5, 2)
            torch.nn.init.uniform_(module.weight, 0.5, 2)
    images = torch.randint(0, 256, (2, 31, 45, 3), dtype=torch.uint8)
    with torch.no_grad():
        folded = fold_batch_norm(model)
        torch.testing.assert_close(folded(images)["logits"], model(images)["logits"], rtol=1e-4, atol=1e-4)
    assert folds != any(isinstance(module, nn.BatchNorm2d) for module in folded.modules())


def test_what_a_network_is_found_to_be(nets):
    network = CustomNetwork(f"{nets}:UNet", 5, ["width=6"])
    assert (network.multiple, network.strides, network.channels) == (2, (1,), (5,))
    assert network(torch.zeros(1, 3, 33, 50))[0].shape == (1, 5, 33, 50)
    # Its parts in their order: fine, coarse, up, drop, last, unused
    assert network.depths()["net.fine.0.weight"] == 0
    assert network.depths()["net.last.weight"] == 4
    assert not network.is_head("net.fine.0.weight")
    assert network.is_head("net.last.weight")
    model = models.build(f"{nets}:UNet", num_classes=5, freeze_backbone=2)
    trained = {name.split(".")[2] for name, value in model.named_parameters() if value.requires_grad}
    assert trained == {"up", "last", "unused"}
    # --head_lr_factor is that of all parts but the first.
    model = models.build(f"{nets}:UNet", num_classes=5)
    part_of = {value: name.split(".")[2] for name, value in model.named_parameters()}
    groups = parameter_groups(model, weight_decay=0.0, head_lr_factor=10.0)
    factors = {part_of[value]: group["lr_factor"] for group in groups for value in group["params"]}
    assert factors == {"fine": 1.0, "coarse": 10.0, "up": 10.0, "last": 10.0, "unused": 10.0}
    model.backbone.freeze_unused(model.head)
    assert not any(value.requires_grad for value in model.backbone.net.unused.parameters())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("lazy", "has lazy layers: give them their sizes"),
        ("empty", "has no parameters to train"),
        ("positional", r"building it with num_classes failed: TypeError: .*unexpected keyword argument 'num_classes'$"),
        ("number", "is a int: name a class or a function"),
        ("built", "is a Conv2d: name a class or a function"),
        (
            "broken",
            r"building it with num_classes failed: ZeroDivisionError: division by zero \(.*my_nets\.py line \d+\)",
        ),
        ("words", "returned a str, not a torch.nn.Module"),
        ("classifier", r"returns a tensor of shape \(2, 5\): return logits \(2, 5, h, w\)"),
        ("other_size", r"returns a tensor of shape \(2, 6, 97, 113\): return logits \(2, 5, h, w\)"),
        ("absent", "has no absent; it has .*UNet"),
        ("Odd mean=[123,116,103]", r"its image_mean is \(123\.0, .*\): it must be three numbers of 0 to 1"),
        ("Odd dtype=complex64", r"has weights of torch\.complex64, which checkpoints do not hold"),
        ("Odd gives=nan", "its logits of a grey image are not finite real numbers"),
        ("Odd other=1", r"building it with num_classes, other failed: TypeError: .*'other'"),
    ],
)
def test_code_that_is_no_network_is_named_in_one_line_before_the_first_step(nets, words, message):
    name, *arguments = words.split()
    with pytest.raises(UserError, match=rf"^--model_type .*my_nets\.py:{name}:? .*{message}"):
        models.build(f"{nets}:{name}", num_classes=5, model_args=arguments)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "cannot be imported: FileNotFoundError: no such file"),
        ("import torch\nx = nn.Linear", r"cannot be imported: NameError: name 'nn' .*\(.*b\.py line 2\)"),
        ("def f(:\n", r"cannot be imported: SyntaxError: .*\(.*b\.py line 1\)"),
    ],
)
def test_a_file_that_cannot_be_imported_is_named_in_one_line(tmp_path, text, message):
    if text:
        (tmp_path / "b.py").write_text(text)
    with pytest.raises(UserError, match=message):
        models.build(f"{tmp_path / 'b.py'}:f", num_classes=5)


def test_flags_that_do_not_go_with_a_network_of_ones_own(nets, demo_root):
    own = ["--dataset_path", str(demo_root), "--model_type", f"{nets}:UNet"]
    for more, message in (
        (["--backbone", "timm:resnet18"], "--backbone timm:resnet18: --model_type .* builds the whole network"),
        (["--pretrained", "imagenet"], "--pretrained imagenet: these are a ResNet's weights"),
        (["--head_channels", "64"], "--head_channels has no effect"),
        (["--model_type", "res50_ASPP", "--model_args", "a=1"], "--model_args has no effect without --model_type FILE"),
        (["--model_type", "nets"], "--model_type: 'nets' is not known"),
    ):
        with pytest.raises(UserError, match=message):
            parse_flags([*own, *more])


@pytest.mark.parametrize(
    "more",
    [
        "--model_type OWN",
        "--model_type OWN --freeze_bn",
        "--backbone timm:resnet18 --optimizer adamw",
        "--dataset Dense --loss ce+dice",
        "--model_type deeplabv3p --head_channels 9 --task train",
    ],
)
def test_the_flags_of_a_run_can_be_read_again(nets, demo_root, tmp_path, more):
    """The printed command to resume names code, and other flags come from config.yaml; or --config repeats the run."""
    code = ["--model_type", f"{nets}:UNet"] if "OWN" in more else []
    words = more.replace("OWN", f"{nets}:UNet").split()
    first = parse_flags(["--dataset_path", str(demo_root), *words])
    (tmp_path / "config.yaml").write_text(dump(first))
    (tmp_path / "last.pt").touch()
    for again in (["--resume", str(tmp_path / "last.pt"), *code], ["--config", str(tmp_path / "config.yaml")]):
        assert as_dict(parse_flags(again)) == as_dict(first)


def test_arguments_from_words_and_from_a_section_of_yaml(tmp_path, demo_root):
    expected = {"width": 3, "rates": [1, 2], "name": "a b", "bias": False, "weights": None}
    words = ["width=3", "rates=[1, 2]", "name=a b", "bias=false", "weights=None"]
    assert read_arguments(words) == expected
    assert read_arguments(["a=TRUE", "b=false", "c={[]: 1}"]) == {"a": True, "b": False, "c": "{[]: 1}"}
    with pytest.raises(UserError, match="--model_args width: write NAME=VALUE"):
        read_arguments(["width"])
    file = tmp_path / "c.yaml"
    file.write_text(
        f"dataset_path: {demo_root}\nmodel_type: a.b:Net\n"
        "model_args:\n  width: 3\n  rates: [1, 2]\n  more: {a: 1, b: [x, 2.5]}\n"
        "  name: a b\n  bias: false\n  weights: None\n"
    )
    found = read_arguments(parse_flags(["--config", str(file)]).model_args)
    assert found == expected | {"more": {"a": 1, "b": ["x", 2.5]}}


class Output:
    logits = torch.zeros(1)


@pytest.mark.parametrize(
    "output", [torch.zeros(1), {"out": torch.zeros(1)}, {"logits": torch.zeros(1)}, Output(), [torch.zeros(1), 3]]
)
def test_logits_are_found_in_what_libraries_return(output):
    assert torch.equal(logits_in(output), torch.zeros(1))
    assert logits_in({"aux": torch.zeros(1)}) is None
    assert logits_in(None) is None


def test_a_module_of_a_library(demo_run):
    """torchvision's LR-ASPP, as its function returns it, with arguments."""
    own = own_network("torchvision.models.segmentation:lraspp_mobilenet_v3_large")
    assert contents(demo_run(**own, model_args="weights_backbone=None", max_steps=1, epochs=None))


def test_networks_of_segmentation_models_pytorch(demo_run):
    pytest.importorskip("segmentation_models_pytorch")
    narrow = {"backbone": "timm:resnet18", "model_args": ["decoder_channels=[32,16,8,8,8]"]}
    model = models.build("smp:unet", num_classes=5, **narrow)
    images = torch.randint(0, 256, (2, 45, 61, 3), dtype=torch.uint8)
    assert model.eval()(images)["logits"].shape == (2, 5, 45, 61)
    assert model.backbone.depths()["net.encoder.model.conv1.weight"] == 0
    assert model.backbone.is_head("net.segmentation_head.0.weight")
    with pytest.raises(UserError, match=r"segmentation_models\.pytorch has no Vnet: it has .*Unet"):
        models.build("smp:Vnet", num_classes=5)
    own = DENSE | {"model_type": "smp:FPN", "model_args": "decoder_segmentation_channels=32"}
    folder = demo_run(**own, max_steps=1, epochs=None)
    evaluate.main(using(folder / "best.pt"))  # smp's code is not the user's: it need not be named
