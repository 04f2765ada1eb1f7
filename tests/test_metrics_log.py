"""What training.record.metrics writes, by a clock that only moves when it is told to."""

from types import SimpleNamespace

import pytest
import torch

from distributed.group import Group
from training.record.metrics import Metrics

LOADER = SimpleNamespace(num_workers=0)


@pytest.fixture
def now(monkeypatch) -> list[float]:
    """The time, to be changed by the test."""
    now = [0.0]
    monkeypatch.setattr("training.record.metrics.time.perf_counter", lambda: now[0])
    return now


def log_step(metrics: Metrics, epoch: int, step: int, loss: float) -> None:
    scaler = SimpleNamespace(is_enabled=lambda: False)
    state = SimpleNamespace(epoch=epoch, step=step, grad_norm=None, scaler=scaler)
    metrics.log_step(state, {"loss": torch.tensor(loss)}, lr=0.1, num_images=2)


def test_validation_between_steps_is_not_in_the_rate_of_training(now, monkeypatch):
    """2 images in 1 s, and a validation of 100 s between the steps."""
    metrics, lines = Metrics(Group(torch.device("cpu"))), []
    metrics.log_interval = 2
    monkeypatch.setattr(metrics, "_write", lambda line, *_: lines.append(line))

    for step in metrics.steps([1, 2, 3], total=3, title=""):
        if step == 2:
            with metrics.pause():
                now[0] += 100
        now[0] += 1
        log_step(metrics, 1, step, 1.0)
    metrics.end_epoch()
    assert [line["images_per_s"] for line in lines] == [2.0, 2.0]


def test_line_of_an_epoch_has_its_time_and_the_time_left(now):
    """A process resumes at step 10 of 40 and does 5 steps in 1040 s, about 17 min, of which the first takes 1000 s.

    25 steps are left, which take 250 s, about 4 min.
    """
    metrics = Metrics(Group(torch.device("cpu")))
    metrics.log_interval = 100
    metrics.pace.steps_left = 30
    for step in metrics.steps(range(5), total=5, title=""):
        now[0] += 10 if step else 1000  # of the first step
        log_step(metrics, 3, 11 + step, float(step))
    metrics.end_epoch()
    assert metrics.loss_text() == "loss 2.000"  # the mean of 0, 1, 2, 3, 4
    assert metrics.pace.text(2, LOADER) == "17 min, 4 min left, 0.00962 images/s"  # 10 images in 1040 s
    metrics.pace.steps_left = 5
    assert metrics.pace.text(2, LOADER) == "17 min, 0.00962 images/s"


def test_line_of_an_epoch_has_the_rate_and_the_share_of_waiting_for_the_loader(now):
    """The first batch takes 50 s, which do not count; then 4 steps of 3 s, 3 waits of 2 s, two validations of 100 s."""
    metrics = Metrics(Group(torch.device("cpu")))
    metrics.log_interval = 100

    def batches(wait: float):
        now[0] += 50 - wait
        for number in range(4):
            now[0] += wait
            yield number

    def validate() -> None:
        with metrics.pause():
            now[0] += 100

    def epoch(wait: float) -> str:
        for step in metrics.steps(batches(wait), total=4, title=""):
            if step == 2:
                validate()
            now[0] += 3
        validate()
        return metrics.pace.text(6, LOADER).partition(", ")[2].partition("left, ")[2]

    # 24 images in 4 * 3 + 3 * 2 = 18 s, of which 6 s are waiting
    metrics.pace.steps_left = 100
    advice = "33% of the time is waiting for the loader: raise --workers (now 0)"
    assert epoch(2.0) == f"1.33 images/s: {advice}"
    assert epoch(0.0) == "2 images/s"
    # 3 waits of 0.4 s are 1.2 of 13.2 s, 9 %: below the limit; 24 / 13.2 = 1.818
    assert epoch(0.4) == "1.82 images/s"
    # The slowest rank counts: it waits for 6 s, and this rank's step waits for it.
    metrics.pace.group = SimpleNamespace(gather=lambda own: [own, 6.0])
    assert epoch(0.0) == "2 images/s: 50% of the time is waiting for the loader: raise --workers (now 0)"
