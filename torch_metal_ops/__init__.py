"""Attention, int4 mixture-of-experts and gated delta networks for PyTorch on Apple GPUs."""

from torch_metal_ops import _library

_C = _library.load()

from torch_metal_ops import reference
from torch_metal_ops._build import VERSION as __version__
from torch_metal_ops.c_shims import c_shims, custom_ops_to_c_shims
from torch_metal_ops.ops import gated_delta_rule, gather_qmv, sdpa
from torch_metal_ops.quantization import dequantize_affine, quantize_affine

__all__ = [
    "__version__",
    "c_shims",
    "custom_ops_to_c_shims",
    "dequantize_affine",
    "gated_delta_rule",
    "gather_qmv",
    "quantize_affine",
    "reference",
    "sdpa",
]
