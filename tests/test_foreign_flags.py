"""Names of other trainers: each gets a true sentence, and none a flag that does something else."""

import re

import pytest

import config
import evaluate
import export
import predict
from config.foreign import FOREIGN, OF_TORCHRUN
from errors import UserError
from trained import read_flags

DATA = ["--dataset_path", "somewhere"]
READERS = (config.READER, evaluate.READER, predict.READER, export.READER)

# {a name as others write it: what the message must say}. The first ten are those of an audit, which were sent to
# --max_steps, --ohem_fraction, --train_path, --pseudo_path, --logdir, --reset_optimizer, --backend and --lr_scaling.
EXPECTED = {
    # The guides
    "--master_port": "an option of torchrun: write it before the program's name",
    "--nproc_per_node": "an option of torchrun",
    "--use_mixed_precision": "--amp bf16 or --amp fp16",
    "--train-data": "--dataset_path is the root folder of the data, --train_path the folder of the training labels",
    "--val-data": "--val_path the folder of the masks for validation",
    "--pdb_path": "--dataset_path is the root folder of the data",
    "--gpus": "torchrun --nproc_per_node=N starts N of them",
    "--optimizer": "the optimizer is SGD, set by --lr, --momentum and --wdecay",
    "--backbone": "--model_type chooses the architecture, --layers the depth",
    "--early_stopping": "training runs for --epochs, and best.pt keeps the weights that validated best",
    "--context-length": "--crop_size is the height and width of a training crop",
    "--vision-model": "--model_type chooses the architecture",
    "--text-model": "there is no text",
    "--cache_dir": "nothing is cached",
    "--hidden_dim": "--model_type and --layers set the network's size",
    "--num_encoder_layers": "--model_type and --layers set the network's size",
    "--num_decoder_layers": "--model_type and --layers set the network's size",
    "--mask_ratio": "nothing is masked",
    # torchvision
    "-b": "--batchsize is the number of images per process",
    "-j": "--workers is the number of loader processes",
    "--data-path": "--dataset_path is the root folder of the data",
    "--aux-loss": "no model has an auxiliary head",
    "--output-dir": "--logdir is the folder of all runs, --name this run's folder in it",
    "--start-epoch": "--resume continues at the step that the checkpoint has",
    "--test-only": "--task test scores best.pt of the newest run",
    "--print-freq": "--log_interval is the number of steps between two lines of metrics.jsonl",
    "--weights-backbone": "--pretrained FILE starts from weights, --resume FILE continues a run",
    # timm
    "--opt": "the optimizer is SGD",
    "--sched": "the learning rate rises linearly over --warmup_epochs, then falls to 0 along a cosine",
    "--clip-grad": "gradients are not clipped",
    "--model-ema": "--ema 0.999",
    "--no-resume-opt": "--reset_optimizer resumes without the optimizer's state",
    "--smoothing": "--label_smooth applies to the loss on pseudo-labels, and to no other",
    "--no-aug": "--no_augment turns it off",
    "--checkpoint-hist": "--keep is the number of checkpoints to keep",
    "--drop-path": "dropout is part of --model_type",
    # mmsegmentation
    "--work-dir": "--logdir is the folder of all runs",
    "--cfg-options": "each option is a flag of its own",
    "--launcher": "a launcher such as torchrun starts the processes",
    "--load-from": "--pretrained FILE starts from weights",
    "max_iters": "--max_steps is the number of optimizer steps",
    "ignore_index": "pixels labelled 255 are ignored",
    # Ultralytics
    "imgsz": "--crop_size is the height and width of a training crop",
    "batch": "--batchsize is per process, --total_batchsize is divided over the processes",
    "patience": "training runs for --epochs",
    "mosaic": "augmentation has no settings, but --no_augment turns it off",
    "freeze": "weights cannot be frozen, and --freeze_bn only keeps the statistics of batch norm",
    "cos_lr": "falls to 0 along a cosine",
    "exist_ok": "no run overwrites another",
    "save_period": "--save_epoch_frequency keeps a checkpoint every N epochs",
    # Lightning
    "--trainer.devices": "torchrun --nproc_per_node=N uses N of them",
    "--trainer.precision": "--amp bf16 or --amp fp16",
    "--trainer.accelerator": "--device chooses auto, cpu, cuda or cuda:N",
    "--trainer.max_epochs": "did you mean --epochs?",
    "--data.batch_size": "did you mean --batchsize?",
    "--val_check_interval": "--val_epoch_frequency validates every N epochs",
    "--gradient_clip_val": "gradients are not clipped",
    "--fast_dev_run": "--max_steps 20 makes a short run",
    # Hugging Face
    "--fp16": "--amp bf16 or --amp fp16",
    "--warmup_ratio": "--warmup_epochs or --warmup_steps sets the length of the warm-up",
    "--report_to": "--wandb logs to Weights & Biases",
    "--evaluation_strategy": "--val_epoch_frequency validates every N epochs",
    "--do_eval": "--task test scores best.pt",
}
# {a name that means the same as one of ours: the value that it must set}
SAME = {
    "--weight-decay=0.1": ("wdecay", 0.1), "--num-classes=7": ("numclasses", 7), "--lr0=0.2": ("lr", 0.2),
    "--accumulate_grad_batches=3": ("accum_steps", 3), "--gradient_accumulation_steps=3": ("accum_steps", 3),
    "--num_train_epochs=60": ("epochs", 60), "--lr-warmup-epochs=2": ("warmup_epochs", 2.0),
    "--per_device_train_batch_size=3": ("batchsize", 3), "--per_device_eval_batch_size=3": ("val_batchsize", 3),
    "--samples_per_gpu=3": ("batchsize", 3), "--workers_per_gpu=3": ("workers", 3),
    "--dataloader_num_workers=3": ("workers", 3), "--model-ema-decay=0.9": ("ema", 0.9), "--pin-mem": ("pin_memory", True),
    "--check_val_every_n_epoch=3": ("val_epoch_frequency", 3), "--gradient_checkpointing": ("grad_checkpointing", True),
    "--use-deterministic-algorithms": ("deterministic", True), "--resume-from=x.pt": ("resume", "x.pt"),
    "--resume_from_checkpoint=x.pt": ("resume", "x.pt"), "--log-wandb": ("wandb", True),
}  # fmt: skip


def message(reader, words: list[str]) -> str:
    with pytest.raises(UserError) as caught:
        reader.command_line(words)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("name", EXPECTED)
def test_a_name_of_another_trainer_gets_a_sentence(name):
    words = [name, "1"] if name.startswith("-") else [f"{name}=1"]
    said = message(config.READER, [*DATA, *words])
    assert EXPECTED[name] in said
    assert "did you mean" not in said or "did you mean" in EXPECTED[name]


@pytest.mark.parametrize("word", SAME)
def test_a_name_with_the_same_meaning_is_accepted(word):
    name, value = SAME[word]
    cfg = config.parse([*DATA, word])
    assert getattr(cfg, name) == value
    assert any(f" is now --{name}" in note for note in cfg.notes)


# Names that no table has. Those of others are near to names of ours, by letters and not in meaning.
TYPOS = (
    ("epocs", "epochs"), ("epoch", "epochs"), ("l_se", "l_seg"), ("nmae", "name"), ("seeds", "seed"), ("resum", "resume"),
    ("batchsiz", "batchsize"), ("btchsize", "batchsize"), ("lerning_rate", "lr"), ("modle_type", "model_type"),
    ("datasetpath", "dataset_path"), ("num_class", "numclasses"), ("worker", "workers"), ("crop_siz", "crop_size"),
    ("pretraind", "pretrained"), ("save_epoch_freq", "save_epoch_frequency"), ("no_augmnet", "no_augment"),
)  # fmt: skip
NO_HINT = (
    "drop_rates",
    "train_paths_root",
    "lr_noise",
    "max_det",
    "sched_on",
    "test_interval",
    "log_images",
    "val_plots",
)


def test_typos_are_recognised_and_other_words_are_not():
    for typo, ours in TYPOS:
        assert f"unknown flag --{typo}: did you mean --{ours}?" in message(config.READER, [*DATA, f"--{typo}", "1"])
    for name in NO_HINT:
        assert message(config.READER, [*DATA, f"--{name}", "1"]).startswith(
            f"unknown flag --{name}: to list all flags: "
        )


def test_all_unknown_flags_are_named_and_their_values_are_not():
    words = [
        "--gpus",
        "4",
        "--lr",
        "0.1",
        "surplus",
        "--epocs",
        "-3",
        "--master_port=1",
        "--node-rank",
        "0",
        "--x",
        "y",
        "z",
    ]
    assert message(config.READER, [*DATA, *words]).split("; ")[:-1] == [
        "unexpected argument 'surplus': flags start with --",
        "unknown flags --gpus: a process uses one GPU, and torchrun --nproc_per_node=N starts N of them",
        "--epocs: did you mean --epochs?",
        "--master_port, --node_rank: an option of torchrun: write it before the program's name",
    ]
    assert re.search(r"; --x: to list all flags: \S*python\S* \S*train\.py --help$", message(config.READER, words))


def test_all_unknown_keys_of_a_file_are_named(tmp_path):
    file = tmp_path / "theirs.yaml"
    file.write_text("dataset_path: x\nlr: 1\noptimizer: {type: AdamW, lr_mult: 2}\ntrainer: {devices: 2}\nconfig: y\n")
    with pytest.raises(UserError) as caught:
        config.parse(["--config", str(file)])
    assert str(caught.value).startswith(f"{file}: unknown keys 'type', 'lr_mult': the optimizer is SGD, set by --lr, ")
    assert "; 'devices': --device cuda:N chooses a GPU" in str(caught.value)
    assert "; 'config': to list all flags: " in str(caught.value)


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["configs/demo.yaml"], "'configs/demo.yaml': did you mean --config configs/demo.yaml?"),
        (["epochs=3"], "'epochs=3': did you mean --epochs?"),
        (["+trainer.max_epochs=3"], "did you mean --epochs?"),
        (["data=coco.yaml"], "'data=coco.yaml': --dataset_path is the root folder"),
        (["x=y"], "'x=y': flags are written --name value"),
        (["run/last.pt"], "did you mean --resume run/last.pt?"),
        (["."], "'.': did you mean --dataset_path .?"),
        (["--freeze_bn", "train"], "unexpected argument 'train'"),
        (["-lr", "1"], "unknown flag -lr: did you mean --lr?"),
        (["--amp"], "--amp: expected one argument: mixed precision; fp16 scales the loss: none, bf16, fp16"),
    ],
)
def test_other_ways_to_write_flags(words, named):
    assert named in message(config.READER, [*DATA, *words])


@pytest.mark.parametrize(
    ("reader", "words", "named"),
    [
        (predict.READER, ["--source", "photos"], "--source: --input names images, videos or folders"),
        (predict.READER, ["--data", "photos"], "--data: --input names the images"),
        (predict.READER, ["-b", "4"], "-b: --val_batchsize is the number of images in one forward pass"),
        (predict.READER, ["--output-dir", "x"], "--output is the folder to write to"),
        (predict.READER, ["--weights-backbone", "x"], "--checkpoint FILE names the weights"),
        (predict.READER, ["--optimizer", "sgd"], "--optimizer: to list all flags: "),  # not: --lr, which it lacks
        (predict.READER, ["photo.jpg"], "unexpected argument 'photo.jpg'"),
        (evaluate.READER, ["--num_workers", "4"], "did you mean --workers?"),
        (evaluate.READER, ["--data-root", "x"], "--dataset_path is the root folder of the data, --dataset its layout"),
        (evaluate.READER, ["--tta"], "--scales 0.75 1 1.25 and --flip average predictions"),
        (evaluate.READER, ["best.pt"], "did you mean --checkpoint best.pt?"),
        (export.READER, ["--half"], "exported models compute in float32"),
        (export.READER, ["--opset_version", "20"], "use --opset"),
    ],
)
def test_other_programs_name_flags_of_their_own(reader, words, named):
    assert named in message(reader, words)
    with pytest.raises(UserError):
        read_flags(reader, words)


def test_the_table_names_flags_that_exist_and_no_name_of_ours():
    for name, sentences in FOREIGN.items():
        for sentence in sentences:
            named = set(re.findall(r"--(\w+)", sentence)) - OF_TORCHRUN
            assert any(named <= {*reader.fields, "config", "no_augment"} for reader in READERS), sentence
            assert ";" not in sentence  # which stands between the flags of a message
        # Where every program knows the name, no one is told the sentence.
        assert any(name not in {**reader.fields, **reader.aliases} for reader in READERS), name
    for ours in config.ALIASES.values():
        assert ours.partition(" ")[0] in config.FLAGS
