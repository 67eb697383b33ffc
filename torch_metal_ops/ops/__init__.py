from torch_metal_ops.ops.gated_delta_rule import gated_delta_rule
from torch_metal_ops.ops.gather_qmv import gather_qmv
from torch_metal_ops.ops.sdpa import sdpa

__all__ = ["gated_delta_rule", "gather_qmv", "sdpa"]
