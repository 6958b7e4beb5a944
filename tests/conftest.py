"""One thread a process, and a reason for every test that this machine cannot run.

The suite runs one process per core, and equal sums need equal splits.
"""

import os

os.environ["OMP_NUM_THREADS"] = "1"  # before torch and the BLAS libraries read it; children inherit

import pytest
import torch

torch.set_num_threads(1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what needs a GPU or habitat-sim where there is none, and say so."""
    reasons = {}
    if not torch.cuda.is_available():
        reasons["gpu"] = "needs a CUDA device"
    if not os.environ.get("VLA_NAV_HABITAT_PYTHON"):
        reasons["habitat"] = "VLA_NAV_HABITAT_PYTHON names no interpreter with habitat-sim"
    for item in items:
        for marker, reason in reasons.items():
            if item.get_closest_marker(marker):
                item.add_marker(pytest.mark.skip(reason=reason))
