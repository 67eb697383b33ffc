"""What each op computes, in float64 and plain torch, written from the formula: the truth the kernels are tested by."""

from torch_metal_ops.reference.gated_delta_rule import gated_delta_rule
from torch_metal_ops.reference.gather_qmv import gather_qmv
from torch_metal_ops.reference.sdpa import sdpa

__all__ = ["gated_delta_rule", "gather_qmv", "sdpa"]
