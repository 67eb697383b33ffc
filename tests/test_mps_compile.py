"""torch.compile and AOTInductor on mps: the Metal that Inductor writes, and ours between it."""

import sys
from copy import deepcopy
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from decoder import TINY, Decoder, float64_twin
from test_aoti import AllOps, inputs, lines_naming_an_op, run_in_new_process
from torch import nn

import torch_metal_ops
from tolerances import check
from torch_metal_ops import gated_delta_rule, sdpa

LINUX = sys.platform.startswith("linux")
if LINUX:
    from simulator import mps

OURS = ("sdpa", "gather_qmv", "gated_delta_rule")


@pytest.fixture(autouse=True)
def nothing_compiled():
    torch._dynamo.reset()


@pytest.fixture(autouse=True)
def unchecked():
    """In Inductor's reductions every thread of a threadgroup stores the result, which check mode takes for a race."""
    if LINUX:
        mps.activate(check=False)
    yield
    if LINUX:
        mps.activate(check=True)


def moved(values: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    return tuple(value.to("mps") for value in values)


class Norms(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.rms = nn.LayerNorm(48), nn.RMSNorm(48, eps=1e-6)

    def forward(self, x):
        return self.rms(self.layer(x) + x)


class Gate(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(48, 80), nn.Linear(40, 48)

    def forward(self, x):
        gate, value = self.up(x).chunk(2, -1)
        return self.down(F.silu(gate) * value)


class Rotary(nn.Module):
    def forward(self, x):
        angle = torch.arange(x.shape[1], device=x.device)[:, None] / (10000 ** (torch.arange(24, device=x.device) / 24))
        a, b = x.chunk(2, -1)
        return torch.cat((a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()), -1)


class Reduce(nn.Module):
    def forward(self, x):
        return x.softmax(-1).amax(1), x.var(-1), x.argmax(-1), x.sum((0, 2)), torch.where(x > 0, x, -1).mean(), x.any(0)


class Half(nn.Module):
    def forward(self, x):
        return x.half().sin() + 1, x.bfloat16().exp().tanh()


@pytest.mark.parametrize("module", [Norms(), Gate(), Rotary(), Reduce(), Half()], ids=lambda m: type(m).__name__)
def test_generated_metal_equals_eager(module: nn.Module):
    module = module.to("mps")
    x = torch.randn(2, 37, 48, device="mps")
    compiled = torch.compile(module, fullgraph=True)
    with torch.no_grad():
        if not LINUX:
            results = compiled(x)
        else:
            with mps.record() as launches:
                results = compiled(x)
            assert launches and all("generated_kernel" in launch.kernel for launch in launches)
        expected = module(x)
    torch.testing.assert_close(results, expected)


def test_our_ops_between_generated_metal():
    def call(q, state, g):
        q = torch.sin(q)
        y = gated_delta_rule(q, q, q, g.sigmoid(), g.sigmoid(), state)
        return torch.cos(sdpa(y, q, q, is_causal=True) * 2)

    q, g = torch.randn(2, 5, 3, 16, device="mps"), torch.randn(2, 5, 3, device="mps")
    states = [torch.zeros(2, 3, 16, 16, device="mps") for _ in range(2)]
    compiled = torch.compile(call, fullgraph=True)
    for _ in range(3):
        torch.testing.assert_close(compiled(q, states[0], g), call(q, states[1], g))
        torch.testing.assert_close(*states)


def package(program: torch.export.ExportedProgram, path: Path) -> Path:
    configs = {"aot_inductor.custom_ops_to_c_shims": torch_metal_ops.custom_ops_to_c_shims}
    torch._inductor.aoti_compile_and_package(program, package_path=str(path), inductor_configs=configs)
    called = lines_naming_an_op(path)
    assert all(f"CHECK(aoti_torch_mps_{op}(" in called for op in OURS), "the shims are called, nothing between"
    assert not any(f"aoti_torch_cpu_{op}(" in line for line in called.splitlines() for op in OURS if "CHECK" in line)
    assert "proxy_executor, " not in called
    return path


def test_ops_in_a_package(tmp_path: Path):
    model = AllOps().to("mps")
    sizes = [(2, 3, 7, 4, 5), (1, 2, 9, 17, 2), (2, 3, 7, 4, 5)]
    calls = [moved(inputs(*size)) for size in sizes]
    B, Lq, Lk, P, T = torch.export.dims("B", "Lq", "Lk", "P", "T", min=1, max=1000)
    shapes = (
        {0: B, 2: Lq}, {0: B, 2: Lk}, {0: Lq, 1: Lk}, {0: B}, {0: P}, {0: P}, {0: B, 1: T}, {0: B, 1: T}, {0: B},
    )  # fmt: skip
    made = package(torch.export.export(model, calls[0], dynamic_shapes=shapes), tmp_path / "ops.pt2")
    for call, (results, after) in zip(calls, run_in_new_process(made, calls, tmp_path, "--mps"), strict=True):
        assert all(map(torch.equal, results, model(*call)))
        assert all(map(torch.equal, after, call)), "the package must mutate what the eager call mutates"


def test_decoder_in_a_package(tmp_path: Path):
    """A prompt and single tokens; each result depends on the state and the cache that the calls before it left."""
    model = Decoder(TINY)
    eager, truth = deepcopy(model).to("mps"), float64_twin(model)
    calls = [(torch.randn(TINY.batch, tokens, TINY.hidden, device="mps"),) for tokens in (5, 1, 1, 3)]
    tokens = torch.export.Dim("tokens", min=1, max=TINY.max_length)
    program = torch.export.export(deepcopy(eager), calls[0], dynamic_shapes={"x": {1: tokens}})
    made = package(program, tmp_path / "decoder.pt2")
    for (x,), (y, _) in zip(calls, run_in_new_process(made, calls, tmp_path, "--mps"), strict=True):
        check(y.cpu(), truth(x.cpu().double()), eager(x).cpu())
