"""Makes torchvision importable beside any torch: transformers imports it wherever it is installed.

Import this before transformers. A wheel that was built for another torch, say for CUDA, lacks its compiled operators,
and its import fails where it describes two of them. Only its image functions are needed here, which are torch's.
"""

import sys

import torch

try:
    import torchvision
except RuntimeError:
    for name in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
        del sys.modules[name]
    operators = torch.library.Library("torchvision", "DEF")
    for name in ("nms", "qnms"):
        operators.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    import torchvision  # noqa: F401
except ModuleNotFoundError:
    pass  # transformers does without
