"""The whole route to ExecuTorch's Metal backend: exported, lowered, and then run from what is in the .pte.

Linux has the simulated device for it. The library in a .pte is compiled for this machine there, its kernels are
compiled by the simulator and run in check mode, and its results are held to the module's own.
"""

import copy
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import export_executorch
import pytest
import torch
from decoder import TINY, Decoder, float64_twin
from delegate import Loaded
from export_executorch import delegates, lower
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

import simulator
import torch_metal_ops
from tolerances import check
from torch_metal_ops import reference
from torch_metal_ops.executorch import SDPAToMetalPass, enable

METAL = "executorch.backends.apple.metal"
pytest.importorskip(f"{METAL}.ops", reason="executorch is not installed: .ci/executorch runs these beside it")
pytestmark = [
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="a Mac runs a .pte in ExecuTorch itself"),
    pytest.mark.filterwarnings("ignore:torch_metal_ops.executorch. skipped"),
]


@pytest.fixture(autouse=True)
def quick_compilation():
    """Of the code that AOTInductor generates; ExecuTorch's Qwen export does it too."""
    with torch._inductor.config.patch({"aot_inductor.compile_wrapper_opt_level": "O0"}):
        yield


THEIR_ATTENTION = "aoti_torch_mps__scaled_dot_product_attention_math_for_mps_v2"
OURS = {"aoti_torch_mps_sdpa", "aoti_torch_mps_gather_qmv", "aoti_torch_mps_gated_delta_rule"}


def compiled(model: nn.Module, inputs: tuple[Tensor, ...], passes: tuple = ()) -> tuple[Loaded, set[str]]:
    """What is in the model's .pte, and which of our shims and torch's attention its code calls."""
    pte, _ = lower(model, inputs, passes)
    (delegate,) = delegates(pte)
    return Loaded(delegate), {name for name in delegate.shims if name in OURS or "attention" in name}


def executorch_tests() -> ModuleType:
    """ExecuTorch's own modules. The import stops where torchao's MPS library is missing, unless it seems to be absent."""
    missing = "torchao.experimental.ops.mps"
    sys.modules[missing] = None
    try:
        from executorch.backends.apple.metal.tests import test_modules
    finally:
        del sys.modules[missing]
    return test_modules


THEIRS = executorch_tests()


def theirs(name: str, dtype: torch.dtype) -> tuple[nn.Module, list[Tensor]]:
    torch.manual_seed(0)
    model, inputs = THEIRS.get_model_and_inputs(name, dtype=dtype)
    return model.requires_grad_(False), list(inputs)


class Together(nn.Module):
    """Several modules as one, since compiling the generated code takes most of the time."""

    def __init__(self, modules: list[nn.Module], inputs: list[list[Tensor]]) -> None:
        super().__init__()
        self.parts = nn.ModuleList(modules)
        self.counts = [len(part) for part in inputs]

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        given = iter(inputs)
        return tuple(part(*(next(given) for _ in range(n))) for part, n in zip(self.parts, self.counts, strict=True))


def exact(name: str, model: nn.Module, inputs: list[Tensor]) -> Tensor:
    """The module's result in float64; our reference stands in for the ops that have no float64."""
    if name == "gather_qmv":
        indices = torch.arange(len(inputs[0])) % model.num_experts
        dtype = inputs[0].dtype
        return reference.gather_qmv(inputs[0], model.w, model.scales.to(dtype), model.biases.to(dtype), indices, 32)
    if name == "gated_delta_rule":
        return reference.gated_delta_rule(*inputs, torch.zeros_like(model.state))[0]
    return copy.deepcopy(model).double()(*(x.double() for x in inputs))


# Some 10^10 multiplications and more each.
LARGE = {"sdpa_strided", "sdpa_contiguous_causal", "sdpa_strided_causal", "conv1d_voxtral"}
INT4 = {name for name, config in THEIRS.MODULE_REGISTRY.items() if config.get("qlinear")}  # need torchao's MPS library
SMALL = [name for name in THEIRS.MODULE_REGISTRY if name not in LARGE | INT4]


def test_the_list_is_whole():
    """A new module of theirs is run, and one that is left out is still there."""
    assert set(THEIRS.MODULE_REGISTRY) > LARGE
    assert len(INT4) == 5 and len(SMALL) == 19


def check_theirs(names: list[str], dtype: torch.dtype, passes: tuple, expected_shims: set[str]) -> None:
    models, inputs = zip(*(theirs(name, dtype) for name in names), strict=True)
    together = tuple(x for part in inputs for x in part)
    with sdpa_kernel([SDPBackend.MATH]):  # as their tests do
        run, shims = compiled(Together(models, inputs), together, passes)
    assert shims == expected_shims
    for name, model, given, result in zip(names, models, inputs, run(*together), strict=True):
        try:
            check(result, exact(name, model, given), model(*given))
        except AssertionError as error:
            raise AssertionError(f"{name}: {error}") from error


@pytest.mark.parametrize("passes", [(), (SDPAToMetalPass(),)], ids=["as it is", "with the pass"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def test_executorchs_modules(dtype, passes):
    """Every module of their Metal tests that a CPU can run: as they lower it, and with its attention on our op."""
    attention = {"aoti_torch_mps_sdpa"} if passes else {THEIR_ATTENTION}
    check_theirs(SMALL, dtype, passes, {"aoti_torch_mps_gather_qmv", "aoti_torch_mps_gated_delta_rule"} | attention)


def test_executorchs_large_modules():
    """The rest of them, of audio encoders' sizes. Not in check mode: the small ones reach the same kernels in it."""
    simulator.activate(check=False)
    try:
        check_theirs(sorted(LARGE), torch.float32, (SDPAToMetalPass(),), {"aoti_torch_mps_sdpa"})
    finally:
        simulator.activate(check=True)


class Mixed(nn.Module):
    """Attention of the model's own, which the pass moves or leaves, between our three ops."""

    def __init__(self) -> None:
        super().__init__()
        w, scales, biases = torch_metal_ops.quantize_affine(torch.randn(3, 64, 64), 4, 32)
        for name, tensor in (("w", w), ("scales", scales), ("biases", biases), ("state", torch.zeros(1, 2, 16, 16))):
            self.register_buffer(name, tensor)

    def forward(self, q: Tensor, k: Tensor, mask: Tensor, expert: Tensor) -> tuple[Tensor, ...]:
        ours = torch_metal_ops.sdpa(q, k, k, enable_gqa=True, softcap=20.0)
        theirs = F.scaled_dot_product_attention(ours, k, k, mask, enable_gqa=True, scale=0.2)
        x = theirs.transpose(1, 2).flatten(-2)
        y = torch_metal_ops.gather_qmv(x[0], self.w, self.scales, self.biases, expert, 32)
        delta = F.normalize(y.view(1, -1, 4, 16)[:, :, :2], dim=-1)
        return (
            theirs,
            y,
            torch_metal_ops.gated_delta_rule(
                delta, delta, delta, delta[..., 0].sigmoid(), delta[..., 1].sigmoid(), self.state
            ),
        )


def mixed_inputs(dtype: torch.dtype) -> tuple[Tensor, ...]:
    q, k = torch.randn(1, 5, 4, 16, dtype=dtype).transpose(1, 2), torch.randn(1, 2, 7, 16, dtype=dtype)
    return q, k, torch.rand(5, 7) < 0.8, torch.tensor([2, 0, 1, 1, 0], dtype=torch.int32)


@pytest.mark.parametrize(
    ("dtype", "passes", "attention"),
    [
        (torch.float32, (), {THEIR_ATTENTION}),
        (torch.float32, (SDPAToMetalPass(),), set()),
        (torch.float16, (SDPAToMetalPass(),), set()),  # ExecuTorch's own attention has no float16
    ],
)
def test_mixed(dtype, passes, attention):
    """Called twice: the state that the first call leaves is the second's."""
    torch.manual_seed(0)
    model, inputs = Mixed().to(dtype), mixed_inputs(dtype)
    run, shims = compiled(model, inputs, passes)
    assert shims == OURS | attention
    eager, wide = copy.deepcopy(model), copy.deepcopy(model).float()
    wide_inputs = tuple(value.float() if value.is_floating_point() else value for value in inputs)
    for _ in range(2):
        for result, expected, truth in zip(run(*inputs), eager(*inputs), wide(*wide_inputs), strict=True):
            if dtype == torch.float32:
                torch.testing.assert_close(result.cpu(), expected)
            else:
                check(result.cpu(), truth.double(), expected)


def test_the_example(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """Its decoder and its table; then what it wrote is called three times, state and cache kept in between."""
    path = tmp_path / "decoder.pte"
    assert export_executorch.main(["--output", str(path), "--tokens", "3"]) == 0
    (delegate,) = delegates(path.read_bytes())
    said = capsys.readouterr().out
    for op, calls in (("sdpa", 1), ("gather_qmv", 2), ("gated_delta_rule", 1)):
        assert re.search(rf"^metal.{op}.default +{calls}  aoti_torch_mps_{op}$", said, re.MULTILINE), said
    assert re.search(rf"^its code +{len(delegate.library) / 2**20:.2f} MiB$", said, re.MULTILINE), said
    assert "The code in this file is for this machine" in said

    torch.manual_seed(0)
    model = Decoder(TINY)
    run, eager, truth = Loaded(delegate), copy.deepcopy(model), float64_twin(model)
    for _ in range(3):
        x = torch.randn(TINY.batch, 3, TINY.hidden)
        (y,) = run(x)
        check(y, truth(x.double()), eager(x))


@pytest.mark.parametrize("tokens", ["0", "33"])
def test_the_example_explains_a_bad_argument(tokens: str, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit):
        export_executorch.main(["--tokens", tokens])
    assert f"--tokens must be from 1 to 32, the length of the cache, got {tokens}" in capsys.readouterr().err


def qwen() -> tuple[nn.Module, int]:
    """ExecuTorch's Qwen3.5-MoE with the sizes of its own tiny CI model, and what its Metal export does to it."""
    from executorch.examples.models.qwen3_5_moe import export, metal_source_transformations, model

    config = model.Qwen35MoEConfig(
        vocab_size=256, hidden_size=128, num_hidden_layers=4, num_attention_heads=4, num_kv_heads=2, head_dim=64,
        linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=64, linear_value_head_dim=64,
        num_experts=8, num_experts_per_tok=2, moe_intermediate_size=128, shared_expert_intermediate_size=128,
        full_attention_interval=2, rope_theta=1e4, max_seq_len=64,
    )  # fmt: skip
    torch.manual_seed(0)
    built = model.Qwen35MoE(config).to(torch.bfloat16).eval().requires_grad_(False)
    for parameter in built.parameters():
        parameter.normal_(0, 0.02)
    metal_source_transformations.quantize_experts_metal(built, config, 32)
    export._materialize_buffers(built, config)
    metal_source_transformations.metal_source_transformations(built, config=config)
    export._strip_sampler_from_forward(built)
    return built, config.vocab_size


@pytest.mark.parametrize("passes", [(), (SDPAToMetalPass(),)], ids=["as it is", "with the pass"])
def test_qwen(passes):
    """With its habits: float32 scales and g beside bfloat16, a slice of the state mutated, flattened int32 indices."""
    model, vocabulary = qwen()
    assert model.layers[0].mlp.experts.s1.dtype == torch.float32
    tokens = torch.randint(vocabulary, (6,))
    steps = [(token.view(1, 1), torch.tensor([i])) for i, token in enumerate(tokens)]
    run, shims = compiled(model, steps[0], passes)
    assert shims == (OURS if passes else OURS - {"aoti_torch_mps_sdpa"} | {THEIR_ATTENTION})
    eager, wide = copy.deepcopy(model), copy.deepcopy(model).float()
    for step in steps:
        (logits,) = run(*step)
        check(logits, wide(*step).double(), eager(*step))


def generated_code(monkeypatch: pytest.MonkeyPatch, export: Callable[[], object]) -> list[str]:
    from torch._inductor.codecache import AotCodeCompiler

    original, sources = AotCodeCompiler.compile.__func__, []

    def compile(cls, graph, wrapper_code, kernel_code, *args, **kwargs):
        sources.append(wrapper_code + kernel_code)
        return original(cls, graph, wrapper_code, kernel_code, *args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(AotCodeCompiler, "compile", classmethod(compile))
        export()
    return sources


def test_their_models_compile_to_what_they_did(monkeypatch: pytest.MonkeyPatch):
    """The code that is generated for a model of theirs is the same but for our declarations, which it does not use."""
    model, inputs = theirs("gather_qmv", torch.float32)
    cshim = ModuleType("torchao.experimental.ops.mps.cshim")
    cshim.torchao_op_c_shim = {}

    def export() -> object:
        program = torch.export.export(model, tuple(inputs))
        return THEIRS.to_edge_transform_and_lower(program, partitioner=[THEIRS.MetalPartitioner([method])])

    method = THEIRS.MetalBackend.generate_method_name_compile_spec("forward")
    monkeypatch.setitem(sys.modules, cshim.__name__, cshim)
    (without,) = generated_code(monkeypatch, export)
    with enable():
        (with_ours,) = generated_code(monkeypatch, export)
    before, after = ([line.strip() for line in code.splitlines()] for code in (without, with_ours))
    ours = f"extern {torch_metal_ops.c_shims('mps')[torch.ops.metal.sdpa.default][0]};"
    assert after.count(ours) == 1
    assert before == [line for line in after if line != ours]
