"""What must be set before any test module is imported."""

import os

import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # read at the first import of Triton, by whichever test comes first

import benchmarks.any_torchvision  # noqa: F401 - before any test imports transformers
