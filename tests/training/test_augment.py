"""Augmentations against a loop over single pictures."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import kasuri
from kasuri.training import Batches, compose, crop, flip


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_flip_against_a_loop():
    x = torch.rand(40, 3, 5, 6)
    got, coins = flip(x, generator(3)), torch.rand(40, generator=generator(3)) < 0.5
    for one, old, mirrored in zip(got, x, coins, strict=True):
        expected = torch.stack([row.flip(-1) for row in old]) if mirrored else old
        assert torch.equal(one, expected)
    assert 5 < coins.sum() < 35, "both happen"


@pytest.mark.parametrize("padding", [1, 4])
def test_crop_against_a_loop(padding):
    x = torch.rand(40, 3, 5, 6)
    got = crop(padding)(x, generator(3))
    corners = torch.randint(2 * padding + 1, (2, 40), generator=generator(3))
    for one, old, top, left in zip(got, x, *corners, strict=True):
        wide = F.pad(old, (padding,) * 4)
        assert torch.equal(one, wide[:, top : top + 5, left : left + 6])


@pytest.mark.parametrize("augmentation", [flip, crop(2), compose(crop(2), flip)])
def test_only_the_generator_matters(augmentation):
    x = torch.rand(16, 1, 8, 8)
    before = x.clone()
    torch.manual_seed(0)
    a = augmentation(x, generator(5))
    torch.manual_seed(1)
    state = torch.get_rng_state()
    assert torch.equal(augmentation(x, generator(5)), a)
    assert torch.equal(torch.get_rng_state(), state)
    assert not torch.equal(augmentation(x, generator(6)), a)
    assert torch.equal(x, before), "the input is left alone"
    assert a.shape == x.shape
    assert augmentation(x.byte(), generator()).dtype == torch.uint8


def test_compose_is_in_order():
    x, g, h = torch.rand(16, 1, 8, 8), generator(5), generator(5)
    assert torch.equal(compose(crop(2), flip)(x, g), flip(crop(2)(x, h), h))
    assert compose()(x, g) is x


def test_refusals():
    for augmentation in (flip, crop()):
        with pytest.raises(ValueError, match=r"\(N, C, H, W\), got \(4, 784\).*flat=False"):
            augmentation(torch.rand(4, 784), generator())
    with pytest.raises(ValueError, match="at least one pixel"):
        crop(0)


def test_training_inputs_can_be_changed_and_validation_is_not():
    seen = []

    def negated(x, generator):
        seen.append(len(x))
        return -x

    torch.manual_seed(0)
    x = torch.randn(60, 2)
    y = (x[:, 0] > 0).long()
    fitted = kasuri.fit(
        nn.Linear(2, 2),
        Batches(x, y, 30, seed=0, augment=negated),
        (-x, y),
        epochs=40,
        seed=0,
        learning_rate=0.05,
    )
    assert set(seen) == {30}
    assert len(seen) >= 80
    assert fitted.history[-1]["valid_accuracy"] > 0.95
