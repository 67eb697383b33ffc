"""SDPAToMetalPass: the graph it leaves computes what torch's attention does, on the CPU, in both of its dialects."""

import warnings

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

import torch_metal_ops
from tolerances import check
from torch_metal_ops.executorch import SDPAToMetalPass


class Attention(nn.Module):
    def __init__(self, **options: object) -> None:
        super().__init__()
        self.options = options

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, mask, **self.options)


def qkv(Hq: int = 4, Hkv: int = 4, Lq: int = 6, Lk: int = 9, Dk: int = 16, Dv: int = 16, **options) -> list[Tensor]:
    return [
        torch.randn(2, Hq, Lq, Dk, **options),
        torch.randn(2, Hkv, Lk, Dk, **options),
        torch.randn(2, Hkv, Lk, Dv, **options),
    ]


def transposed(x: Tensor) -> Tensor:
    return x.transpose(1, 2).contiguous().transpose(1, 2)


CASES = {
    "plain": (Attention(), qkv()),
    "head size 80": (Attention(), qkv(Dk=80, Dv=80)),
    "values of another size": (Attention(), qkv(Dk=24, Dv=40)),
    "float16": (Attention(), qkv(dtype=torch.float16)),
    "causal, more keys": (Attention(is_causal=True), qkv()),
    "causal, more queries": (Attention(is_causal=True), qkv(Lq=9, Lk=6)),
    "scale": (Attention(scale=0.3), qkv()),
    "scale 0": (Attention(scale=0.0), qkv()),
    "grouped heads": (Attention(enable_gqa=True), qkv(Hkv=2)),
    "grouped, causal, scale": (Attention(enable_gqa=True, is_causal=True, scale=0.5), qkv(Hkv=1)),
    "no dropout": (Attention(dropout_p=0.0), qkv()),
    "float mask": (Attention(), [*qkv(), torch.randn(6, 9)]),
    "bool mask": (Attention(), [*qkv(), torch.rand(2, 1, 6, 9) < 0.7]),
    "a mask a head, grouped": (Attention(enable_gqa=True, scale=0.1), [*qkv(Hkv=2), torch.randn(1, 4, 1, 9)]),
    "memory order of a projection": (Attention(), [transposed(x) for x in qkv()]),
    "three dimensions": (Attention(), [x[0] for x in qkv()]),
}  # fmt: skip
every_case = pytest.mark.parametrize(("model", "inputs"), CASES.values(), ids=CASES.keys())


def targets(graph_module: torch.fx.GraphModule) -> list[str]:
    return [str(getattr(n.target, "_op", n.target)) if not isinstance(n.target, torch._ops.OpOverload) else str(n.target)
            for n in graph_module.graph.nodes if n.op == "call_function"]  # fmt: skip


def expect_same(program: torch.export.ExportedProgram, model: nn.Module, inputs: list[Tensor]) -> None:
    eager = model(*inputs)
    wide = [x.double() if x.is_floating_point() else x for x in inputs]
    check(program.module()(*inputs), model(*wide), eager)


@every_case
def test_aten_graph(model, inputs):
    program = torch.export.export(model, tuple(inputs))
    assert targets(program.graph_module) == ["aten.scaled_dot_product_attention.default"]
    assert SDPAToMetalPass()(program.graph_module).modified
    assert targets(program.graph_module) == ["metal.sdpa.default"]
    expect_same(program, model, inputs)
    decomposed = program.run_decompositions()
    assert "metal.sdpa.default" in targets(decomposed.graph_module)
    expect_same(decomposed, model, inputs)
    assert not SDPAToMetalPass()(program.graph_module).modified


def test_example_values_are_traced_anew():
    """Passes that come later see the memory order that the op really has."""
    q, k, v = qkv()
    with sdpa_kernel([SDPBackend.MATH]):
        program = torch.export.export(Attention(), (transposed(q), k, v))
    (node,) = (node for node in program.graph.nodes if node.op == "call_function")
    assert node.meta["val"].is_contiguous()
    SDPAToMetalPass()(program.graph_module)
    assert node.meta["val"].transpose(1, 2).is_contiguous()


class Viewed(nn.Module):
    """Right when attention returns packed memory, as torch's MATH does for any query; metal::sdpa keeps query's order."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        y = F.scaled_dot_product_attention(q, k, v)
        return y.transpose(2, 3).transpose(2, 3).view(8, 6, 16)


@pytest.mark.parametrize("decomposed", [False, True])
def test_a_view_of_the_result(decomposed: bool):
    q, k, v = qkv()
    inputs = (transposed(q), k, v)
    with sdpa_kernel([SDPBackend.MATH]):
        program = torch.export.export(Viewed(), inputs)
        expected = Viewed()(*inputs)
    SDPAToMetalPass()(program.graph_module)
    if decomposed:
        program = program.run_decompositions()
    torch.testing.assert_close(program.module()(*inputs), expected)


def test_symbolic_shapes():
    Lq, Lk = torch.export.Dim("Lq", min=1, max=100), torch.export.Dim("Lk", min=1, max=100)
    model = Attention(is_causal=True, enable_gqa=True)
    program = torch.export.export(model, tuple(qkv(Hkv=2)), dynamic_shapes=({2: Lq}, {2: Lk}, {2: Lk}))
    SDPAToMetalPass()(program.graph_module)
    assert targets(program.graph_module) == ["metal.sdpa.default"]
    for lengths in ({"Lq": 6, "Lk": 9}, {"Lq": 1, "Lk": 1}, {"Lq": 17, "Lk": 64}):
        expect_same(program, model, qkv(Hkv=2, **lengths))


class Branches(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        def attend(x: Tensor) -> Tensor:
            return F.scaled_dot_product_attention(x, x, x)

        return torch.cond(x.sum() > 0, attend, torch.sin, (x,))


def test_a_branch_of_the_graph():
    x = torch.randn(1, 2, 5, 8)
    program = torch.export.export(Branches(), (x,))
    assert SDPAToMetalPass()(program.graph_module).modified
    inner = [targets(m) for m in program.graph_module.modules() if isinstance(m, torch.fx.GraphModule)]
    assert ["metal.sdpa.default"] in inner
    for value in (x.abs(), -x.abs()):
        torch.testing.assert_close(program.module()(value), Branches()(value))


LEFT = {
    "dropout": (Attention(dropout_p=0.5), qkv(), "dropout_p must be 0"),
    "float64": (Attention(), qkv(dtype=torch.float64), "query must be "),
    "five dimensions": (Attention(), [x[None] for x in qkv()], "Flatten further batch dimensions"),
    "head size 640": (Attention(), qkv(Dk=640), "Dk must be "),
}


@pytest.mark.parametrize(("model", "inputs", "reason"), LEFT.values(), ids=LEFT.keys())
def test_what_the_op_does_not_take_is_left(model, inputs, reason):
    program = torch.export.export(model, tuple(inputs))
    with pytest.warns(UserWarning) as said:
        assert not SDPAToMetalPass()(program.graph_module).modified
    assert targets(program.graph_module) == ["aten.scaled_dot_product_attention.default"]
    (text,) = (str(warning.message) for warning in said)
    assert text.startswith(
        "SDPAToMetalPass: left scaled_dot_product_attention to torch, since metal::sdpa does not take it: sdpa: "
    )
    assert reason in text


class Mixed(nn.Module):
    """An attention of the model's own beside our op, and one that stays."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, ...]:
        ours = torch_metal_ops.sdpa(q, k, v, enable_gqa=True, softcap=20.0)
        theirs = F.scaled_dot_product_attention(q, k, v, enable_gqa=True)
        return ours, theirs, F.scaled_dot_product_attention(q.double(), k.double(), v.double(), enable_gqa=True)


@pytest.mark.filterwarnings("ignore:SDPAToMetalPass")
def test_one_call_is_left_and_another_not():
    inputs = qkv(Hkv=2)
    program = torch.export.export(Mixed(), tuple(inputs))
    assert SDPAToMetalPass()(program.graph_module).modified
    names = [name for name in targets(program.graph_module) if "sdpa" in name or "attention" in name]
    assert names == ["metal.sdpa.default", "metal.sdpa.default", "aten.scaled_dot_product_attention.default"]
    for result, expected in zip(program.module()(*inputs), Mixed()(*inputs), strict=True):
        torch.testing.assert_close(result, expected)


@every_case
def test_edge_graph(model, inputs):
    """As one of transform_passes, where ExecuTorch's own operators wrap torch's."""
    exir = pytest.importorskip("executorch.exir", reason="executorch is not installed: .ci/executorch runs these")
    if not hasattr(exir, "to_edge_transform_and_lower"):
        pytest.skip("executorch is not installed: .ci/executorch runs these")
    from executorch.backends.apple.metal.metal_partitioner import MetalPartitioner

    class KeepAttention(MetalPartitioner.__mro__[1]):
        """MetalPartitioner's rule for what is decomposed, without its delegation: that needs an mps device."""

        def partition(self, exported_program):
            return exir.backend.partitioner.PartitionResult(exported_program, {})

    program = torch.export.export(model, tuple(inputs))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        edge = exir.to_edge_transform_and_lower(
            program, transform_passes=[SDPAToMetalPass()], partitioner=[KeepAttention("MetalBackend", [])]
        ).exported_program()
    names = targets(edge.graph_module)
    assert "metal.sdpa.default" in names and "aten.scaled_dot_product_attention.default" not in names
    expect_same(edge, model, inputs)
