"""Names of other trainers: each gets a true sentence, and none a flag that does something else."""

import re

import pytest

import config
from config.hints import TORCHRUN_FLAGS, foreign_flags
from config.programs import EVALUATE, EXPORT, PREDICT
from config.reader import FlagReader
from support.errors import UserError

DATA = ["--dataset_path", "somewhere"]
READERS = (config.READER, EVALUATE, PREDICT, EXPORT)

# {a name as others write it: what the message must say}. An audit found the first five sent to --max_steps,
# --ohem_fraction, --train_path, --pseudo_path and --logdir.
EXPECTED = {
    "--master_port": "an option of torchrun: put it before the program's name",
    "--use_mixed_precision": "--amp bf16 or --amp fp16",
    "--train-data": "--dataset_path is the root folder of the data, --train_path the folder of the training labels",
    "--pdb_path": "--dataset_path is the root folder of the data",
    "--gpus": "torchrun --nproc_per_node=N starts N of them",
    "--output-dir": "--logdir is the folder of all runs, --name this run's folder in it",
    "--work-dir": "--logdir is the folder of all runs",  # mmsegmentation
    "max_iters=1": "--max_steps is the number of optimizer steps",
    "imgsz=1": "--crop_size is the height and width of a training crop",  # Ultralytics
    "--trainer.devices": "torchrun --nproc_per_node=N uses N of them",  # Lightning
    "--trainer.max_epochs": "did you mean --epochs?",
    "--data.batch_size": "did you mean --batchsize?",
    "--fp16": "--amp bf16 or --amp fp16",  # Hugging Face
}


def message(reader: FlagReader, words: list[str]) -> str:
    with pytest.raises(UserError) as caught:
        reader.command_line(words)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("name", EXPECTED)
def test_a_name_of_another_trainer_gets_a_sentence(name):
    printed = message(config.READER, [*DATA, name, *(["1"] if name.startswith("-") else [])])
    assert EXPECTED[name] in printed
    assert "did you mean" not in printed or "did you mean" in EXPECTED[name]


@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.program)
def test_every_name_of_the_table_gets_one_of_its_sentences(reader):
    for name, sentences in foreign_flags().items():
        if name not in {*reader.flags, *reader.hints.aliases}:
            assert reader.hints.for_name(name, "--") in (*sentences, "")


def test_the_table_names_flags_that_exist_and_no_name_of_ours():
    for name, sentences in foreign_flags().items():
        for sentence in sentences:
            named = set(re.findall(r"--(\w+)", sentence)) - TORCHRUN_FLAGS
            assert any(named <= reader.flags.keys() for reader in READERS), sentence
            assert ";" not in sentence  # which separates the flags of a message
        # A name that every program has is never looked up.
        assert any(name not in {**reader.flags, **reader.aliases} for reader in READERS), name


# Names that no table has. The second list's are near to names of ours by letters and not in meaning.
TYPOS = """epocs epochs, epoch epochs, l_se l_seg, nmae name, seeds seed, resum resume, batchsiz batchsize,
btchsize batchsize, lerning_rate lr, modle_type model_type, datasetpath dataset_path, num_class numclasses,
worker workers, crop_siz crop_size, pretraind pretrained, save_epoch_freq save_epoch_frequency, no_augmnet no_augment"""
NO_HINT = """drop_rates train_paths_root lr_noise max_det sched_on test_interval log_images val_plots optimizer_type
encoder_name early_stopping no_resume_opt freeze norm_weight_decay bn_momentum start_epoch val_interval vflip"""


def test_typos_are_recognised_and_other_words_are_not():
    for typo, ours in (pair.split() for pair in TYPOS.split(",")):
        assert f"unknown flag --{typo}: did you mean --{ours}?" in message(config.READER, [*DATA, f"--{typo}", "1"])
    for name in NO_HINT.split():
        printed = message(config.READER, [*DATA, f"--{name}", "1"])
        assert printed.startswith(f"unknown flag --{name}: to list all flags: ")


def test_all_unknown_flags_are_named_and_their_values_are_not():
    words = "--gpus 4 --lr 0.1 surplus --epocs -3 --master_port=1 --node-rank 0 --x y z"
    assert message(config.READER, [*DATA, *words.split()]).split("; ")[:-1] == [
        "unexpected argument 'surplus': flags start with --",
        "unknown flags --gpus: a process uses one GPU, and torchrun --nproc_per_node=N starts N of them",
        "--epocs: did you mean --epochs?",
        "--master_port, --node_rank: an option of torchrun: put it before the program's name",
    ]
    assert re.search(
        r"; --x: to list all flags: \S*python\S* \S*train\.py --help$", message(config.READER, words.split())
    )


def test_all_unknown_keys_of_a_file_are_named(tmp_path):
    file = tmp_path / "theirs.yaml"
    file.write_text("lr: 1\noptimizer: {type: AdamW, max_iters: 2}\ntrainer: {devices: 2}\nconfig: y\n")
    with pytest.raises(UserError) as caught:
        config.parse(["--config", str(file)])
    assert str(caught.value).startswith(f"{file}: unknown keys 'type': did you mean optimizer?; 'max_iters': ")
    assert "; 'devices': --device cuda:N chooses a GPU" in str(caught.value)
    assert "; 'config': to list all flags: " in str(caught.value)


@pytest.mark.parametrize(
    ("reader", "words", "named"),
    [
        # Other ways to write flags
        (config.READER, ["configs/demo.yaml"], "'configs/demo.yaml': did you mean --config configs/demo.yaml?"),
        (config.READER, ["epochs=3"], "'epochs=3': did you mean --epochs?"),
        (config.READER, ["+trainer.max_epochs=3"], "did you mean --epochs?"),
        (config.READER, ["data=coco.yaml"], "'data=coco.yaml': --dataset_path is the root folder"),
        (config.READER, ["x=y"], "'x=y': flags are written --name value"),
        (config.READER, ["run/last.pt"], "did you mean --resume run/last.pt?"),
        (config.READER, ["."], "'.': did you mean --dataset_path .?"),
        (config.READER, ["--freeze_bn", "train"], "unexpected argument 'train'"),
        (config.READER, ["-lr", "1"], "unknown flag -lr: did you mean --lr?"),
        (
            config.READER,
            ["--amp"],
            "--amp: expected one argument: mixed precision; fp16 scales the loss; auto: as the checkpoint",
        ),
        # Each program names flags of its own
        (PREDICT, ["--data", "photos"], "--data: --input names the images"),
        (PREDICT, ["--batch_size", "4"], "--batch_size: --val_batchsize is the number of images in one forward pass"),
        (PREDICT, ["--output-dir", "x"], "--output is the folder to write to"),
        (PREDICT, ["--pretrained_weights", "x"], "--checkpoint FILE names the weights"),
        (PREDICT, ["--optimizer", "sgd"], "--optimizer: to list all flags: "),  # not: --lr, which it lacks
        (PREDICT, ["photo.jpg"], "unexpected argument 'photo.jpg'"),
        (EVALUATE, ["--num_workers", "4"], "did you mean --workers?"),
        (EVALUATE, ["--data", "x"], "--dataset_path is the root folder of the data, --dataset its layout"),
        (EVALUATE, ["best.pt"], "did you mean --checkpoint best.pt?"),
        (EXPORT, ["--fp16"], "exported models compute in float32"),
    ],
)
def test_wrong_words_get_a_hint(reader, words, named):
    assert named in message(reader, words)
