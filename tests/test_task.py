"""train.py --task test and --task predict do what evaluate.py and predict.py do with best.pt of the config's run."""

import json
from pathlib import Path

import pytest
import yaml
from conftest import TINY, succeed, two_processes

import evaluate
import predict
import train
from support.errors import UserError

CONFIG = ["--config", "mine.yaml"]


@pytest.fixture
def trained(demo_root, tmp_path, monkeypatch) -> Path:
    """A folder with mine.yaml and log/mine, the config's run."""
    monkeypatch.chdir(tmp_path)
    values = TINY | {"dataset": "Dense", "model_type": "res50_ASPP", "dataset_path": str(demo_root)}
    Path("mine.yaml").write_text(yaml.safe_dump({"ddp": {"log_level": "INFO"}, "training": values}))
    assert train.main(CONFIG) == 0
    return tmp_path


def scores(words: list[str], program=train) -> dict:
    assert program.main([*words, "--json", "scores.json"]) == 0
    return json.loads(Path("scores.json").read_text())


def test_test_scores_as_evaluate_does_alone_and_on_two_processes(trained, capsys):
    expected = scores(["--checkpoint", "log/mine/best.pt", "--scales", "0.5", "1"], evaluate)
    assert scores([*CONFIG, "--task", "test", "--scales", "0.5", "1", "--lr", "3"]) == expected
    assert "--task test does not use --lr" in capsys.readouterr().out
    succeed(two_processes([*CONFIG, "--task=test", "--scales", "0.5", "1", "--json", "two.json"], trained))
    # The interval comes from a bootstrap over images in the order of ranks; everything else is exact.
    two = json.loads(Path("two.json").read_text())
    assert two["confusion"] == expected["confusion"]
    # The newest run that has a best.pt: an unfinished one has none.
    (trained / "log/mine.2").mkdir()
    assert scores([*CONFIG, "--task", "test"])["checkpoint"] == "log/mine/best.pt"
    with pytest.raises(
        UserError, match=r"^log/other/best\.pt: no such file: train this config first, or name a --check"
    ):
        train.main([*CONFIG, "--task", "test", "--name", "other"])


def test_predict_takes_the_validation_images(trained, demo_root):
    assert train.main([*CONFIG, "--task", "predict"]) == 0
    masks = sorted(Path("log/mine/predictions/masks").iterdir())
    names = (demo_root / "ImageSets/SegmentationAug/val.txt").read_text().split()
    assert [mask.stem for mask in masks] == sorted(names)
    assert len([*Path("log/mine/predictions/overlays").iterdir()]) == len(names)
    images = [str(demo_root / "JPEGImages" / f"{name}.jpg") for name in names]
    assert predict.main(["--checkpoint", "log/mine/best.pt", "--input", *images]) == 0
    assert all(mask.read_bytes() == Path("predictions/masks", mask.name).read_bytes() for mask in masks)
    assert train.main([*CONFIG, "--task", "predict", "--input", images[0], "--output", "one"]) == 0
    assert [mask.stem for mask in Path("one/masks").iterdir()] == names[:1]
