"""Training with the losses for sparse labels: the teacher, resuming, and flags that do not fit."""

import pytest
import torch
from conftest import assert_same_run, finish, read_metrics, start
from thin_networks import use

import config
import models
import train
import utils
from benchmarks.memory import summarize
from distributed.group import Group
from losses.criterion import Criterion
from optimization.average import WeightAverage
from optimization.teacher import Teacher, ramp
from support.errors import UserError

LOSSES = {"l_crf": 0.1, "l_absent": 0.5, "l_consistency": 1, "consistency_threshold": 0.22, "ema": 0.9}
LOSSES |= {"model_type": "res50_ASPP", "dataset": "ScribbleOnly"}


def test_a_stopped_run_goes_on_bit_for_bit(demo_flags, tmp_path):
    """Stopped in the second of 3 epochs, in the middle of the warm-up of 2.5 epochs."""
    words = demo_flags(**LOSSES, epochs=3, consistency_warmup=2.5, val_epoch_frequency=3, seed=1)
    program = "tests/train_float64.py"
    whole = start([*words, "--name", "whole"], tmp_path, program)
    stopped = start([*words, "--name", "x"], tmp_path, program, STOP_AT_STEP=6)  # of 4 steps an epoch
    assert [result[0] for result in finish([whole, stopped])] == [0, 75]
    assert finish([start([*words, "--name", "x", "--resume", "auto"], tmp_path, program)])[0][0] == 0
    assert_same_run(tmp_path / "x", tmp_path / "whole")
    assert sum(line["losses"]["consistency"] > 0 for line in read_metrics(tmp_path / "x", "train")) >= 6


def test_the_model_sees_the_recoloured_image_and_the_teacher_the_other(demo_run, monkeypatch):
    """Teachers do not change within a step, and their weights are the average of those before it."""
    seen: dict[str, list] = {"model": [], "teacher": [], "weights": [], "ramp": []}
    forward, update = models.Segmenter.forward, WeightAverage.update

    def note(model, images, *others):
        if images.shape[1] == 33 and not images.is_meta:  # neither a validation nor the summary
            seen["model" if model.training else "teacher"].append(images.clone())
            if not model.training:
                assert not torch.is_grad_enabled()
                seen["weights"].append(next(model.parameters()).clone())
        return forward(model, images, *others)

    call = Teacher.__call__

    def note_targets(teacher, images, epoch, samples):
        found = call(teacher, images, epoch, samples)
        seen["ramp"].append((epoch + samples / 8, float(found["teacher_weight"].max())))
        return found

    monkeypatch.setattr(models.Segmenter, "forward", note)
    monkeypatch.setattr(Teacher, "__call__", note_targets)
    averages = []
    monkeypatch.setattr(
        WeightAverage,
        "update",
        lambda ema, model: (update(ema, model), averages.append(next(ema.module.parameters()).clone())),
    )
    demo_run(
        **LOSSES | {"consistency_threshold": 0.0}, accum_steps=2, epochs=2, val_epoch_frequency=0, consistency_warmup=1
    )
    assert len(seen["model"]) == len(seen["teacher"]) == 8  # 2 epochs of 2 steps of 2 micro-batches of 2
    assert sum(not torch.equal(*pair) for pair in zip(seen["model"], seen["teacher"], strict=True)) >= 5
    for step in range(4):
        before, after = seen["weights"][2 * step], seen["weights"][2 * step + 1]
        assert torch.equal(before, after)
        assert step == 0 or torch.equal(before, averages[step - 1])
    assert [at for at, _ in seen["ramp"]] == [0, 0, 0.5, 0.5, 1, 1, 1.5, 1.5]
    assert [weight for _, weight in seen["ramp"]] == pytest.approx([ramp(at, 1.0) for at, _ in seen["ramp"]])


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ({"l_consistency": 1}, "--l_consistency 1 without --ema"),
        ({"l_absent": 1, "dataset": "PseudoOnly"}, "--l_absent 1 with --dataset PseudoOnly"),
        ({"l_consistency": 1, "ema": 0.9, "dataset": "PseudoOnly"}, "--l_consistency 1 with --dataset PseudoOnly"),
        ({"consistency_warmup": 2}, "--consistency_warmup 2.0 has no effect without --l_consistency"),
        ({"consistency_threshold": 0.5}, "--consistency_threshold 0.5 has no effect without --l_consistency"),
        ({"consistency_threshold": 1}, "--consistency_threshold 1.0: must be at least 0 and below 1"),
        ({"l_crf": -1}, "--l_crf -1.0: must be at least 0"),
    ],
)
def test_wrong_flags_are_named(demo_flags, words, named):
    with pytest.raises(UserError) as caught:
        config.parse(demo_flags(**words))
    assert named in str(caught.value)
    assert "\n" not in str(caught.value)


def test_these_losses_alone_are_refused(demo_flags):
    with pytest.raises(UserError, match="leaves no loss to train on"):
        train.main(demo_flags(**LOSSES | {"l_seg": 0}))


@pytest.mark.parametrize("dataset", ["Dense", "PseudoOnly", "ScribblePseudoDsDc"])
def test_they_join_the_losses_of_each_dataset(demo_flags, dataset):
    more = {} if dataset == "PseudoOnly" else {"l_absent": 2, "l_consistency": 3, "ema": 0.9}
    cfg = config.parse(demo_flags(dataset=dataset, l_crf=0.1, **more))
    criterion = utils.get_criterion(
        cfg, Group(torch.device("cpu")), utils.get_model(cfg, Group(torch.device("cpu")))[0]
    )
    assert {
        "crf": 0.1,
        **{name[2:]: weight for name, weight in more.items() if name != "ema"},
    }.items() <= criterion.weights.items()


def test_the_summary_counts_the_teachers_pass_and_the_pairs():
    use(False)
    plain, crf, taught = (
        summarize(models_on_meta(), Criterion({"seg": 1.0} | more), batchsize=4, crop_size=97)
        for more in ({}, {"crf": 0.1}, {"consistency": 1.0})
    )
    assert taught.train_flops == plain.train_flops + plain.flops
    assert crf.kept > plain.kept


def models_on_meta() -> models.Segmenter:
    with torch.device("meta"):
        return models.build("res50_ASPP", layers=18, num_classes=4)
