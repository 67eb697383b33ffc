"""metal::gated_delta_rule: the recurrence of gated delta networks, with its state updated in place."""

from typing import Any

import torch
from torch import Tensor


def gated_delta_rule(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor) -> Tensor:
    r"""Run T steps of the gated delta rule and update ``state`` in place.

    For each batch, value head :math:`h` (with key head ``h // (Hv/Hk)``) and step :math:`t`, in float32:

    .. math::
        S \leftarrow g_t S, \quad d = \beta_t (v_t - S k_t), \quad S \leftarrow S + d k_t^\top, \quad y_t = S q_t

    Dimensions: ``B`` batches, ``T`` steps, ``Hk`` key heads, ``Hv`` value heads (a multiple of Hk), ``Dk`` and ``Dv``
    the head sizes, each from 1 to 256.

    Args:
        q, k: ``[B, T, Hk, Dk]``, float32, float16 or bfloat16, any strides. Neither scaled nor normalised inside.
        v: ``[B, T, Hv, Dv]``, dtype of q.
        g: ``[B, T, Hv]``, the decay itself, already exponentiated (0 <= g <= 1), or ``[B, T, Hv, Dk]`` for a decay a
            channel (Kimi delta attention). Any float dtype; float32 keeps decays near 1 that bfloat16 rounds to 1.
        beta: ``[B, T, Hv]``, the strength of the update. Any float dtype.
        state: ``[B, Hv, Dv, Dk]``, any float dtype and strides; a slice of a cache is updated in the cache. Rounded
            to its dtype once, at the end of the call. Must not share memory with another argument.

    Returns:
        ``y [B, T, Hv, Dv]``, contiguous, dtype of v. With T = 0 it is empty and the state stays as it is.

    Raises:
        ValueError: a shape or dtype outside the above, or a state that overlaps another argument or itself.

    Peers differ: fla and transformers take the logarithm of g, scale q by 1/sqrt(Dk), and keep the state as
    ``[B, Hv, Dk, Dv]``; here g is already exp'd, nothing is scaled, and the state is ``[B, Hv, Dv, Dk]`` as in MLX.

    Devices: CPU, MPS, Meta; ``torch.compile``, ``torch.export`` and AOTInductor. No gradient.
    Reference: :func:`torch_metal_ops.reference.gated_delta_rule`. After Yang et al., Gated Delta Networks, 2024;
    long T by the chunked (WY) form of flash-linear-attention (MIT).

    Example:
        >>> q = k = v = torch.randn(1, 3, 2, 8)
        >>> state = torch.zeros(1, 2, 8, 8)
        >>> gated_delta_rule(q, k, v, torch.ones(1, 3, 2), torch.ones(1, 3, 2), state).shape
        torch.Size([1, 3, 2, 8])
    """
    return torch.ops.metal.gated_delta_rule(q, k, v, g, beta, state)  # type: ignore[no-any-return]


@torch.library.register_vmap("metal::gated_delta_rule")  # type: ignore[untyped-decorator]
def _vmap(info: Any, in_dims: tuple[int | None, ...], *args: Tensor) -> tuple[Tensor, int]:
    """One call an element of the mapped dimension: torch's own fallback takes no op that mutates an argument."""
    if in_dims[-1] is None:
        raise ValueError(
            "gated_delta_rule: under vmap the state must be mapped too, got in_dims None for it. "
            "Give each element a state of its own."
        )
    elements = (
        [arg if dim is None else arg.select(dim, i) for arg, dim in zip(args, in_dims, strict=True)]
        for i in range(info.batch_size)
    )
    return torch.stack([gated_delta_rule(*element) for element in elements]), 0
