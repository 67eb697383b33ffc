"""csrc/executorch: the library for apps that run a .pte, in a process without libtorch.

The app here is tests/executorch/runtime: the C interface of ExecuTorch's Metal runtime, by its rules, with the
simulator for a GPU. What it runs was lowered as for a Mac.
"""

import copy
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from export_executorch import Delegate, delegates, lower
from torch import Tensor, nn
from torch.nn import functional as F

import torch_metal_ops
from tolerances import check

pytest.importorskip("executorch.backends.apple.metal.ops", reason="executorch is not installed")
pytestmark = [
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="a Mac runs a .pte in ExecuTorch itself"),
    pytest.mark.skipif(shutil.which("cmake") is None, reason="cmake is not installed: pip install cmake"),
    pytest.mark.filterwarnings("ignore:torch_metal_ops.executorch. skipped"),
]

HERE = Path(__file__).parent / "runtime"
ROOT = Path(__file__).resolve().parents[2]
DTYPES = {0: torch.uint8, 3: torch.int32, 4: torch.int64, 6: torch.float32, 11: torch.bool, 15: torch.bfloat16}
CODES = {dtype: code for code, dtype in DTYPES.items()} | {torch.float16: 5}

Build = Callable[[bool], Path]


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Build:
    """The app, with ExecuTorch's gather_qmv and gated_delta_rule, or with ours in place of them."""
    folder = tmp_path_factory.mktemp("runtime")

    def make(replace: bool) -> Path:
        target = folder / str(replace)
        options = [f"-DTORCH_METAL_OPS_REPLACE={'ON' if replace else 'OFF'}", f"-DPython3_EXECUTABLE={sys.executable}"]
        for command in (["cmake", "-S", HERE, "-B", target, *options], ["cmake", "--build", target, "-j", "2"]):
            done = subprocess.run(command, capture_output=True, text=True)
            assert done.returncode == 0, done.stdout + done.stderr
        return target / "host"

    return make


@pytest.fixture(scope="module")
def app(build: Build) -> Path:
    return build(False)


@pytest.fixture(scope="module")
def app_with_all(build: Build) -> Path:
    return build(True)


@pytest.fixture(autouse=True)
def quick_compilation():
    with torch._inductor.config.patch({"aot_inductor.compile_wrapper_opt_level": "O0"}):
        yield


def lowered(model: nn.Module, inputs: tuple[Tensor, ...]) -> Delegate:
    (delegate,) = delegates(lower(model, inputs)[0])
    return delegate


def bytes_of(tensor: Tensor) -> bytes:
    return tensor.contiguous().flatten().view(torch.uint8).numpy().tobytes()


def execute(
    app: Path, delegate: Delegate, inputs: Sequence[Tensor], folder: Path, calls: int = 1
) -> subprocess.CompletedProcess[str]:
    (folder / "model.so").write_bytes(delegate.library)
    (folder / "weights").write_bytes(delegate.weights)
    lines = []
    for i, tensor in enumerate(inputs):
        path = folder / f"input_{i}"
        path.write_bytes(bytes_of(tensor))
        sizes = (CODES[tensor.dtype], tensor.dim(), *tensor.shape, *tensor.contiguous().stride(), path)
        lines.append(" ".join(map(str, sizes)))
    (folder / "inputs").write_text("\n".join(lines))
    command = [str(app), *(str(folder / name) for name in ("model.so", "weights")), str(folder), str(calls)]
    compiler = shlex.join([sys.executable, str(HERE / "compile_kernel.py")])
    return subprocess.run(command, capture_output=True, text=True, env={**os.environ, "MSL_COMPILE": compiler})


def run(app: Path, delegate: Delegate, inputs: Sequence[Tensor], folder: Path, calls: int = 1) -> list[Tensor]:
    """The results of all calls, one after the other."""
    done = execute(app, delegate, inputs, folder, calls)
    assert done.returncode == 0, done.stderr
    results = []
    for line in (folder / "outputs").read_text().splitlines():
        dtype, dim, *numbers, path = line.split()
        shape, strides = ([int(n) for n in part] for part in (numbers[: int(dim)], numbers[int(dim) :]))
        flat = torch.frombuffer(bytearray(Path(path).read_bytes()), dtype=DTYPES[int(dtype)])
        results.append(flat.as_strided(shape, strides))
    return results


class Attention(nn.Module):
    """Each kind of call: few rows, tiles of them, split keys, masks, lengths, windows, sinks, and any head size.

    The inputs are in the order of their first use: it is the order in which the delegate wants them.
    """

    def forward(self, q: Tensor, cache: Tensor, used: Tensor, sinks: Tensor, mask: Tensor) -> tuple[Tensor, ...]:
        heads = q.transpose(1, 2)  # a view that ExecuTorch keeps
        one = heads[:, :, :1] * 1.5
        return (
            torch_metal_ops.sdpa(heads, cache, cache, enable_gqa=True, is_causal=True, sliding_window=7),
            torch_metal_ops.sdpa(one, cache, cache, enable_gqa=True, seqused_k=used, sinks=sinks, softcap=15.0),
            torch_metal_ops.sdpa(one.sin(), cache, cache[..., :40] * 2, mask, enable_gqa=True).cos(),
        )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_attention(app: Path, dtype: torch.dtype, tmp_path: Path):
    inputs = (
        torch.randn(2, 33, 4, 72, dtype=dtype),
        torch.randn(2, 2, 300, 72, dtype=dtype),
        torch.tensor([290, 17]),
        torch.randn(4),
        torch.rand(2, 1, 1, 300) < 0.5,
    )
    model = Attention()
    delegate = lowered(model, inputs)
    assert "aoti_torch_mps_sdpa" in delegate.shims
    wide = [x.double() if x.is_floating_point() else x for x in inputs]
    expected = reference_attention(*wide)
    for result, truth, eager in zip(run(app, delegate, inputs, tmp_path), expected, model(*inputs), strict=True):
        check(result, truth, eager)


def reference_attention(q: Tensor, cache: Tensor, used: Tensor, sinks: Tensor, mask: Tensor) -> tuple[Tensor, ...]:
    from torch_metal_ops.reference import sdpa

    heads = q.transpose(1, 2)
    one = heads[:, :, :1] * 1.5
    return (
        sdpa(heads, cache, cache, enable_gqa=True, is_causal=True, sliding_window=7),
        sdpa(one, cache, cache, enable_gqa=True, seqused_k=used, sinks=sinks, softcap=15.0),
        sdpa(one.sin(), cache, cache[..., :40] * 2, mask, enable_gqa=True).cos(),
    )


class Mixed(nn.Module):
    """The three ops, torch's between them, weights, and a state that calls leave to each other."""

    def __init__(self) -> None:
        super().__init__()
        w, scales, biases = torch_metal_ops.quantize_affine(torch.randn(2, 64, 64), 3, 16)
        for name, tensor in (("w", w), ("scales", scales), ("biases", biases), ("state", torch.zeros(1, 2, 16, 16))):
            self.register_buffer(name, tensor)

    def forward(self, q: Tensor, k: Tensor, expert: Tensor) -> tuple[Tensor, ...]:
        x = torch_metal_ops.sdpa(q, k, k, enable_gqa=True).transpose(1, 2).flatten(-2)
        y = torch_metal_ops.gather_qmv(x[0], self.w, self.scales, self.biases, expert, 16)
        few = torch_metal_ops.gather_qmv(x[0, :3], self.w, self.scales, self.biases, expert[:3], 16)
        delta = F.normalize(y.view(1, -1, 4, 16)[:, :, :2], dim=-1)
        decay, beta = delta[..., 0].sigmoid(), delta[..., 1].sigmoid()
        return y, few, torch_metal_ops.gated_delta_rule(delta, delta, delta, decay, beta, self.state)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_all_ops(app_with_all: Path, dtype: torch.dtype, tmp_path: Path):
    """With 3 bits in groups of 16 and a state of 16 x 16: ExecuTorch's kernels have neither."""
    inputs = (
        torch.randn(1, 4, 20, 16, dtype=dtype),
        torch.randn(1, 2, 9, 16, dtype=dtype),
        (torch.arange(20) % 3 - 1).int(),
    )
    model = Mixed().to(dtype)
    results = iter(run(app_with_all, lowered(model, inputs), inputs, tmp_path, calls=2))
    eager, wide = copy.deepcopy(model), copy.deepcopy(model).float()
    for _ in range(2):
        for expected, truth in zip(
            eager(*inputs), wide(*(x.float() if x.is_floating_point() else x for x in inputs)), strict=True
        ):
            if dtype == torch.float32:
                torch.testing.assert_close(next(results), expected)
            else:
                check(next(results), truth.double(), expected)


def test_theirs_stay_without_the_option(app: Path, tmp_path: Path):
    """The app's own gather_qmv is the one that is called; it says so with an error."""
    inputs = (torch.randn(1, 4, 3, 16), torch.randn(1, 2, 9, 16), torch.tensor([0, 1, 0], dtype=torch.int32))
    done = execute(app, lowered(Mixed(), inputs), inputs, tmp_path)
    assert done.returncode == 1
    assert "aoti_torch_mps_gather_qmv" in done.stderr


def test_an_error_is_a_sentence_in_the_log(app: Path):
    done = subprocess.run([app.with_name("errors")], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr == (
        "torch_metal_ops: ExecuTorch cannot copy to contiguous memory what is in the wrong order, got strides "
        "[512, 256, 1, 16] for shape [1, 2, 16, 16]. Call .contiguous() in the model.\n"
    )


def test_exported_symbols(app: Path, app_with_all: Path):
    """The shims; of our own functions none, and none that libtorch could have."""
    found = [subprocess.check_output(["nm", "-D", "--defined-only", path], text=True) for path in (app, app_with_all)]
    ours = {"aoti_torch_mps_sdpa", "aoti_torch_mps_gather_qmv", "aoti_torch_mps_gated_delta_rule"}
    for symbols in found:
        assert ours <= {line.split()[-1] for line in symbols.splitlines()}
        assert not re.search(r" _ZNK?(3tmo|2at|3c10)", symbols)


def test_it_compiles_for_a_mac(tmp_path: Path):
    """All of it is plain C++ without a header of Apple's."""
    files = [*ROOT.glob("csrc/executorch/**/*.cpp"), *(ROOT / f"csrc/mps/{op}.mm" for op in ("sdpa", "gather_qmv"))]
    files += [ROOT / "csrc/mps/gated_delta_rule.mm", ROOT / "csrc/core/overlap.cpp"]
    target = ["--target=aarch64-macos.14.0", "-std=c++20", "-Wall", "-Wextra", "-Werror", "-DTMO_EXECUTORCH"]
    for path in files:
        command = [sys.executable, "-m", "ziglang", "c++", *target, f"-I{ROOT / 'csrc/executorch/aten'}", "-x", "c++"]
        subprocess.run([*command, "-c", path, "-o", tmp_path / "object.o"], check=True)
