"""How near a kernel must come to the float64 reference: one rule for all ops, and no number chosen by hand."""

import torch
from torch import Tensor


def same_bits(a: Tensor, b: Tensor) -> bool:
    return torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8))


def _error(actual: Tensor, expected: Tensor) -> float:
    return (actual.double() - expected).abs().nan_to_num(0.0).max().item() if expected.numel() else 0.0


def _floor(expected: Tensor, dtype: torch.dtype) -> float:
    """Twice what adding and taking away 0.3 costs in this dtype: the rounding that no kernel can avoid."""
    rounded = expected.to(dtype)
    return 2 * _error(rounded + 0.3 - 0.3, rounded.double())


def check(actual: Tensor, expected: Tensor, eager: Tensor) -> None:
    """Fail unless ``actual`` is as near to ``expected`` as plain torch gets in the same dtype, times two.

    Flash-attention's rule: err(kernel) <= 2 * err(eager) + floor.

    Args:
        actual: the kernel's result.
        expected: the reference's, float64.
        eager: plain torch's, computed in the kernel's dtype.
    """
    actual, eager, dtype = actual.cpu(), eager.cpu(), actual.dtype
    assert actual.shape == expected.shape, f"shape {tuple(actual.shape)}, expected {tuple(expected.shape)}"
    finite = expected.isfinite()
    same_kind = torch.where(
        finite, actual.isfinite(), (actual.double() == expected) | (actual.isnan() & expected.isnan())
    )
    assert same_kind.all(), f"NaN or inf differs from the reference at {(~same_kind).nonzero()[0].tolist()}"
    actual, eager, expected = (torch.where(finite, tensor.double(), 0.0) for tensor in (actual, eager, expected))
    limit = 2 * _error(eager, expected) + _floor(expected, dtype)
    error = (actual - expected).abs()
    if error.numel() and error.max() > limit:
        worst = torch.unravel_index(error.argmax(), error.shape)
        where = [int(i) for i in worst]
        raise AssertionError(
            f"error {error.max():.3g} exceeds {limit:.3g} (plain torch: {_error(eager, expected):.3g}) "
            f"at {where}: got {actual[worst].item():.6g}, expected {expected[worst].item():.6g}"
        )
