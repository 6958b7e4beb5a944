"""One thread a process: the suite runs one process per core, and equal sums need equal splits."""

import os

os.environ["OMP_NUM_THREADS"] = "1"  # before torch and the BLAS libraries read it; children inherit

import torch

torch.set_num_threads(1)
