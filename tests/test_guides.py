"""The words of the five guides that this project comes from: each is accepted with its meaning, or refused by its row.

recorded/guides.tsv has a word in each row: the guide, where it stands (cli or yaml), the words, and the result. `=flag
value` is accepted with this meaning, `=` is accepted, `?text` is refused by one line that has the text. At the end:
--task test and predict do what evaluate.py and predict.py do with best.pt of the config's run.
"""

import itertools
import json
import re
import shutil
from pathlib import Path

import pytest
import yaml
from conftest import REPO, TINY, flags, refused, succeed, two_processes

import evaluate
import predict
import train
from flags import FLAGS, Config, parse_flags
from flags.other_trainers import TABLE, other_names
from flags.programs import EVALUATE, EXPORT, PREDICT, PSEUDO, READER, TASKS
from support.errors import UserError
from training.task import program_words

LINES = (REPO / "tests/recorded/guides.tsv").read_text(encoding="utf-8").splitlines()
ROWS = [line.split("\t")[1:] for line in LINES[1:]]


def parse(form: str, words: str, tmp_path) -> Config:
    if form == "yaml":  # SECTION:/KEY:VALUE
        section, _, pair = words.partition("/")
        key, _, value = pair.partition(":")
        (tmp_path / "a.yaml").write_text(f"dataset_path: x\n{section}\n  {key}: {value}\n")
        return parse_flags(["--config", str(tmp_path / "a.yaml")])
    resume = ["--resume", "x.pt"] if "--reset" in words else []  # the guide has it too
    return parse_flags(["--dataset_path", "x", *words.split(), *resume])


@pytest.mark.parametrize(("form", "words", "result"), ROWS, ids=[f"{row[1]}" for row in ROWS])
def test_word_of_the_guides(form, words, result, tmp_path):
    if result.startswith("?"):
        with pytest.raises(UserError) as caught:
            parse(form, words, tmp_path)
        name = re.split(r"[= ]", words)[0]
        assert str(caught.value).startswith(f"unknown flag {name.replace('-', '_').replace('__', '--', 1)}: ")
        assert result[1:] in str(caught.value)
        assert "\n" not in str(caught.value)
        return
    cfg = parse(form, words, tmp_path)
    if result != "=":
        name, _, value = result[1:].partition(" ")
        assert getattr(cfg, name) == FLAGS[name].convert(yaml.safe_load(value) if name != "amp" else value, name)


def test_words_without_a_flag_of_their_own_name():
    words = "--valid-num-workers=4 --report-training-batch-acc --pin_memory true --prefetch_factor 3"
    words += " --find_unused_parameters False --set_to_none=True"
    cfg = parse_flags(["--dataset_path", "x", *words.split()])
    assert (cfg.val_workers, cfg.report_training_batch_acc, cfg.pin_memory, cfg.prefetch_factor) == (4, True, True, 3)
    with pytest.raises(UserError, match="unknown flag --find_unused_parameters: always false: each trained parameter"):
        parse_flags(["--dataset_path", "x", "--find_unused_parameters", "true"])


def test_a_switch_takes_true_and_false_as_in_yaml(tmp_path):
    given = {"true": True, "True": True, "false": False}
    for word, value in given.items():
        for words in ([f"--use_ddp={word}"], ["--use-ddp", word]):
            assert parse_flags(["--dataset_path", "x", *words, "--lr", "1"]).distributed is value
    with pytest.raises(UserError, match="unexpected argument 'maybe'"):
        parse_flags(["--dataset_path", "x", "--use_ddp", "maybe"])
    for words in (["--wandb=1"], ["--no_augment", "false"]):
        with pytest.raises(UserError, match=r"^--\w+ (1|false): give --\w+ true or false, or no value"):
            parse_flags(["--dataset_path", "x", *words])
    (tmp_path / "a.yaml").write_text("dataset_path: x\nddp: {enabled: true}\ntraining: {use_ddp: true}\n")
    assert parse_flags(["--config", str(tmp_path / "a.yaml")]).distributed is True  # one value by two names
    (tmp_path / "a.yaml").write_text("dataset_path: x\nbatch_size: 4\ntraining: {batchsize: 8}\n")
    with pytest.raises(UserError, match=r"'batchsize' is given twice \(batch_size and batchsize\), with two values"):
        parse_flags(["--config", str(tmp_path / "a.yaml")])


def test_a_note_says_what_a_word_means_here_if_that_differs():
    """batch_size is of all processes in guide 1, and of one in guides 2 to 4. warmup counts steps in guide 0."""
    notes = {
        "--batch_size 8": "images per process here; for all processes use --total_batchsize",
        "--warmup 8": "epochs here; for steps use --warmup_steps",
        "--save_dir x": "folder of all runs here; this run is its subfolder --name",
    }
    for words, note in notes.items():
        assert parse_flags(["--dataset_path", "x", *words.split()]).notes == [f"{words.split()[0]}: {note}"]
    for words in ("--num_workers 2", "--learning_rate 1", "--wd 0", "--use_augment"):
        assert parse_flags(["--dataset_path", "x", *words.split()]).notes == []


def test_other_programs_take_the_same_words():
    words = ["--num_workers=2", "--batch-size=3", "--use_ddp", "--num_classes=4"]
    for reader in (EVALUATE, PREDICT, PSEUDO):
        values, _, notes = reader.command_line(words)
        assert values == {"workers": 2, "val_batchsize": 3, "distributed": True, "numclasses": 4}
        assert notes == ["--batch_size: --val_batchsize here"]
    assert EXPORT.command_line(["--valid_batch_size", "5"])[0] == {"val_batchsize": 5}
    with pytest.raises(UserError, match=r"unknown flags --lr: a flag of train.py; --hidden_dim: of another model"):
        EVALUATE.command_line(["--lr", "1", "--hidden_dim", "2"])


@pytest.mark.parametrize("page", [TABLE, TABLE.with_name("coming_from.zh-CN.md")], ids=lambda page: page.name)
def test_the_table_says_yes_where_a_name_is_accepted(page, monkeypatch):
    monkeypatch.setattr("flags.other_trainers.TABLE", page)
    table = other_names.__wrapped__()
    accepted = {name for name, row in table.items() if row.accepted in ("yes", "是")}
    own = {"pin_memory", "prefetch_factor", "report_training_batch_acc", "wandb", "task", "grad_checkpointing"}
    assert accepted == {*READER.aliases, *own}
    assert own <= set(READER.flags)
    assert set(table) == set(other_names())
    assert not set(table) & set(READER.flags) - own


def test_task_hands_over_what_its_program_reads(tmp_path):
    words = "--task=test --config configs/demo.yaml --scales 0.5 1 --batch_size 3 --no_flip --lr 1 --name x"
    cfg = parse_flags(words.split())
    assert cfg.notes == ["--task test does not use --lr"]
    expected = ["--config", "configs/demo.yaml", "--scales", "0.5", "1.0", "--no_flip", "--val_batchsize", "3"]
    assert program_words(cfg, cfg.task_flags) == expected
    assert EVALUATE.command_line(expected)[0] == {"scales": (0.5, 1.0), "flip": False, "val_batchsize": 3}
    both = "--task=test --config configs/demo.yaml --val_batchsize 2 --batch_size 3"  # the flag's own name counts
    assert parse_flags(both.split()).task_flags == {"val_batchsize": 2}
    (tmp_path / "a.yaml").write_text("task: predict\ndataset_path: x\n")
    cfg = parse_flags([f"--config={tmp_path / 'a.yaml'}", "--probs"])  # the file's task decides what is a flag
    assert (cfg.task, cfg.name, cfg.task_flags) == ("predict", "a", {"probs": True})
    with pytest.raises(UserError, match=r"unknown flag --scales: a flag of evaluate\.py, predict\.py, pseudo\.py"):
        parse_flags(["--scales", "1"])
    assert set(TASKS) == set(FLAGS["task"].choices)


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
    with refused("log/other/best.pt: no such file: train this run first, or name a --check"):
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
    Path("broken.jpg").write_bytes(b"")
    assert train.main([*CONFIG, "--task", "predict", "--input", "broken.jpg", "--output", "two"]) == 1


def test_predict_takes_the_layout_of_the_run(demo_root, tmp_path, monkeypatch):
    """A run of plain folders, whose flags say nothing of the layout: training finds it."""
    monkeypatch.chdir(tmp_path)
    lists = demo_root / "ImageSets/SegmentationAug"
    for split, folder in itertools.product(("train", "val"), ("images", "masks")):
        source, end = ("JPEGImages", "jpg") if folder == "images" else ("SegmentationClassAug", "png")
        for name in (lists / f"{split}.txt").read_text().split():
            put = tmp_path / "plain" / folder / split / f"{name}.{end}"
            put.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(demo_root / source / put.name, put)
    words = flags(dataset=None, dataset_path=tmp_path / "plain", logdir="log", name="plain")
    assert train.main(words) == 0
    assert train.main(["--dataset_path", str(tmp_path / "plain"), "--name", "plain", "--task", "predict"]) == 0
    assert len([*Path("log/plain/predictions/masks").iterdir()]) == len((lists / "val.txt").read_text().split())
