"""A number that is not one is never lost among good rows."""

from __future__ import annotations

import math

import pytest
import torch

from vla_nav.verification.report import Finding, compare, largest, worst
from vla_nav.verification.splits import _worst

GOOD = Finding("a", 1e-16, 1e-16, 1e-12)
BAD = {
    "nan": Finding("b", math.nan, math.nan, 1e-12),
    "shape": compare("b", torch.zeros(2), torch.zeros(3), 1e-12),
    "nan logits": compare("b", torch.full((2,), math.nan), torch.ones(2), 1e-12),
    "one nan": compare("b", torch.tensor([1.0, math.nan]), torch.ones(2), 1e-12),
    "absolute": Finding("b", math.inf, None, 0.0),
}


@pytest.mark.parametrize("name", BAD)
@pytest.mark.parametrize("order", [(0, 1), (1, 0), (0, 1, 0)])
def test_a_bad_row_is_the_worst_wherever_it_stands(name, order):
    rows = [(GOOD, BAD[name])[place] for place in order]
    assert GOOD.is_ok
    assert not BAD[name].is_ok
    assert not worst("rows", rows).is_ok
    assert not _worst("rows", rows, "").is_ok


def test_largest_keeps_what_is_not_a_number():
    assert largest([]) == 0.0
    assert largest([1.0, 3.0, 2.0]) == 3.0
    for values in ([math.nan, 1.0], [1.0, math.nan], [0.0, math.nan, 2.0]):
        assert math.isnan(largest(values))
