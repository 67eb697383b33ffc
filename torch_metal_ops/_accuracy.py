"""How near a kernel must come to the float64 reference: one rule for all ops, and no number chosen by hand.

Flash-attention's rule: err(kernel) <= 2 * err(plain torch in the same dtype) + floor.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Accuracy:
    """The largest error of a result, and how large it may be."""

    error: float  # inf where NaN or inf differ from the reference's
    limit: float
    eager_error: float
    worst: tuple[int, ...]  # where the largest error is

    @property
    def good(self) -> bool:
        return self.error <= self.limit


def _largest(error: Tensor) -> float:
    return max(error[error.isfinite()].tolist(), default=0.0)


def _floor(expected: Tensor, dtype: torch.dtype) -> float:
    """Twice what adding and taking away 0.3 can cost in this dtype: the rounding that no kernel can avoid.

    Flash-attention measures it on the result. That is this bound when the result has many elements; of a few, it may
    find by luck that none is rounded.
    """
    if not dtype.is_floating_point:
        return 0.0
    largest = max(expected[expected.isfinite()].abs().tolist(), default=0.0)
    return 2 * torch.finfo(dtype).eps * (largest + 0.3)


def measure(actual: Tensor, expected: Tensor, eager: Tensor) -> Accuracy:
    """How near ``actual`` is to ``expected``, and how near it must be.

    Args:
        actual: the kernel's result.
        expected: the reference's, float64, of the same shape.
        eager: plain torch's, computed in the kernel's dtype.
    """
    dtype, actual, eager = actual.dtype, actual.cpu().double(), eager.cpu().double()
    finite = expected.isfinite()
    same_kind = torch.where(finite, actual.isfinite(), (actual == expected) | (actual.isnan() & expected.isnan()))
    actual, eager, expected = (torch.where(finite, tensor, 0.0) for tensor in (actual, eager, expected))
    error = torch.where(same_kind, (actual - expected).abs(), float("inf"))
    eager_error = _largest((eager - expected).abs())
    limit = 2 * eager_error + _floor(expected, dtype)
    if not error.numel():
        return Accuracy(0.0, limit, eager_error, ())
    worst = tuple(int(i) for i in torch.unravel_index(error.argmax(), error.shape))
    return Accuracy(error[worst].item(), limit, eager_error, worst)
