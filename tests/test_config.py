"""Flags: defaults, file, command line, and errors."""

import dataclasses
import re
import subprocess
import sys
from itertools import pairwise

import pytest
import yaml
from conftest import REPO, refused

import flags.reader
from flags import DEMO_CONFIG, FLAGS, READER, Config, as_dict, as_words, changes, check_flags, dump, parse_flags
from flags.declare import per_rank
from flags.loss_weights import LOSSES
from flags.programs import EVALUATE, EXPORT, PREDICT, PSEUDO
from flags.reader import FlagReader
from support import shell
from support.errors import UserError
from tools.compare import CompareFlags

DATA = ["--dataset_path", "somewhere"]
READERS = {"train": READER, "evaluate": EVALUATE, "predict": PREDICT, "export": EXPORT}
STAGES = "dataset_path: x\nlr: 1\nstages:\n  pretrain: {lr: 2, epochs: 3}\n  finetune: {optimisation: {lr: 4}}\n"


def parse_file(path, text: str, *words: str) -> Config:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return parse_flags(["--config", str(path), *words])


def test_command_line_overrides_file_overrides_default(tmp_path):
    file = tmp_path / "mine.yaml"  # YAML 1.1 reads 1e-2 as text
    cfg = parse_file(file, "dataset_path: somewhere\nlr: 1e-2\nepochs: 7\n", "--epochs", "9")
    assert (cfg.lr, cfg.epochs, cfg.batchsize) == (0.01, 9, 16)
    assert cfg.name == "mine"


PATHS = ("resume", "logdir", "name", "pretrained", "pseudo_path")
WRONG = [
    ("--epocs 3", "--epocs: did you mean --epochs?"),
    ("--crop 65", "unknown flag --crop: did you mean --crop_size?"),
    ("--use_amp", "unknown flag --use_amp: did you mean --amp?"),
    ("--steps 9", "--steps: did you mean --max_steps or --accum_steps or --warmup_steps?"),
    ("--l_se 1", "--l_se: did you mean --l_seg?"),  # a prefix is not the flag
    ("--freez 1", "unknown flag --freez: see --help"),  # not --freeze_bn
    ("--rdzv_backend c10d --standalone", "--rdzv_backend, --standalone: torchrun's: write it before train.py"),
    ("--gpus 4 --epocs -3 --x", "--epocs: did you mean --epochs?; --gpus: torchrun --nproc_per_node=N, or NUM_GPUS"),
    ("--model_type res50_lorm", "did you mean res50_ASPP_lorm?"),
    ("--layers 51", "One of 18, 34, 50, 101, 152"),
    ("--lr fast", "--lr: 'fast' is not a float"),
    ("--batchsize 2.5", "--batchsize: '2.5' is not an int"),
    ("--ema 1", "--ema 1.0: must be at least 0 and below 1"),
    ("--lr nan", "--lr nan: must be a finite number"),
    ("--dist_timeout inf", "--dist_timeout inf: must be a finite number"),
    ("--stride_in_1x1 --layers 18", "--stride_in_1x1 has no effect without --backbone resnet of 50"),
    ("--reset_optimizer", "--reset_optimizer has no effect without --resume"),
    ("--reset_data_offset --resume auto", "--reset_data_offset with --resume auto"),
    ("--pretrained coco --model_type deeplabv3", "--model_type deeplabv3_torchvision, --backbone resnet"),
    ("--freeze_bn train", "unexpected argument 'train': flags are written --name value"),
    ("--lr", "--lr: expected one argument"),
    *[(f"--{name}=", f"--{name} is empty: give a value, or drop it") for name in PATHS],
    ("--stage pretrain", "--stage pretrain without --config"),
    ("--scale 2 1", "--scale 2 1: give the least and the largest factor"),
    ("--hue 0.6", "--hue 0.6: must be at least 0 and at most 0.5"),
    ("--no_augment --no_flip_horizontal", "--flip_horizontal has no effect without --augment"),
    ("--betas 0.9 0.95", "--betas has no effect without --optimizer adamw"),
    ("--optimizer adamw --betas 0.9", "--betas: give two numbers"),
    ("--optimizer adam", "--optimizer: 'adam' is not known: did you mean adamw?"),
    ("--optimizer adamw --betas 0.9 1", "--betas 1.0: must be at least 0 and below 1"),
    ("--head_lr_factor 0", "--head_lr_factor 0.0: must be above 0"),
    ("--long_side 1", "--long_side 1: give 16 pixels"),
    ("--long_side 80 --distancemap_s x", "--distancemap_s x with --long_side 80"),
    ("--long_side 80 --distancemap_c x", "--distancemap_c x with --long_side 80"),
    ("--loss dicee", f"'dicee' is not known: did you mean dice? Add up {', '.join(LOSSES)} or FILE.py:NAME"),
    ("--loss ce+", "--loss ce+: '' is not known"),
    ("--loss ce+ce", "'ce' is there twice"),
    ("--loss ce+-1*dice", "'-1' is not a factor: give a number above 0, as in 0.5*dice"),
    ("--loss nan*dice", "'nan' is not a factor"),
    ("--bands 1 2", "--bands 1 2: give one band or three"),
    ("--bands 0", "--bands 0: must be at least 1"),
    ("--bands 4,,2", "--bands: '"),
    ("--bands 4, 3 2", "--bands: '"),
    ("--value_range 5 5", "--value_range 5 5: give LOW and a larger HIGH"),
    ("--value_range 0 1 2 3", "--value_range 0 1 2 3: give LOW and a larger HIGH, or three such pairs"),
    ("--value_range 0 inf", "must be a finite number"),
    ("--stretch 98 2", "--stretch 98 2: give a low and a higher percentile"),
    ("--stretch 2", "--stretch 2: give a low and a higher percentile"),
]
for weights in ("1,2", "1,-2,1", "1,x,1", "1,nan,1", "0,0,0", "balance"):
    named = f"--class_weights {weights}: give none, balanced or 3 numbers of at least 0"
    WRONG.append((f"--numclasses 3 --class_weights {weights}", named))
for name in ("/a", "../a", "a/", "a//b", ".", "a\\..\\b"):
    WRONG.append((f"--name {name}", f"--name {name}: must be a folder below --logdir"))


@pytest.mark.parametrize(("words", "named"), WRONG)
def test_wrong_flags_are_named_in_one_line(words, named):
    with refused(named):
        parse_flags([*DATA, *words.split()])


IDLE = """--head_channels 64,--stride_rate 0.5,--dataset Folder --lorm_scope all,--dataset Folder --label_smooth 0.2
--dataset Folder --l_lorm 2,--dataset ScribblePseudo --l_ds 2,--dataset ScribblePseudoDs --l_dc 2
--dataset ScribbleOnly --pseudo_path x,--dataset ScribblePseudoDc --distancemap_s x,--freeze_bn --sync_bn on
--val_epoch_frequency 0 --val_start_epoch 2,--keep 2,--dataset PseudoOnly --loss dice
--model_type res50_ASPP --l_lorm 2,--no_augment --hue 0.1,--optimizer adamw --momentum 0.5
--val_epoch_frequency 0 --patience 2"""


@pytest.mark.parametrize("words", IDLE.replace("\n", ",").split(","))
def test_a_flag_without_effect_is_named(words, tmp_path):
    *others, name, value = words.split()
    with pytest.raises(UserError, match=f"^{name} has no effect without .*: add that, or drop {name}$"):
        parse_flags([*DATA, *others, name, value])
    if value.isdigit():
        assert parse_flags([*DATA, *others, name, "0" if name != "--head_channels" else "256"])  # off, or the default
    # The command line takes the effect from the file's flag: that is said, and the run goes on.
    if others[:1] == ["--dataset"]:
        file = f"dataset_path: x\ndataset: ScribblePseudoDsDc\n{name[2:]}: {value}\n"
        if name != "--loss":
            said = f"{name[2:]} of {tmp_path / 'a.yaml'} has no effect without "
            assert [note for note in parse_file(tmp_path / "a.yaml", file, *others).notes if note.startswith(said)]


def test_flags_are_checked_again_after_the_recipe():
    words = ["--backbone", "timm:resnet18", "--betas", "0.8", "0.9"]
    cfg = parse_flags([*DATA, *words])  # the recipe will choose adamw
    with pytest.raises(UserError, match="--betas has no effect without --optimizer adamw"):
        check_flags(cfg, is_final=True)
    check_flags(dataclasses.replace(cfg, optimizer="adamw"), is_final=True)
    cfg = dataclasses.replace(parse_flags([*DATA, "--distancemap_s", "x"]), long_side=700)
    with pytest.raises(UserError, match="--distancemap_s x with --long_side 700"):
        check_flags(cfg, is_final=True)


def test_both_of_two_flags_that_replace_each_other():
    for pair in ("batchsize total_batchsize", "warmup_epochs warmup_steps", "epochs max_steps"):
        replaced, name = (f"--{flag}" for flag in pair.split())
        notes = parse_flags([*DATA, replaced, "4", name, "8"]).notes
        assert notes == [f"{replaced} is not used: {name} 8 replaces it"]


ALIASES_OF_ALIASES = "a: &a [x, x, x, x]\n" + "".join(
    f"{y}: &{y} [*{x}, *{x}, *{x}, *{x}]\n" for x, y in pairwise("abcdefghijk")
)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("dataset_path: x\nlr: [1]", "lr: ['1'] is not a float"),
        ("lr: 2020-13-45", "lr: '2020-13-45' is not a float"),
        ('lr: !!int "abc"', "lr: 'abc' is not a float"),
        ("lr: !!timestamp x", "lr: 'x' is not a float"),
        ("a: b: c", "wrong.yaml: not YAML (mapping values are not allowed here in line 1, column 5"),
        ("epochs: 010", "epochs: 010 is 8 in YAML 1.1, 10 in YAML 1.2: write it without leading zeros"),
        ("betas: [0.9, 010]", "betas: 010 is 8"),
        ("epochs: 0x10", "epochs: '0x10' is not an int"),
        (f"epochs: {'1' * 5000}", "epochs: '111111111... (5000 digits)' is not an int"),
        (f"dataset_path: x\nepochs: {'1' * 30}", "must have at most 64 bits"),
        ("name: ~", "name: None is not a str"),
        ("lr: " + "[" * 3000, "not YAML (more than 50 levels)"),
        (ALIASES_OF_ALIASES, "not YAML (50000 values or more)"),
        ("lr: &a [*a]", "not YAML (50000 values or more)"),
        ("#" * 2**20 + "\n", "1048577 bytes, but at most 1048576 are read"),
        (b"name: \xe9", "not UTF-8 text"),
        (f"lr: {'x' * 9000}", "xxxxx ... xxxxx"),
        ("dataset_path: x\nfreeze_bn: 1", "freeze_bn: '1' is not true or false"),
        ("- a list", "expected lines 'flag: value', found a list"),
        ("{", "not YAML"),
        ("l_pesudo: 1\nl_pseudo: 2", "given twice"),
        ("lr: 1\nlr: 2", "'lr' is given twice"),
        ("trainer: {epocs: 2, gpus: 2}", "unknown keys 'epocs': did you mean epochs?; 'gpus': torchrun --nproc"),
        ("stages: [pretrain]", "stages: expected a section of flags"),
        (STAGES, "--stage is not set, but there are stages in"),
    ],
)
def test_wrong_files_are_named(tmp_path, text, named):
    with pytest.raises(UserError) as caught:
        parse_file(tmp_path / "wrong.yaml", text)
    assert named in str(caught.value)
    assert len(str(caught.value)) < 2100
    assert str(tmp_path / "wrong.yaml") in str(caught.value)


@pytest.mark.parametrize("text", ["010", "007", "1.10", "1e3", "0x10", "1_000", "12:30:45", "2024-01-02", "no", "+5"])
def test_a_text_flag_of_a_file_has_its_text_as_written(tmp_path, text):
    """YAML 1.1 reads 010 as 8, and "no" as false. Numbers and switches are as before."""
    words = "dataset_path: x\nsync_bn: off\namp: no\naugment: No\nfind_unused_parameters: off\nepochs: 5.0\nlr: 1_0.5\n"
    cfg = parse_file(tmp_path / "a.yaml", f"{words}train_split: {text}\nname: {text}\n")
    assert (cfg.name, cfg.train_split) == (text, text)
    assert (cfg.sync_bn, cfg.amp, cfg.augment, cfg.epochs, cfg.lr) == ("off", "none", False, 5, 10.5)


# Names of earlier launch scripts get a line with today's name. Names that mean exactly the same get none.
RENAMED = """pesudo_path=pseudo_path l_pesudo=l_pseudo l_segs=l_seg warmup_epoch=warmup_epochs
chk_interval=save_epoch_frequency val_epoch=val_start_epoch model_path=pretrained"""
ALIASES = """num_workers=workers learning_rate=lr weight_decay=wdecay max_epochs=epochs num_classes=numclasses
gradient_accumulation_steps=accum_steps resume_from_checkpoint=resume"""


def test_an_alias_is_accepted_and_a_renamed_flag_gets_a_line():
    for alias, name in (pair.split("=") for pair in f"{RENAMED} {ALIASES}".split()):
        for word in (f"--{alias}=4", f"--{alias.replace('_', '-')}=4"):
            cfg = parse_flags([*DATA, word])
            assert getattr(cfg, name) == FLAGS[name].kind("4")
            assert [note[: len(alias) + 6 + len(name)] for note in cfg.notes] == (
                [f"--{alias}: --{name}"] if alias in RENAMED.replace("=", " ").split() else []
            )
    for word, value in (("--ddp", True), ("--no_ddp", False), ("--no-ddp", False)):
        assert parse_flags([*DATA, word]).distributed is value


def test_sections_stages_and_the_command_line(tmp_path):
    """Each overrides what comes before it. A flag also discards the flag that replaces it."""
    guide = "ddp:\n  enabled: true\n  log_level: WARNING\ntraining:\n  augment: false\ndataset_path: x\n"
    cfg = parse_file(tmp_path / "guide.yaml", guide)
    assert (cfg.distributed, cfg.log_level, cfg.augment) == (True, "WARNING", False)
    file = tmp_path / "two.yaml"
    first = parse_file(file, STAGES, "--stage", "pretrain")
    assert (first.lr, first.epochs, first.name) == (2, 3, "two-pretrain")
    second = parse_file(file, STAGES, "--stage", "finetune", "--epochs", "9")
    assert (second.lr, second.epochs, second.name) == (4, 9, "two-finetune")
    named = STAGES + "  3: {lr: 5}\nname: mine\n"
    assert parse_file(file, named, "--stage", "3").name == "mine-3"  # stages never share a folder
    assert parse_file(file, named, "--stage", "3", "--name", "x").name == "x"
    with pytest.raises(UserError, match=r"--stage finetun: not in .*two.yaml: it has pretrain, finetune"):
        parse_file(file, STAGES, "--stage", "finetun")
    text = "dataset_path: x\ntotal_batchsize: 32\nbatchsize: 8\nmax_steps: 9\nwarmup_steps: 2\n"
    cfg = parse_file(file, text, "--batchsize", "4", "--epochs", "5", "--warmup_epochs", "1")
    assert (cfg.total_batchsize, cfg.max_steps, cfg.warmup_steps) == (0, 0, -1)
    text = "dataset_path: x\ntotal_batchsize: 32\nstages:\n  one: {batchsize: 2}\n"
    assert parse_file(file, text, "--stage", "one").total_batchsize == 0


def test_flags_with_values_that_begin_with_a_dash_survive_the_command_line():
    """The commands that programs print have words of as_words()."""
    words = as_words({"label_suffix": "-mask", "name": "-x", "value_range": (-1e-05, 0.3), "lr": 0.1})
    cfg = parse_flags([*DATA, *words])
    assert (cfg.label_suffix, cfg.name, cfg.value_range, cfg.lr) == ("-mask", "-x", (-1e-05, 0.3), 0.1)
    assert parse_flags([*DATA, "--value_range", "-1e-05", "-.5e-7"]).value_range == (-1e-05, -5e-08)


def test_numbers_with_commas_between_them_and_large_ones():
    cfg = parse_flags([*DATA, "--bands", "4,3,2", "--value_range", "0,1.5", "--seed", str(2**60 + 1)])
    assert (cfg.bands, cfg.value_range) == ((4, 3, 2), (0, 1.5))
    assert cfg.seed == 2**60 + 1  # no float64 is equal to it


def test_dashes_equal_underscores_and_switches_have_a_no():
    cfg = parse_flags([*DATA, "--grad-checkpointing", "--local-rank", "1", "--no-distributed"])
    assert (cfg.grad_checkpointing, cfg.local_rank, cfg.distributed, cfg.notes) == (True, 1, False, [])
    for words, value in (([], None), (["--distributed"], True), (["--no_distributed"], False)):
        assert parse_flags([*DATA, *words]).distributed is value


def test_saved_config_repeats_the_run(tmp_path):
    cfg = parse_flags([*DATA, "--lr", "0.3", "--distributed", "--rank", "0", "--resume", "auto", "--name", "x"])
    file = tmp_path / "config.yaml"
    again = parse_file(file, dump(cfg))
    assert changes(as_dict(cfg), again) == ""
    assert (again.resume, again.rank, again.name) == ("", -1, "x")
    assert changes(as_dict(cfg), parse_flags(["--config", str(file), "--lr", "0.5"])) == "lr: 0.3 -> 0.5"


def test_without_data_the_config_is_the_demos_or_the_resumed_runs(tmp_path, monkeypatch):
    cfg = parse_flags([])
    assert (cfg.dataset_path, cfg.name, cfg.dataset) == ("dataset/demo", "demo", "ScribblePseudoDsDc")
    assert any("--dataset_path" in note for note in cfg.notes)
    (tmp_path / "config.yaml").write_text("dataset_path: there\nepochs: 3\nname: before\nzero1: true\n")
    cfg = parse_flags(["--resume", str(tmp_path / "last.pt")])
    assert (cfg.dataset_path, cfg.epochs, cfg.name) == ("there", 3, "before")
    assert any("zero1 is not a flag of this version" in note for note in cfg.notes)  # of an earlier one
    monkeypatch.chdir(tmp_path)
    for words in ([], ["--resume", "auto"]):  # a file of the user's that has this name
        with pytest.raises(UserError, match="unknown key 'zero1'"):
            parse_flags(["--config", "config.yaml", *words])
    (tmp_path / "config.yaml").rename(tmp_path / "moved.yaml")
    (tmp_path / "last.pt").touch()
    with pytest.raises(UserError, match=r"--resume .*last\.pt: no config\.yaml beside it: add the run's --config FILE"):
        parse_flags(["--resume", str(tmp_path / "last.pt")])  # not the demo


@pytest.mark.parametrize(("resume", "names_the_demo"), [("nowhere/last.pt", False), ("auto", True)])
def test_a_missing_file_to_resume_does_not_start_the_demo(resume, names_the_demo, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    notes = parse_flags(["--resume", resume]).notes
    assert any("training on the demo" in note for note in notes) == names_the_demo


def test_every_config_file_parses():
    files = sorted(DEMO_CONFIG.parent.glob("*.yaml"))
    assert len(files) >= 3
    for file in files:
        for stage in yaml.safe_load(file.read_text()).get("stages", [None]):
            cfg = parse_flags(["--config", str(file), *(["--stage", stage] if stage else [])])
            assert not set(re.findall(r"^(\w+): ", "\n".join(cfg.notes), re.M)) & set(READER.renamed)  # our names


def test_paths_and_places_may_differ_between_ranks():
    expected = "dataset_path logdir classes label_map resume workers device distributed dist_url world_size rank"
    assert per_rank(parse_flags(DATA)) >= {*expected.split(), "local_rank", "notes", "given"}
    assert not per_rank(parse_flags(DATA)) & {"lr", "seed", "batchsize", "dataset"}


@pytest.mark.parametrize(("package", "start"), [("segtrain", "-m segtrain."), ("", "")])
def test_usage_is_a_command_that_starts_the_program(monkeypatch, package, start):
    """An installed package has no predict.py in the current folder."""
    monkeypatch.setattr(shell, "PACKAGE", package)
    monkeypatch.setattr(flags.reader, "PACKAGE", package)
    for name, reader in (READERS | {"pseudo": PSEUDO}).items():
        assert reader._parser().format_usage().startswith(f"usage: python {start}{name}{'' if package else '.py'} [")
    usage = FlagReader(CompareFlags, "-m tools.compare", "")._parser().format_usage()
    assert usage.startswith(f"usage: python -m {package and 'segtrain.'}tools.compare RUNS [")


@pytest.mark.parametrize("program", READERS)
def test_help_and_a_wrong_flag_answer_without_torch(program):
    code = (
        f"import runpy, sys; sys.argv = ['{program}.py', *sys.argv[1:]]\n"
        "try: runpy.run_path(sys.argv[0], run_name='__main__')\n"
        "finally: assert not {'torch', 'numpy', 'cv2'} & set(sys.modules)\n"
    )
    help, wrong = (
        subprocess.run([sys.executable, "-c", code, flag], cwd=REPO, capture_output=True, text=True, check=False)
        for flag in ("--help", "--wieght")
    )
    assert (help.returncode, help.stderr) == (0, "")
    for name in READERS[program].flags:
        assert re.search(rf"\n  --{name}\s", help.stdout)
    assert wrong.returncode == 2
    assert wrong.stderr.startswith("error: unknown flag --wieght: ")
    assert wrong.stderr.count("\n") == 1
