"""What must be set before any test module is imported."""

import os
import sys

import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # read at the first import of Triton, by whichever test comes first

try:
    import torchvision  # transformers imports it wherever it is installed
except RuntimeError:
    # The wheel was built for another torch than this one, say for CUDA: its compiled operators are missing, and its
    # import fails where it describes two of them. The tests need none, only its image functions, which are torch's.
    for name in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
        del sys.modules[name]
    operators = torch.library.Library("torchvision", "DEF")
    for name in ("nms", "qnms"):
        operators.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    import torchvision  # noqa: F401
