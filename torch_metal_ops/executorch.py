"""Models with our ops, lowered to ExecuTorch's Metal backend.

    import torch_metal_ops.executorch

    with torch_metal_ops.executorch.enable():
        program = to_edge_transform_and_lower(
            exported,
            transform_passes=[torch_metal_ops.executorch.SDPAToMetalPass()],  # if wanted
            partitioner=[MetalPartitioner([MetalBackend.generate_method_name_compile_spec("forward")])],
        ).to_executorch()

:func:`enable` tells ``MetalBackend`` which C shims our ops have. :class:`SDPAToMetalPass` moves a model's attention to
``metal::sdpa``, its code unchanged. ExecuTorch is imported by :func:`enable`, and not before.
"""

import contextlib
import importlib
import sys
import warnings
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, fx
from torch.fx.passes.infra.pass_base import PassBase, PassResult
from torch.utils import _pytree as pytree

from torch_metal_ops.c_shims import c_shims

__all__ = ["SDPAToMetalPass", "disable", "enable"]

_BACKEND = "executorch.backends.apple.metal.metal_backend"
_TORCHAO_SHIMS = "torchao.experimental.ops.mps.cshim"
_SHIMS_OPTION = "aot_inductor.custom_ops_to_c_shims"
_HOOKS = ("get_aoti_compile_options", "get_supported_fallback_kernels")

# MetalBackend's own classmethods while ours stand in for them.
_originals: dict[str, Any] = {}


def _not_fit(found: str) -> ImportError:
    return ImportError(
        f"torch_metal_ops.executorch: ExecuTorch's Metal backend must have the hooks of release 1.5.1, got {found}. "
        "Install that release: pip install executorch==1.5.1"
    )


def _backend() -> Any:
    try:
        backend = importlib.import_module(_BACKEND).MetalBackend
    except (ImportError, AttributeError) as error:
        raise _not_fit(str(error)) from error
    missing = [hook for hook in _HOOKS if not isinstance(vars(backend).get(hook), classmethod)]
    if missing:
        raise _not_fit(f"a MetalBackend without {' and '.join(missing)}")
    return backend


@contextlib.contextmanager
def _without_torchao() -> Iterator[None]:
    stand_in = ModuleType(_TORCHAO_SHIMS)
    stand_in.torchao_op_c_shim = {}  # type: ignore[attr-defined]
    sys.modules[_TORCHAO_SHIMS] = stand_in
    try:
        yield
    finally:
        del sys.modules[_TORCHAO_SHIMS]


def _compile_options(original: Callable[..., dict[str, Any]], *args: Any) -> dict[str, Any]:
    torchao: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
    try:
        importlib.import_module(_TORCHAO_SHIMS)  # MetalBackend does too, whatever the model
    except (ImportError, RuntimeError, OSError) as error:
        warnings.warn(
            f"torch_metal_ops.executorch: skipped the C shims of torchao's quantised linear layers, since its MPS "
            f"library cannot be loaded ({error}). Only models with such layers need them.",
            stacklevel=3,
        )
        torchao = _without_torchao()
    with torchao:
        options = original(*args)
    if _SHIMS_OPTION not in options:
        raise _not_fit(f"compile options without {_SHIMS_OPTION}")
    # Where ExecuTorch has a declaration itself it stays, so that its own models compile to what they did.
    theirs = options[_SHIMS_OPTION]
    return {**options, _SHIMS_OPTION: theirs | c_shims("mps") | theirs}


def _fallback_kernels(original: Callable[..., dict[str, Any]], *args: Any) -> dict[str, Any]:
    # Torch releases differ in which of an op's two names Inductor asks for.
    names = [name for op in c_shims("mps") for name in (op.name(), f"aoti_torch_mps_{op._opname}")]
    return dict.fromkeys(names) | original(*args)


def enable() -> contextlib.ExitStack:
    """Let ExecuTorch's ``MetalBackend`` compile ``metal::sdpa``, ``metal::gather_qmv`` and ``metal::gated_delta_rule``.

    Calling it again changes nothing. As a context manager it is undone at the end, unless it was enabled before.

    Returns:
        A context manager; to leave it enabled, ignore it.

    Raises:
        ImportError: ExecuTorch is not installed, or is a release without the two hooks that this needs.
    """
    undo = contextlib.ExitStack()
    if _originals:
        return undo
    backend = _backend()
    for hook, extend in zip(_HOOKS, (_compile_options, _fallback_kernels), strict=True):
        original = _originals[hook] = vars(backend)[hook]

        def extended(cls: type, *args: Any, _extend: Any = extend, _original: Any = original) -> dict[str, Any]:
            result: dict[str, Any] = _extend(_original.__get__(None, cls), *args)
            return result

        setattr(backend, hook, classmethod(extended))
    undo.callback(disable)
    return undo


def disable() -> None:
    """Give ``MetalBackend`` back its own two classmethods; nothing happens where they are there already."""
    if _originals:
        backend = _backend()
        while _originals:
            setattr(backend, *_originals.popitem())


class SDPAToMetalPass(PassBase):
    """Turns ``aten.scaled_dot_product_attention`` into ``metal::sdpa``, in place; masks and grouped heads included.

    ``metal::sdpa`` begins with torch's arguments, in torch's order and with torch's meaning, so a call's arguments stay
    as they are. A call that it does not take (dropout, float64, more than four dimensions) stays torch's, with a
    warning that gives the reason.

    It runs on the graph of an exported program (``SDPAToMetalPass()(exported.graph_module)``) or as one of the
    ``transform_passes`` of ``to_edge_transform_and_lower``, with a partitioner that keeps the attention whole, as
    ``MetalPartitioner`` does.

    Example:
        >>> class Attention(torch.nn.Module):
        ...     def forward(self, q, k, v):
        ...         return torch.nn.functional.scaled_dot_product_attention(q, k, v, enable_gqa=True)
        >>> q, k = torch.randn(1, 8, 3, 80), torch.randn(1, 2, 5, 80)
        >>> exported = torch.export.export(Attention(), (q, k, k))
        >>> SDPAToMetalPass()(exported.graph_module).modified
        True
        >>> [str(node.target) for node in exported.graph.nodes if node.op == "call_function"]
        ['metal.sdpa.default']
    """

    def call(self, graph_module: fx.GraphModule) -> PassResult:
        modified = False
        for module in graph_module.modules():
            if not isinstance(module, fx.GraphModule):
                continue  # a graph's constants and its branches are submodules
            replaced = [_replace(node) for node in module.graph.nodes if _is_sdpa(node)]
            if any(replaced):
                module.recompile()
                modified = True
        return PassResult(graph_module, modified)


def _is_sdpa(node: fx.Node) -> bool:
    target: Any = node.target
    if not isinstance(target, torch._ops.OpOverload):
        target = getattr(target, "_op", None)  # ExecuTorch's edge operators wrap ATen's
    return node.op == "call_function" and target is torch.ops.aten.scaled_dot_product_attention.default


def _replace(node: fx.Node) -> bool:
    try:
        value = _traced(node)
    except (ValueError, NotImplementedError) as error:
        warnings.warn(
            f"SDPAToMetalPass: left {node.name} to torch, since metal::sdpa does not take it: {error}", stacklevel=4
        )
        return False
    if isinstance(node.target, torch._ops.OpOverload):
        node.target = torch.ops.metal.sdpa.default
        if value.stride() != node.meta["val"].stride():
            _let_views_copy(node)
    else:
        node.target = importlib.import_module("executorch.exir.dialects._ops").ops.edge.metal.sdpa.default
    node.meta["val"] = value
    return True


def _traced(node: fx.Node) -> Tensor:
    """What ``metal::sdpa`` returns for the node's example values, or its sentence about what is wrong with them."""
    args, kwargs = fx.map_arg((node.args, node.kwargs), lambda argument: argument.meta["val"])
    # The check comes first and alone: fake tensors log what they raise, and have no NotImplementedError.
    torch.ops.metal.sdpa.default(*_on_meta(args), **_on_meta(kwargs))
    with torch._guards.detect_fake_mode(pytree.tree_leaves((args, kwargs))) or contextlib.nullcontext():
        result: Tensor = torch.ops.metal.sdpa.default(*args, **kwargs)
    return result


def _on_meta(values: Any) -> Any:
    return pytree.tree_map_only(
        Tensor, lambda x: torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="meta"), values
    )


def _let_views_copy(node: fx.Node) -> None:
    """A ``view`` that torch's memory order of the result allowed may need another one's copy."""
    for user in node.users:
        if user.target is torch.ops.aten.view.default:
            user.target = torch.ops.aten.reshape.default
        if getattr(user.target, "is_view", False) or user.target is torch.ops.aten.reshape.default:
            _let_views_copy(user)
