"""Accuracies are counted per token, per whole action and for STOP, for any order of targets."""

from __future__ import annotations

import math

import pytest
import torch

from vla_nav.training.accuracy import Counts, count, first_of_action

STOP = 0
# Three actions in a pack: tokens 3 4 5 (predicted from 2), STOP at 9 (from 8), 12 13 (from 8 too).
PREDICTOR = torch.tensor([2, 3, 4, 8, 8, 12])
TARGET_AT = torch.tensor([3, 4, 5, 9, 12, 13])
TARGET = torch.tensor([5, 6, 7, STOP, 5, 6])


def counted(predicted: list[int], order: list[int] | None = None) -> Counts:
    order = list(range(6)) if order is None else order
    return count(
        torch.tensor(predicted)[order],
        TARGET[order],
        predictor_index=PREDICTOR[order],
        target_index=TARGET_AT[order],
        stop_id=STOP,
    )


def test_targets_find_the_first_of_their_action() -> None:
    assert first_of_action(PREDICTOR, TARGET_AT).tolist() == [0, 0, 0, 3, 4, 4]
    shuffled = torch.tensor([5, 2, 0, 4, 1, 3])
    first = first_of_action(PREDICTOR[shuffled], TARGET_AT[shuffled])
    assert shuffled[first].tolist() == [4, 0, 0, 4, 0, 3]
    empty = torch.zeros(0, dtype=torch.int64)
    assert first_of_action(empty, empty).tolist() == []


def test_one_wrong_token_makes_its_whole_action_wrong_and_no_other() -> None:
    counts = counted([5, 6, 1, STOP, 5, 6])
    assert (counts.tokens, counts.tokens_right) == (6, 5)
    assert (counts.actions, counts.actions_right) == (3, 2)
    assert counts == counted([5, 6, 1, STOP, 5, 6], [4, 2, 5, 0, 3, 1])


def test_stop_is_judged_at_the_first_token_of_an_action_only() -> None:
    counts = counted([STOP, STOP, 7, STOP, 5, STOP])
    assert (counts.stops, counts.stops_predicted, counts.stops_right) == (1, 2, 1)
    assert counts.rates()["stop_precision"] == 0.5
    assert counts.rates()["stop_recall"] == 1.0


def test_counts_add_up_and_empty_rates_are_nan() -> None:
    one, two = counted([5, 6, 7, STOP, 5, 6]), counted([1, 6, 7, 5, 5, 6])
    assert (one + two).rates()["action_accuracy"] == pytest.approx(4 / 6)
    assert all(math.isnan(value) for value in Counts().rates().values())
