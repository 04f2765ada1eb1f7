"""Flags: defaults, file, command line, and errors."""

import re
import subprocess
import sys

import pytest
import yaml
from conftest import REPO

import config
from config.flags import per_rank
from config.programs import EVALUATE, EXPORT, PREDICT, EvaluateFlags
from support.errors import UserError

DATA = ["--dataset_path", "somewhere"]
READERS = {"train": config.READER, "evaluate": EVALUATE, "predict": PREDICT, "export": EXPORT}
STAGES = "dataset_path: x\nlr: 1\nstages:\n  pretrain: {lr: 2, epochs: 3}\n  finetune: {optimisation: {lr: 4}}\n"


def parse_file(path, text: str, *words: str) -> config.Config:
    path.write_text(text)
    return config.parse(["--config", str(path), *words])


def test_command_line_overrides_file_overrides_default(tmp_path):
    file = tmp_path / "mine.yaml"  # YAML 1.1 reads 1e-2 as text
    cfg = parse_file(file, "dataset_path: somewhere\nlr: 1e-2\nepochs: 7\n", "--epochs", "9")
    assert (cfg.lr, cfg.epochs, cfg.batchsize) == (0.01, 9, 16)
    assert cfg.name == "mine"


def test_recipe_of_the_paper_is_the_default():
    cfg = config.parse(DATA)
    recipe = (cfg.momentum, cfg.wdecay, cfg.lr, cfg.epochs, cfg.batchsize, cfg.crop_size)
    assert recipe == (0.9, 5e-4, 1e-3, 50, 16, 465)
    assert (cfg.model_type, cfg.layers, cfg.warmup_epochs) == ("res50_ASPP_lorm", 50, -1.0)


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--epocs", "3"], "--epocs: did you mean --epochs?"),
        (["--l_se", "1"], "--l_se: did you mean --l_seg?"),  # F7: a prefix is not the flag
        (["--epoch=3"], "--epoch: did you mean --epochs?"),
        (["--model_type", "res50_lorm"], "did you mean res50_ASPP_lorm?"),  # C6, E2
        (["--layers", "51"], "One of 18, 34, 50, 101, 152"),  # C10
        (["--lr", "fast"], "--lr: 'fast' is not a float"),
        (["--batchsize", "2.5"], "--batchsize: '2.5' is not an int"),
        (["--batchsize", "0"], "--batchsize 0: must be at least 1"),
        (["--ema", "1"], "--ema 1.0: must be at least 0 and below 1"),
        (["--numclasses", "256"], "--numclasses 256: must be at least 2 and at most 255"),
        (["--seed", str(2**63)], f"must be at least 0 and below {2**63}"),
        (["--lr", "nan"], "--lr nan"),
        (["--lr", "inf"], "--lr inf: must be a finite number"),
        (["--epochs", "2", "--warmup_epochs", "5"], "--warmup_epochs 5 with --epochs 2"),  # D24
        (["--epochs", "1", "--warmup=100"], "or a number of optimizer steps by --warmup_steps"),  # as in guide 0
        (["--stride_in_1x1", "--layers", "18"], "--stride_in_1x1 has no effect without --backbone resnet of 50"),
        (
            ["--pretrained", "coco", "--model_type", "deeplabv3_torchvision", "--layers", "18"],
            "--pretrained coco with --model_type deeplabv3_torchvision of ResNet-18: torchvision has these weights for",
        ),
        (
            ["--pretrained", "coco", "--model_type", "deeplabv3"],
            "--model_type deeplabv3_torchvision, --backbone resnet",
        ),
        (
            ["--model_type", "unet", "--output_stride", "32"],
            "--output_stride has no effect without a --model_type other",
        ),
        (["surplus"], "unexpected argument 'surplus': flags are written --name value"),
        (["--freeze_bn", "train"], "unexpected argument 'train'"),
        (["-lr", "1"], "unknown flag -lr: did you mean --lr?"),
        (
            ["--gpus", "4", "--epocs", "-3", "--x"],
            "unknown flags --epocs: did you mean --epochs?; --gpus, --x: see --help",
        ),
        (["--lr"], "--lr: expected one argument"),
        (["--stage", "pretrain"], "--stage pretrain without --config"),
    ],
)
def test_wrong_flags_are_named(words, named):
    with pytest.raises(UserError) as caught:
        config.parse([*DATA, *words])
    assert named in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("dataset_path: x\nepocs: 3", "unknown key 'epocs': did you mean epochs?"),
        ("dataset_path: x\nlr: [1]", "lr: [1] is not a float"),
        ("dataset_path: x\nsync_bn: yes", "sync_bn: True is not a str"),
        ("dataset_path: x\nfreeze_bn: 1", "freeze_bn: 1 is not true or false"),
        ("- a list", "expected lines 'flag: value', found a list"),
        ("{", "not YAML"),
        ("l_pesudo: 1\nl_pseudo: 2", "given twice"),
        ("lr: 1\ntraining:\n  lr: 2", "'lr' is given twice"),
        ("training:\n  epocs: 2", "unknown key 'epocs': did you mean epochs?"),
        ("lr: 1\nlr: 2", "'lr' is given twice"),
        ("task: predict", "task: predict: it belongs on the command line, as --task"),
        ("config: other.yaml", "unknown key 'config': see --help"),
        ("trainer: {epocs: 2, gpus: 2}", "unknown keys 'epocs': did you mean epochs?; 'gpus': see --help"),
        ("warmup_epochs: .inf", "warmup_epochs inf: must be a finite number"),
        ("warmup_epochs: -5", "warmup_epochs -5.0: must be at least -1"),
        ("stages: [pretrain]", "stages: expected a section of flags"),
        (STAGES, "--stage is not set, but there are stages in"),
        (STAGES, "it has pretrain, finetune"),
    ],
)
def test_wrong_files_are_named(tmp_path, text, named):
    with pytest.raises(UserError) as caught:
        parse_file(tmp_path / "wrong.yaml", text)
    assert named in str(caught.value)
    assert str(tmp_path / "wrong.yaml") in str(caught.value)
    assert "\n" not in str(caught.value)


TYPOS = """epoch epochs, nmae name,
seeds seed, resum resume, batchsiz batchsize, lerning_rate lr, modle_type model_type,
datasetpath dataset_path, num_class numclasses, worker workers, crop_siz crop_size, pretraind pretrained,
save_epoch_freq save_epoch_frequency, no_augmnet no_augment"""
# Names of other trainers that are near to names of ours by letters and not in meaning.
NO_HINT = """drop_rates train_paths_root lr_noise max_det sched_on test_interval log_images val_plots optimizer_type
encoder_name early_stopping no_resume_opt freeze norm_weight_decay bn_momentum start_epoch val_interval vflip
master_port use_mixed_precision train_data pdb_path output_dir"""


def test_typos_are_recognised_and_other_words_are_not():
    for typo, ours in [*(pair.split() for pair in TYPOS.split(",")), *((name, "") for name in NO_HINT.split())]:
        with pytest.raises(UserError) as caught:
            config.parse([*DATA, f"--{typo}", "1"])
        assert f"unknown flag --{typo}: {f'did you mean --{ours}?' if ours else 'see --help'}" in str(caught.value)


# Names of earlier launch scripts and of the guides, or of other trainers where they mean exactly the same.
ALIASES = """pesudo_path=pseudo_path l_pesudo=l_pseudo l_segs=l_seg warmup=warmup_epochs warmup_epoch=warmup_epochs
chk_interval=save_epoch_frequency val_epoch=val_start_epoch model_path=pretrained ddp=distributed
batch_size=batchsize num_workers=workers learning_rate=lr weight_decay=wdecay max_epochs=epochs
gradient_accumulation_steps=accum_steps num_classes=numclasses gradient_checkpointing=grad_checkpointing
resume_from_checkpoint=resume"""


@pytest.mark.parametrize("pair", ALIASES.split())
def test_an_alias_is_accepted_with_a_note(pair):
    alias, name = pair.split("=")
    if config.FLAGS[name].kind is bool:
        words = {f"--{alias}": True, f"--no_{alias}": False, f"--no-{alias.replace('_', '-')}": False}
    else:
        value = config.FLAGS[name].kind("0.3" if name == "ema" else "4")
        words = {f"--{alias}={value}": value, f"--{alias.replace('_', '-')}={value}": value}
    for word, value in words.items():
        cfg = config.parse([*DATA, word])
        assert getattr(cfg, name) == value
        no = "no_" if value is False else ""
        note = f"--{no}{alias} is now --{no}{name}"
        assert cfg.notes[0] == note if no else cfg.notes[0].startswith(f"{note}: ")


def test_dashes_equal_underscores_and_switches_have_a_no():
    cfg = config.parse([*DATA, "--grad-checkpointing", "--local-rank", "1", "--no-distributed"])
    assert (cfg.grad_checkpointing, cfg.local_rank, cfg.distributed, cfg.notes) == (True, 1, False, [])
    assert config.parse(DATA).distributed is None
    assert config.parse([*DATA, "--distributed"]).distributed is True
    assert config.parse([*DATA, "--no_distributed"]).distributed is False


def test_sections_of_a_file_are_for_the_reader(tmp_path):
    ddp, training = "ddp:\n  enabled: true\n  log_level: WARNING\n", "training:\n  augment: false\n  weight_decay: 4\n"
    cfg = parse_file(tmp_path / "guide.yaml", f"{ddp}{training}dataset_path: x\n")
    assert (cfg.distributed, cfg.log_level, cfg.augment, cfg.wdecay) == (True, "WARNING", False, 4)
    assert cfg.notes == [
        "enabled is now distributed: join a process group",
        "weight_decay is now wdecay: weight decay",
    ]


def test_a_stage_overrides_the_file_and_the_command_line_overrides_it(tmp_path):
    file = tmp_path / "two.yaml"
    first = parse_file(file, STAGES, "--stage", "pretrain")
    assert (first.lr, first.epochs, first.name) == (2, 3, "two-pretrain")
    second = parse_file(file, STAGES, "--stage", "finetune", "--epochs", "9")
    assert (second.lr, second.epochs, second.name) == (4, 9, "two-finetune")
    named = STAGES + "  3: {lr: 5}\nname: mine\n"
    third = parse_file(file, named, "--stage", "3")
    assert (third.lr, third.name) == (5, "mine-3")  # stages never share a folder
    assert parse_file(file, named, "--stage", "3", "--name", "x").name == "x"
    with pytest.raises(UserError, match=r"--stage finetun: not in .*two.yaml: it has pretrain, finetune"):
        parse_file(file, STAGES, "--stage", "finetun")


def test_a_flag_overrides_the_files_flag_that_replaces_it(tmp_path):
    file, text = (
        tmp_path / "mine.yaml",
        "dataset_path: x\ntotal_batchsize: 32\nbatchsize: 8\nmax_steps: 9\nwarmup_steps: 2\n",
    )
    cfg = parse_file(file, text)
    assert (cfg.total_batchsize, cfg.max_steps, cfg.warmup_steps) == (32, 9, 2)
    cfg = parse_file(file, text, "--batchsize", "4", "--epochs", "5", "--warmup_epochs", "1")
    assert (cfg.total_batchsize, cfg.max_steps, cfg.warmup_steps) == (0, 0, -1)
    cfg = parse_file(file, text, "--batchsize", "4", "--total_batchsize", "16")
    assert (cfg.total_batchsize, cfg.batchsize) == (16, 4)
    text = "dataset_path: x\ntotal_batchsize: 32\nstages:\n  one: {batchsize: 2}\n"
    assert parse_file(file, text, "--stage", "one").total_batchsize == 0


def test_saved_config_repeats_the_run(tmp_path):
    cfg = config.parse([*DATA, "--lr", "0.3", "--distributed", "--rank", "0", "--resume", "auto", "--name", "x"])
    file = tmp_path / "config.yaml"
    again = parse_file(file, config.dump(cfg))
    assert config.changes(config.as_dict(cfg), again) == ""
    assert (again.resume, again.rank, again.name) == ("", -1, "x")
    assert config.changes(config.as_dict(cfg), config.parse(["--config", str(file), "--lr", "0.5"])) == "lr: 0.3 -> 0.5"


def test_without_data_the_config_is_the_demos_or_the_resumed_runs(tmp_path):
    cfg = config.parse([])
    assert (cfg.dataset_path, cfg.name, cfg.dataset) == ("dataset/demo", "demo", "ScribblePseudoDsDc")
    assert any("--dataset_path" in note for note in cfg.notes)
    (tmp_path / "config.yaml").write_text("dataset_path: there\nepochs: 3\nname: before\n")
    cfg = config.parse(["--resume", str(tmp_path / "last.pt")])
    assert (cfg.dataset_path, cfg.epochs, cfg.name) == ("there", 3, "before")


def test_every_config_file_parses():
    files = sorted(config.DEMO_CONFIG.parent.glob("*.yaml"))
    assert len(files) >= 3
    for file in files:
        for stage in yaml.safe_load(file.read_text()).get("stages", [None]):
            cfg = config.parse(["--config", str(file), *(["--stage", stage] if stage else [])])
            assert not [note for note in cfg.notes if " is now " in note]  # by our own names


def test_every_flag_has_help_and_a_default_within_its_limits():
    for item in (item for reader in READERS.values() for item in reader.flags.values()):
        assert item.help
        assert item.group
        if item.default not in (None, ""):
            assert item.convert(list(item.default) if item.is_list else item.default, "") == item.default
    aliases = [alias for item in config.FLAGS.values() for alias in item.aliases.split()]
    assert len(aliases) == len({*aliases, *config.FLAGS}) - len(config.FLAGS)


PER_RANK = """dataset_path logdir classes label_map resume workers device distributed dist_url
world_size rank local_rank notes given"""


def test_paths_and_places_may_differ_between_ranks():
    assert per_rank(config.parse(DATA)) == set(PER_RANK.split())
    assert per_rank(EvaluateFlags()) >= {"checkpoint", "compare", "json", "save_dir", "report"}


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
    for name, item in READERS[program].flags.items():
        assert re.search(rf"\n  --{name}\s", help.stdout)
        assert f"\n{item.group}:\n" in help.stdout
    assert wrong.returncode == 2
    assert wrong.stderr.startswith("error: unknown flag --wieght: ")
    assert wrong.stderr.count("\n") == 1
