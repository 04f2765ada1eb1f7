"""export.py: its files, loaded by themselves and by our classes, against PyTorch; and what it refuses."""

import hashlib
import importlib.util
import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import REPO, contents, refused, smooth_images, varied_model
from faulty_data import exif, put
from PIL import Image

import export
import models
import predict
from data.classes import voc_colours
from flags import as_dict, parse_flags
from inference import export_graph
from inference.export_check import compare_outputs
from inference.export_onnx import metadata_of, write_onnx
from inference.onnx_model import KEYS, OnnxModel
from inference.predictor import Predictor
from inference.trained import TrainedModel
from support.errors import UserError

EXTRAS = ("onnx", "onnxscript", "onnxruntime")
missing = [name for name in EXTRAS if importlib.util.find_spec(name) is None]
pytestmark = pytest.mark.skipif(bool(missing), reason=f"the extra export is not installed: {missing}")
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory):
    """A run with best.pt, whose average of weights is another model than its raw weights."""
    folder = tmp_path_factory.mktemp("run")
    (folder / "classes.txt").write_text("sky #102030\nroad\ntree\ncar #ff0000\ndog\n")
    words = ["--dataset_path", "nowhere", "--model_type", "res50_ASPP_lorm", "--layers", "18", "--numclasses", "5"]
    words += ["--background", "none"]
    config = as_dict(parse_flags([*words, "--classes", str(folder / "classes.txt")]))
    raw, averaged = (varied_model("res50_ASPP_lorm", 5, seed).state_dict() for seed in (1, 0))
    torch.save({"model": raw, "ema": averaged, "config": config, "step": 7}, folder / "best.pt")
    return folder


@pytest.fixture(scope="module")
def predictor():
    return Predictor(varied_model("res50_ASPP_lorm", 5, seed=0))  # --weights auto is the average


def run(folder, *words: str) -> None:
    export.main(["--checkpoint", str(folder / "best.pt"), *words])


@pytest.fixture(scope="module")
def onnx_file(run_folder):
    run(run_folder, "--probs", "--output", str(run_folder / "best.onnx"))
    return run_folder / "best.onnx"


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("size", [(1, 1), (6, 40), (64, 48), (95, 131)])
def test_predicts_what_pytorch_does(onnx_file, batch, size, predictor):
    model, images = OnnxModel(onnx_file, CPU), smooth_images(batch, *size)
    labels, probs = model.run(images)
    expected = torch.cat([band for _, band in predictor.probs(images)], dim=2)
    assert (probs.dtype, labels.dtype, labels.shape) == (torch.float32, torch.uint8, (batch, *size))
    torch.testing.assert_close(probs, expected, rtol=0, atol=1e-4)
    first, second = expected.topk(2, dim=1).values.unbind(1)
    clear = first - second > 1e-3  # where rounding decides nothing
    assert torch.equal(labels[clear], predictor.labels(images)[clear])
    if min(size) >= 48:
        assert clear.float().mean() > 0.95
        assert len(labels.unique()) >= 3


def test_onnx_file_says_what_it_is(onnx_file, run_folder):
    model = OnnxModel(onnx_file, CPU)
    assert model.classes.names == ["sky", "road", "tree", "car", "dog"]
    assert model.num_classes == 5
    colours = voc_colours()
    colours[[0, 3]] = [16, 32, 48], [255, 0, 0]
    assert np.array_equal(model.classes.colours, colours)
    expected = {"checkpoint": str(run_folder / "best.pt"), "weights": "ema", "step": 7, "layers": 18}
    assert {name: model.metadata[name] for name in expected} == expected


@pytest.mark.parametrize(
    ("flags", "backbone", "layers"),
    [
        ({}, "resnet", 18),
        ({"backbone": "timm:convnext_atto"}, "timm:convnext_atto", None),
        ({"model_type": "mine.py:Net"}, None, None),
    ],
)
def test_metadata_names_the_network(run_folder, flags, backbone, layers):
    """--layers has a default, which says nothing about other networks than a ResNet."""
    about = metadata_of(TrainedModel(run_folder / "best.pt", flags), "auto", ["labels"], 1)
    assert (json.loads(about["backbone"]), json.loads(about["layers"])) == (backbone, layers)


def test_onnx_file_runs_without_this_repository(onnx_file):
    import onnx
    import onnxruntime

    session = onnxruntime.InferenceSession(onnx_file, providers=["CPUExecutionProvider"])
    assert [(item.name, item.type, item.shape) for item in (*session.get_inputs(), *session.get_outputs())] == [
        ("images", "tensor(uint8)", ["batch", "height", "width", 3]),
        ("labels", "tensor(uint8)", ["batch", "height", "width"]),
        ("probs", "tensor(float)", ["batch", 5, "height", "width"]),
    ]
    content = session.get_modelmeta().custom_metadata_map
    assert set(content) == {*KEYS, "min_size", "long_side", "reading", "background", "backbone"}
    assert json.loads(content["colours"])[3] == "#ff0000"
    proto = onnx.load(onnx_file)
    assert [item.version for item in proto.opset_import] == [20]
    assert not any(node.metadata_props for node in proto.graph.node)  # no paths of this machine
    assert not any("lorm" in item.name for item in proto.graph.initializer)


@pytest.mark.slow
def test_labels_only_raw_weights_another_opset_and_folder(run_folder, tmp_path, capsys):
    left = tmp_path / "new/.0123456789abcdef.part.onnx"  # by a process that was killed, see files.writing()
    left.parent.mkdir()
    left.write_bytes(b"half")
    content = torch.load(run_folder / "best.pt", weights_only=True)
    content["config"]["long_side"] = 40
    torch.save(content, tmp_path / "best.pt")
    run(tmp_path, "--weights", "raw", "--opset", "18", "--output", str(tmp_path / "new"))
    said = capsys.readouterr().out
    assert "random images only: --dataset_path nowhere: no such folder" in said
    assert "images must have a longer side of 40 pixels" in said
    assert "masks get smoother borders if the file is exported with --probs" in said
    assert "opset 18, IR version" in said
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["best.onnx"]
    model = OnnxModel(tmp_path / "new" / "best.onnx", CPU)
    images = smooth_images(2, 40, 30)
    expected = Predictor(varied_model("res50_ASPP_lorm", 5, seed=1)).labels(images)
    assert model.long_side == 40
    assert (model.labels(images) == expected).float().mean() > 0.99
    assert model.metadata["weights"] == "raw"
    with pytest.raises(UserError, match=r"best\.onnx: has no probabilities; export it again with --probs"):
        next(model.probs(images))


class Recorder(OnnxModel):
    """A file whose model returns what it gets: red's complement and red as scores, and the larger one as the class."""

    def __init__(self, long_side: int, scores: str = "probs"):
        self.path, self.got, self.long_side = Path("x"), [], long_side
        self.outputs = ["labels", scores] if scores else ["labels"]

    def run(self, images):
        self.got.append(images)
        red = images[..., 0] / 255
        scores = torch.stack([1 - red, red], dim=1)
        return (scores.argmax(1).to(torch.uint8), scores)[: len(self.outputs)]


@pytest.mark.parametrize("long_side", [0, 30, 180])
def test_exported_model_gets_images_of_its_long_side(long_side):
    """labels() and probs() take images of any size, and answer in their pixels."""
    model, images = Recorder(long_side), torch.zeros(2, 60, 90, 3, dtype=torch.uint8)
    images[:, :, 45:] = 200
    labels = model.labels(images)
    [(rows, probs)] = model.probs(images)
    assert [image.dtype for image in model.got] == [torch.uint8] * 2
    assert [image.shape[1:3] for image in model.got] == [{30: (20, 30), 180: (120, 180)}.get(long_side, (60, 90))] * 2
    assert (labels.shape, probs.shape, rows) == ((2, 60, 90), (2, 2, 60, 90), slice(0, 60))
    assert (labels[:, :, :40] == 0).all()  # 5 pixels from the edge, which is 3 pixels wide at a third of the size
    assert (labels[:, :, 50:] == 1).all()
    assert (probs.sum(1) - 1).abs().max() < 1e-5
    with pytest.raises(UserError, match="x with --long_side 60000: an image of 90x60 pixels would become 2400 million"):
        Recorder(60000).labels(images)


def test_masks_do_not_depend_on_whether_probabilities_are_asked_for():
    """A photo of 90 pixels and a model of 30. A file of labels alone has no more to resize than these."""
    images = torch.zeros(1, 60, 90, 3, dtype=torch.uint8)
    images[:, :, 45:] = 150
    # The model's column 14 is black; in 15 the second class has 150 / 255 = 0.59. They cover columns 42..44 and 45..47.
    # Between their centres, 43 and 46, it gets 0.59 / 3 in column 44 and 0.59 * 2 / 3 = 0.39 in column 45.
    edges = {"probs": 46, "logits": 46, "": 45}
    for scores, edge in edges.items():
        expected = (torch.arange(90) >= edge).to(torch.uint8).expand(1, 60, 90)
        assert torch.equal(Recorder(30, scores).labels(images), expected), scores
    [(_, probs)] = Recorder(30).probs(images)
    assert torch.equal(Recorder(30).labels(images), probs.argmax(1).to(torch.uint8))


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted({head.names[-1] for head in models.HEADS.values()}))
def test_every_model_is_traced_for_all_sizes(name):
    model = varied_model(name, 5, seed=0)
    whole = export_graph.WholeImage(model)
    program, least = export_graph.trace(whole), max(export_graph.MIN_SIZE, whole.min_size)
    for size in ((least, least + 2), (64, 80)):
        images = smooth_images(2, *size)
        labels = program.module()(images)[0]
        assert (labels == Predictor(model).labels(images)).float().mean() > 0.99


def test_an_export_of_a_vit_pads_and_cuts_as_pytorch_does(tmp_path):
    """75x53 is padded to 80x64, patches of 16; the cut map was too small in ONNX, which rounds towards 0."""
    pytest.importorskip("timm")
    from test_families import thin

    torch.manual_seed(0)
    model = models.build("linear", backbone=f"timm:{thin('test_vit')}", num_classes=5).eval()
    whole = export_graph.WholeImage(model, ("logits",))
    write_onnx(export_graph.trace(whole), tmp_path / "x.onnx", {"outputs": json.dumps(["labels", "logits"])}, 20)
    session = pytest.importorskip("onnxruntime").InferenceSession(tmp_path / "x.onnx")
    for size in ((75, 53), (64, 48), (97, 64)):
        images = smooth_images(2, *size)
        with torch.no_grad():
            expected = whole(images)[1]
        found = torch.from_numpy(session.run(["logits"], {"images": images.numpy()})[0])
        assert (found - expected).abs().max() < 1e-4 * expected.abs().max(), size


@pytest.fixture
def untraced(onnx_file, monkeypatch) -> None:
    """An export with --probs writes the file that is there already, since tracing takes seconds."""
    whole = onnx_file.read_bytes()
    monkeypatch.setattr(export, "trace", lambda graph: None)
    monkeypatch.setattr(export, "write_onnx", lambda traced, path, *_: str(path.write_bytes(whole)))


RUN = OnnxModel.run


def run_wrongly(model, images):
    labels, probs = RUN(model, images)
    return (labels + 1) % 5, probs


def fail(model, images):
    """As some networks of timm, which export, and then assert the sizes that they were traced with."""
    raise RuntimeError("Runtime assertion\nfailed for expression Ne(s90, 6)")


@pytest.mark.parametrize(
    ("faulty", "said"),
    [
        (run_wrongly, "pixels have another class than in PyTorch), so it was not kept"),
        (fail, "the ONNX file fails on images of (7, 13) (Runtime assertion failed for expression"),
    ],
)
def test_wrong_file_is_not_left_behind(run_folder, untraced, tmp_path, monkeypatch, faulty, said):
    (tmp_path / "best.onnx").write_text("segtrain_format: 0")
    run(run_folder, "--probs", "--output", str(tmp_path / "right.onnx"))
    (tmp_path / "right.onnx").unlink()
    monkeypatch.setattr(OnnxModel, "run", faulty)
    with refused(said):
        run(run_folder, "--probs", "--output", str(tmp_path))
    assert contents(tmp_path) == {"best.onnx": b"segtrain_format: 0"}


@pytest.mark.parametrize(
    ("offset", "num_ties", "fault"),
    [
        (0.0, 0, ""),
        (1e-5, 1, ""),
        (5e-4, 0, "1 of 12 pixels have another class"),
        (2.0, 0, "11 of 12 pixels have another class"),
        (-0.5, 0, "probs differ from PyTorch's by up to"),
        (float("nan"), 0, "11 of 12 pixels have another class"),
    ],
)
def test_only_what_rounding_explains_may_differ(offset, num_ties, fault):
    """Class 0 is ahead of class 1 by 1e-6 in one pixel, 2e-4 in another, and 1, the largest logit, in 10 others."""
    logits = torch.zeros(1, 2, 4, 3)
    logits[:, 0] = 1
    logits[:, 0, 0, 0], logits[:, 0, 1, 1] = 1e-6, 2e-4
    outputs = logits + torch.tensor([0, offset]).view(1, 2, 1, 1)
    outputs = {"labels": outputs.argmax(1).to(torch.uint8), "probs": outputs.softmax(1)}
    labels = logits.argmax(1).to(torch.uint8)
    if not fault:
        assert compare_outputs(labels, logits, outputs) == num_ties
        return
    with pytest.raises(AssertionError, match=fault):
        compare_outputs(labels, logits, outputs)


def test_logits_that_are_no_numbers_are_no_ties():
    zero, one = (torch.full((1, 1, 1), value, dtype=torch.uint8) for value in (0, 1))
    with pytest.raises(AssertionError, match="1 of 1 pixels have another class"):
        compare_outputs(zero, torch.full((1, 2, 1, 1), float("nan")), {"labels": one})


@pytest.mark.parametrize("name", EXTRAS)
def test_missing_package_is_named(name, run_folder, monkeypatch):
    for other in EXTRAS:
        monkeypatch.setitem(sys.modules, other, type(sys)(other))
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(UserError, match=rf"{name}.*: \S*python\S* -m pip install -e '\S*\[export\]'$"):
        run(run_folder)


def test_overlays_show_the_same_classes_as_those_of_the_checkpoint(run_folder, onnx_file, tmp_path):
    """With --background none, class 0 is painted and in the legend."""
    Image.fromarray(smooth_images(1, 64, 48)[0].numpy()).save(tmp_path / "photo.png")
    given = ["--input", str(tmp_path / "photo.png"), "--overlay", "--workers", "0", "--device", "cpu", "--output"]
    models = {"exported": ("--model", onnx_file), "trained": ("--checkpoint", run_folder / "best.pt")}
    for name, words in models.items():
        predict.main([*map(str, words), *given, str(tmp_path / name)])
    assert (np.array(Image.open(tmp_path / "trained/masks/photo.png")) == 0).any()
    exported, trained = (np.array(Image.open(tmp_path / name / "overlays/photo.jpg")).astype(int) for name in models)
    assert exported.shape == trained.shape
    assert np.abs(exported - trained).mean() < 5  # bf16 draws some borders elsewhere
    predict.main(["--model", str(onnx_file), *given, str(tmp_path / "zero"), "--background", "0"])
    assert Image.open(tmp_path / "zero/overlays/photo.jpg").height < len(trained)
    note = json.loads((tmp_path / "zero/predictions.json").read_text())  # another file of this name is another model
    assert note["model"] == hashlib.sha256(onnx_file.read_bytes()).hexdigest()


def test_onnx_file_that_is_not_whole_of_others_or_of_later_is_refused(onnx_file, tmp_path):
    import onnx

    path, whole = tmp_path / "other.onnx", onnx_file.read_bytes()
    with pytest.raises(UserError, match=r"other\.onnx: no such file"):
        OnnxModel(path, CPU)
    for content in (b"", b"not a model", whole[: len(whole) // 2]):
        path.write_bytes(content)
        with pytest.raises(UserError, match=r"other\.onnx: (ONNX Runtime .* cannot load it|not a file that)"):
            OnnxModel(path, CPU)
    proto = onnx.load(onnx_file)
    content = {item.key: item.value for item in proto.metadata_props}
    onnx.helper.set_model_props(proto, content | {"segtrain_format": "99"})
    onnx.save(proto, path)
    with pytest.raises(UserError, match=r"other\.onnx: written by a later version of segtrain \(format 99\)"):
        OnnxModel(path, CPU)
    onnx.helper.set_model_props(proto, {key: content[key] for key in KEYS})  # as an earlier version did
    onnx.save(proto, path)
    assert OnnxModel(path, CPU).num_classes == 5
    del proto.metadata_props[:]
    onnx.save(proto, path)
    with pytest.raises(UserError, match=r"other\.onnx: not a file that export\.py wrote"):
        OnnxModel(path, CPU)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--checkpoint", "nowhere.pt"], "--checkpoint nowhere.pt: cannot be read .*: name the FILE of a run"),
        (["--numclasses", "6"], "--numclasses 6 are missing"),
        (["--amp", "bf16"], "--amp: exported models compute in float32"),
        (["--image_path", "photos", "--output", "nowhere/photos/x"], "which programs read as input"),
        (["--opset", "17"], "--opset 17: must be at least 18"),
        (["--opset", "999"], "--opset 999: onnx .* knows 18 to"),
    ],
)
def test_wrong_flags_are_named(words, said, run_folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=said):
        export.main(["--checkpoint", str(run_folder / "best.pt"), "--classes", "", *words])
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


PHOTO = "dataset/demo/JPEGImages/demo_0096.jpg"  # which the snippets of the documentation read


def snippets() -> list[str]:
    text = (REPO / "docs/evaluation.md").read_text(encoding="utf-8")
    found = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert len(found) == 2
    return found


@pytest.mark.parametrize(("size", "orientation"), [((50, 67), 6), ((300, 420), 1), ((3, 400), 1), ((40, 30), 1)])
def test_the_snippet_without_this_repository_predicts_as_predict_does(
    onnx_file, tmp_path, monkeypatch, size, orientation
):
    """A photo that EXIF turns, a large one, one of which a side would become 0 pixels, and one to be enlarged."""
    import onnx

    name = "log/demo/best.onnx"
    (tmp_path / "log/demo").mkdir(parents=True)
    proto = onnx.load(onnx_file)
    del proto.graph.output[1:]  # without scores, predict.py resizes the mask, too
    content = {item.key: item.value for item in proto.metadata_props}
    onnx.helper.set_model_props(proto, content | {"outputs": '["labels"]', "long_side": "64"})
    onnx.save(proto, tmp_path / name)
    put(tmp_path / PHOTO, smooth_images(1, *size)[0].numpy(), exif=exif(orientation))
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    exec(snippets()[1], names)
    assert predict.main(["--model", name, "--input", PHOTO, "--workers", "0", "--device", "cpu"]) == 0
    expected = np.array(Image.open("predictions/masks/demo_0096.png"))
    assert expected.shape == (size[::-1] if orientation > 4 else size)
    assert np.array(names["mask"]).shape == expected.shape
    assert (np.array(names["mask"]) == expected).mean() > 0.99


def test_snippets_of_the_documentation_run(run_folder, onnx_file, tmp_path, monkeypatch):
    (tmp_path / "log").mkdir()
    (tmp_path / "log/demo").symlink_to(run_folder)
    put(tmp_path / PHOTO, smooth_images(1, 50, 67)[0].numpy())
    monkeypatch.chdir(tmp_path)
    for snippet in snippets():
        names: dict = {}
        exec(snippet, names)
        label = names["result"].mask if "result" in names else names["label"]
        assert label.shape == (50, 67)
        assert len(np.unique(label)) > 1
