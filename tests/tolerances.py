"""A result against the float64 reference, by the rule of torch_metal_ops/_accuracy.py."""

import torch
from torch import Tensor

from torch_metal_ops._accuracy import measure


def same_bits(a: Tensor, b: Tensor) -> bool:
    a, b = a.contiguous().flatten(), b.contiguous().flatten()  # a number of its own has no bytes to view
    return torch.equal(a.view(torch.uint8), b.view(torch.uint8))


def check(actual: Tensor, expected: Tensor, eager: Tensor) -> None:
    """Fail unless ``actual`` is as near to ``expected`` (float64) as ``eager``, plain torch in its dtype, times two."""
    assert actual.shape == expected.shape, f"shape {tuple(actual.shape)}, expected {tuple(expected.shape)}"
    accuracy = measure(actual, expected, eager)
    assert accuracy.good, (
        f"error {accuracy.error:.3g} exceeds {accuracy.limit:.3g} (plain torch: {accuracy.eager_error:.3g}) at "
        f"{list(accuracy.worst)}: got {actual[accuracy.worst].item():.6g}, expected {expected[accuracy.worst].item():.6g}"
    )
