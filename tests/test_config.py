"""Flags: defaults, file, command line, and what is refused."""

import pytest
import yaml

import config
from errors import UserError

DATA = ["--dataset_path", "somewhere"]


def test_command_line_goes_over_file_goes_over_default(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text("dataset_path: somewhere\nlr: 1e-2\nepochs: 7\n")  # YAML 1.1 reads 1e-2 as text
    cfg = config.parse(["--config", str(file), "--epochs", "9"])
    assert (cfg.lr, cfg.epochs, cfg.batchsize) == (0.01, 9, 16)
    assert cfg.name == "mine"


def test_recipe_of_the_paper_is_the_default():
    cfg = config.parse(DATA)
    assert (cfg.momentum, cfg.wdecay, cfg.lr, cfg.epochs, cfg.batchsize, cfg.crop_size) == (
        0.9,
        5e-4,
        1e-3,
        50,
        16,
        465,
    )
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
        (["--lr", "nan"], "--lr nan"),
        (["--lr", "inf"], "--lr inf: must be a finite number"),
        (["--epochs", "2", "--warmup_epochs", "5"], "--warmup_epochs 5 with --epochs 2"),  # D24
        (["--epochs", "1", "--warmup=100"], "or a number of optimizer steps by --warmup_steps"),  # as in guide 0
        (["--stride_in_1x1", "--layers", "18"], "--stride_in_1x1 with --layers 18"),
        (["surplus"], "unexpected argument 'surplus'"),
        (["--lr"], "--lr: expected one argument"),
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
        ("config: other.yaml", "unknown key 'config'"),
        ("warmup_epochs: .inf", "warmup_epochs inf: must be a finite number"),
        ("warmup_epochs: -5", "warmup_epochs -5.0: must be at least -1"),
        ("stages: [pretrain]", "stages: expected a section of flags"),
    ],
)
def test_wrong_files_are_named(tmp_path, text, named):
    file = tmp_path / "wrong.yaml"
    file.write_text(text)
    with pytest.raises(UserError) as caught:
        config.parse(["--config", str(file)])
    assert named in str(caught.value)
    assert str(file) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_aliases_are_accepted_with_a_word_on_the_new_name():
    words = [
        "--pesudo_path", "p", "--l_pesudo", "2", "--l_segs", "3", "--warmup", "4", "--chk_interval", "5",
        "--val_epoch", "6", "--model_path", "w.pth", "--ddp", "--local-rank", "1",
    ]  # fmt: skip
    cfg = config.parse([*DATA, *words])
    assert (cfg.pseudo_path, cfg.l_pseudo, cfg.l_seg, cfg.warmup_epochs) == ("p", 2, 3, 4)
    assert (cfg.save_epoch_frequency, cfg.val_start_epoch, cfg.pretrained) == (5, 6, "w.pth")
    assert (cfg.distributed, cfg.local_rank) == (True, 1)
    assert "--pesudo_path is now --pseudo_path" in cfg.notes
    assert config.parse([*DATA, "--warmup_epoch=2"]).warmup_epochs == 2


def test_names_of_the_guides_are_accepted():
    words = [
        "--batch-size=48", "--valid-batch-size=8", "--num-workers=3", "--valid-num-workers=2", "--logs=out", "--wd=0.1",
        "--max-epochs=7", "--valid-step-interval=9", "--valid-epoch-interval=2", "--use-augment", "--grad-checkpointing",
        "--accumulation_steps=2", "--report-training-batch-acc", "--learning_rate", "1e-4",
    ]  # fmt: skip
    cfg = config.parse([*DATA, *words])
    assert (cfg.batchsize, cfg.val_batchsize, cfg.workers, cfg.val_workers) == (48, 8, 3, 2)
    assert (cfg.logdir, cfg.wdecay, cfg.epochs, cfg.lr) == ("out", 0.1, 7, 1e-4)
    assert (cfg.val_step_frequency, cfg.val_epoch_frequency, cfg.accum_steps) == (9, 2, 2)
    assert cfg.augment
    assert cfg.grad_checkpointing
    assert cfg.report_training_batch_acc
    assert config.parse([*DATA, "--save_dir", "out", "--grad_accumulation_steps", "3"]).accum_steps == 3
    # A guide calls a total number batch_size, and another one that of a process: the note says which it is here.
    [note] = [note for note in cfg.notes if "batch_size " in note and "valid" not in note]
    assert note.startswith("--batch_size is now --batchsize (images per process; for")


def test_sections_of_a_file_are_for_the_reader(tmp_path):
    file = tmp_path / "guide.yaml"
    file.write_text(
        "ddp:\n  enabled: true\n  log_level: WARNING\ntraining:\n  use_augment: false\n  accumulation_steps: 4\n"
        "dataset_path: x\n"
    )
    cfg = config.parse(["--config", str(file)])
    assert (cfg.distributed, cfg.log_level, cfg.augment, cfg.accum_steps) == (True, "WARNING", False, 4)
    assert [note for note in cfg.notes if " is now " in note] == [
        "use_augment is now augment",
        "accumulation_steps is now accum_steps",
    ]
    file.write_text("dataset_path: x\nuse_ddp: true\n")
    assert config.parse(["--config", str(file)]).distributed is True


STAGES = "dataset_path: x\nlr: 1\nstages:\n  pretrain: {lr: 2, epochs: 3}\n  finetune: {optimisation: {lr: 4}}\n"


def test_stage_goes_over_the_file_and_the_command_line_over_it(tmp_path):
    file = tmp_path / "two.yaml"
    file.write_text(STAGES)
    first = config.parse(["--config", str(file), "--stage", "pretrain"])
    assert (first.lr, first.epochs, first.name) == (2, 3, "two-pretrain")
    second = config.parse(["--config", str(file), "--stage", "finetune", "--epochs", "9"])
    assert (second.lr, second.epochs, second.name) == (4, 9, "two-finetune")
    file.write_text(STAGES + "  3: {lr: 5}\nname: mine\n")
    third = config.parse(["--config", str(file), "--stage", "3"])
    assert (third.lr, third.name) == (5, "mine-3")  # stages never share a folder
    assert config.parse(["--config", str(file), "--stage", "3", "--name", "x"]).name == "x"


def test_what_goes_over_a_file_is_not_ignored_for_what_the_file_has_instead(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text("dataset_path: x\ntotal_batchsize: 32\nbatchsize: 8\nmax_steps: 9\nwarmup_steps: 2\n")
    cfg = config.parse(["--config", str(file)])
    assert (cfg.total_batchsize, cfg.max_steps, cfg.warmup_steps) == (32, 9, 2)
    cfg = config.parse(["--config", str(file), "--batchsize", "4", "--epochs", "5", "--warmup_epochs", "1"])
    assert (cfg.total_batchsize, cfg.max_steps, cfg.warmup_steps) == (0, 0, -1)
    cfg = config.parse(["--config", str(file), "--batchsize", "4", "--total_batchsize", "16"])
    assert (cfg.total_batchsize, cfg.batchsize) == (16, 4)
    file.write_text("dataset_path: x\ntotal_batchsize: 32\nstages:\n  one: {batchsize: 2}\n")
    assert config.parse(["--config", str(file), "--stage", "one"]).total_batchsize == 0


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--stage", "finetun"], "--stage finetun: not in"),
        ([], "--stage is not set, but there are stages in"),
    ],
)
def test_wrong_stages_are_named(tmp_path, words, named):
    file = tmp_path / "two.yaml"
    file.write_text(STAGES)
    with pytest.raises(UserError) as caught:
        config.parse(["--config", str(file), *words])
    assert named in str(caught.value)
    assert "it has pretrain, finetune" in str(caught.value)
    with pytest.raises(UserError, match="--stage pretrain without --config"):
        config.parse([*DATA, "--stage", "pretrain"])


def test_distributed_is_yes_no_or_left_to_the_launcher():
    assert config.parse(DATA).distributed is None
    assert config.parse([*DATA, "--distributed"]).distributed is True
    assert config.parse([*DATA, "--no_distributed"]).distributed is False
    assert config.parse([*DATA, "--no-distributed"]).distributed is False
    assert config.parse([*DATA, "--no_use_ddp"]).distributed is False
    assert config.parse([*DATA, "--no-use-augment"]).augment is False


def test_saved_config_repeats_the_run(tmp_path):
    cfg = config.parse([*DATA, "--lr", "0.3", "--distributed", "--rank", "0", "--resume", "auto", "--name", "x"])
    file = tmp_path / "config.yaml"
    file.write_text(config.dump(cfg))
    again = config.parse(["--config", str(file)])
    assert config.changes(config.as_dict(cfg), again) == ""
    assert (again.resume, again.rank, again.name) == ("", -1, "x")
    assert config.changes(config.as_dict(cfg), config.parse(["--config", str(file), "--lr", "0.5"])) == "lr: 0.3 -> 0.5"


def test_without_data_the_demo_is_chosen_and_said():
    cfg = config.parse([])
    assert (cfg.dataset_path, cfg.name) == ("dataset/demo", "demo")
    assert any("--dataset_path" in note for note in cfg.notes)
    assert cfg.dataset == "ScribblePseudoDsDc"
    assert cfg.model_type == "res50_ASPP_lorm"


def test_resume_file_alone_takes_the_config_beside_it(tmp_path):
    (tmp_path / "config.yaml").write_text("dataset_path: there\nepochs: 3\nname: before\n")
    cfg = config.parse(["--resume", str(tmp_path / "last.pt")])
    assert (cfg.dataset_path, cfg.epochs, cfg.name) == ("there", 3, "before")


def test_every_flag_has_help_and_every_config_file_parses():
    assert all(item.metadata["help"] for item in config.FLAGS.values())
    files = sorted(config.DEMO_CONFIG.parent.glob("*.yaml"))
    assert len(files) >= 3
    for file in files:
        for stage in yaml.safe_load(file.read_text()).get("stages", [None]):
            cfg = config.parse(["--config", str(file), *(["--stage", stage] if stage else [])])
            assert not [note for note in cfg.notes if " is now " in note]  # by our own names


def test_help_is_printed(capsys):
    with pytest.raises(SystemExit) as caught:
        config.parse(["--help"])
    assert caught.value.code == 0
    printed = capsys.readouterr().out
    assert all(f"--{name} " in printed for name in config.FLAGS)
