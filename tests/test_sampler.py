"""Global batches do not depend on how many processes share them; evaluation visits each image once."""

import math

import pytest

from data.sampler import EvalBatches, TrainSampler
from support.errors import UserError


def global_batches(
    num_samples: int, world_size: int, batch_size: int, accum_steps: int, epoch: int = 0, samples: int = 0
) -> list[list]:
    """What the ranks see in each optimizer step, in the order of the order they share."""
    ranks = []
    for rank in range(world_size):
        sampler = TrainSampler(
            num_samples, batch_size=batch_size, accum_steps=accum_steps, seed=5, rank=rank, world_size=world_size
        )
        sampler.set_position(epoch, samples)
        ranks.append(list(sampler))
        assert len(ranks[-1]) == len(sampler) == sampler.steps_left * batch_size * accum_steps
    batches = []
    for step in range(sampler.steps_left):
        batch = []
        for micro in range(accum_steps):
            start = (step * accum_steps + micro) * batch_size
            for seen in ranks:
                batch += seen[start : start + batch_size]
        batches.append(batch)
    return batches


def test_epochs_are_different_permutations_and_say_so():
    first, second = global_batches(16, 1, 8, 1, epoch=0), global_batches(16, 1, 8, 1, epoch=1)
    for epoch, batches in enumerate((first, second)):
        samples = [sample for batch in batches for sample in batch]
        assert {e for e, _ in samples} == {epoch}
        assert sorted(index for _, index in samples) == list(range(16))
    assert [index for _, index in first[0]] != [index for _, index in second[0]]


# World size, batch size and accumulation: global batches of 8, 4, 6 and 12.
SPLITS = [(1, 8, 1), (2, 4, 1), (4, 2, 1), (1, 4, 2), (2, 2, 2), (1, 2, 2), (1, 2, 4), (3, 2, 1), (3, 4, 1)]


@pytest.mark.parametrize("samples", [0, 16])
@pytest.mark.parametrize("split", SPLITS)
def test_an_epoch_and_its_rest_have_the_same_samples_in_the_same_order_at_any_split(split, samples):
    whole = [sample for [sample] in global_batches(43, 1, 1, 1, epoch=2)]
    size = math.prod(split)
    # What fills no global batch is left out: 3 of 43 in batches of 8, 3 of the last 27 in batches of 12.
    expected = [whole[start : start + size] for start in range(samples, 43 - size + 1, size)]
    assert global_batches(43, *split, 2, samples) == expected
    assert global_batches(43, *split, 2, samples=40) == []


SIZES = [(4, 6), (5, 5), (4, 6), (4, 6), (5, 5), (4, 6), (4, 6), (9, 9)]


@pytest.mark.parametrize("num_samples", [0, 1, 8])
@pytest.mark.parametrize("world_size", [1, 2, 3, 8])
def test_evaluation_covers_every_image_once_in_batches_that_do_not_depend_on_the_world_size(num_samples, world_size):
    shares = [
        EvalBatches(SIZES[:num_samples], batch_size=2, rank=rank, world_size=world_size) for rank in range(world_size)
    ]
    # By size and in order, two at a time.
    whole = [[7], [1, 4], [0, 2], [3, 5], [6]] if num_samples == 8 else [[0]] * num_samples
    assert sorted(batch for share in shares for batch in share) == sorted(whole)
    assert [len(share) for share in shares] == [len(list(share)) for share in shares]


def test_evaluation_begins_with_the_largest_batches_and_shares_pixels_evenly():
    # pixels: [7] 81, [1, 4] 50, [0, 2] and [3, 5] 48, [6] 24; in turn to the rank with fewest: 81 + 24 + ... = 129, 122
    one, two = (list(EvalBatches(SIZES, batch_size=2, rank=rank, world_size=2)) for rank in (0, 1))
    assert one == [[7], [3, 5]]
    assert two == [[1, 4], [0, 2], [6]]


def test_an_epoch_of_several_passes_has_the_samples_of_as_many_epochs():
    """5 samples, 4 passes: the same (pass, index) in the same order as 4 epochs, whose batches may span two passes."""
    one = [TrainSampler(5, batch_size=1, accum_steps=1, seed=5) for _ in range(8)]
    for number, sampler in enumerate(one):
        sampler.set_position(number, 0)
    expected = [key for sampler in one for key in sampler]
    sampler = TrainSampler(5, batch_size=6, accum_steps=1, seed=5, repeat=4)
    for epoch in (0, 1):
        sampler.set_position(epoch, 6)  # after the first global batch
        assert (sampler.steps_per_epoch, sampler.steps_left) == (3, 2)  # 20 = 3 * 6 + 2 left out
        assert list(sampler) == expected[epoch * 20 + 6 : epoch * 20 + 18]


def test_a_batch_larger_than_the_list_says_how_often_to_repeat_it():
    with pytest.raises(UserError, match=r"has 5 image\(s\) but one optimizer step takes 16.*--repeat 4"):  # 3 * 5 < 16
        TrainSampler(5, batch_size=16, accum_steps=1, seed=0)
    assert TrainSampler(5, batch_size=16, accum_steps=1, seed=0, repeat=4).steps_per_epoch == 1
