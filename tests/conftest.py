"""One thread a process, forks before gradients, a reason for every test that cannot run here.

The suite runs one process per core, and equal sums need equal splits. Tests that train in a forked
child come first: torch refuses gradients in the child of a process that has computed some.
"""

import os

os.environ["OMP_NUM_THREADS"] = "1"  # before torch and the BLAS libraries read it; children inherit

import pytest
import torch

torch.set_num_threads(1)


_FORKING = ("test_resume", "test_ranks", "test_module")  # of tests/training, in this order


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Forking tests first; skip what needs a GPU or habitat-sim where there is none, and say so."""
    order = {name: place for place, name in enumerate(_FORKING)}
    items.sort(key=lambda item: order.get(item.path.stem, len(order)))
    reasons = {}
    if not torch.cuda.is_available():
        reasons["gpu"] = "needs a CUDA device"
    if not os.environ.get("VLA_NAV_HABITAT_PYTHON"):
        reasons["habitat"] = "VLA_NAV_HABITAT_PYTHON names no interpreter with habitat-sim"
    if not os.environ.get("VLA_NAV_LONG"):
        reasons["long"] = "takes minutes: set VLA_NAV_LONG=1"
    for item in items:
        for marker, reason in reasons.items():
            if item.get_closest_marker(marker):
                item.add_marker(pytest.mark.skip(reason=reason))
