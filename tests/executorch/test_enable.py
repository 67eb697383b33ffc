"""What enable() changes in ExecuTorch's MetalBackend, that disable() changes it back, and that nothing else changes."""

import contextlib
import sys
import types
import warnings

import pytest
import torch

import torch_metal_ops
from interpreter import output_of
from torch_metal_ops.executorch import disable, enable

metal_backend = pytest.importorskip(
    "executorch.backends.apple.metal.metal_backend",
    reason="executorch is not installed: .ci/executorch runs these beside it",
)
MetalBackend = metal_backend.MetalBackend

OPTION = "aot_inductor.custom_ops_to_c_shims"
NAMES = [name for op in ("sdpa", "gather_qmv", "gated_delta_rule") for name in (f"metal::{op}", f"aoti_torch_mps_{op}")]
CSHIM = "torchao.experimental.ops.mps.cshim"


@pytest.fixture(autouse=True)
def disabled():
    disable()
    yield
    disable()


@pytest.fixture
def torchao_ops(monkeypatch: pytest.MonkeyPatch) -> dict:
    """torchao with its MPS library, as on a Mac that has it: the map of C shims can be imported."""
    module = types.ModuleType(CSHIM)
    module.torchao_op_c_shim = {torch.ops.aten.mm.default: ["AOTITorchError aoti_torch_mps_one_of_torchao()"]}
    monkeypatch.setitem(sys.modules, CSHIM, module)
    return module.torchao_op_c_shim


def options() -> dict:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return MetalBackend.get_aoti_compile_options([])


def test_our_shims_and_names_are_added(torchao_ops):
    own_options, own_kernels = options(), MetalBackend.get_supported_fallback_kernels()
    enable()
    shims = options()[OPTION]
    for op, declarations in torch_metal_ops.c_shims("mps").items():
        assert shims[op] == own_options[OPTION].get(op, declarations)
    assert torch.ops.metal.sdpa.default in shims
    assert shims.items() >= torchao_ops.items()
    kernels = MetalBackend.get_supported_fallback_kernels()
    assert set(kernels) == set(own_kernels) | set(NAMES)


def test_the_rest_is_executorchs_own(torchao_ops):
    own_options, own_kernels = options(), MetalBackend.get_supported_fallback_kernels()
    own = dict(vars(MetalBackend))
    module = dict(vars(metal_backend))
    enable()
    now = options()
    assert {key: value for key, value in now.items() if key != OPTION} == {
        key: value for key, value in own_options.items() if key != OPTION
    }
    assert now[OPTION].items() >= own_options[OPTION].items(), "its declarations stay its own"
    assert MetalBackend.get_supported_fallback_kernels().items() >= own_kernels.items()
    changed = {name for name, value in vars(MetalBackend).items() if own.get(name) is not value}
    assert changed == {"get_aoti_compile_options", "get_supported_fallback_kernels"}
    assert vars(metal_backend) == module


def test_disable_restores(torchao_ops):
    own = dict(vars(MetalBackend))
    own_options = options()
    enable()
    enable()
    disable()
    assert dict(vars(MetalBackend)) == own
    disable()
    assert dict(vars(MetalBackend)) == own
    assert options() == own_options


def test_context_manager():
    own = dict(vars(MetalBackend))
    with enable():
        with enable():
            pass
        assert "metal::sdpa" in MetalBackend.get_supported_fallback_kernels(), "the outer one is still open"
    assert dict(vars(MetalBackend)) == own
    with contextlib.suppress(KeyError), enable():
        raise KeyError
    assert dict(vars(MetalBackend)) == own
    enable()
    with enable():
        pass
    assert "metal::sdpa" in MetalBackend.get_supported_fallback_kernels(), "it was enabled before"


@pytest.mark.skipif(sys.platform == "darwin", reason="a Mac may have torchao's MPS library")
def test_torchaos_missing_library_is_skipped_and_said():
    with pytest.raises(RuntimeError, match="libtorchao_ops_mps_aten"):
        MetalBackend.get_aoti_compile_options([])
    with enable():
        with pytest.warns(UserWarning) as said:
            shims = MetalBackend.get_aoti_compile_options([])[OPTION]
        assert set(shims) == set(torch_metal_ops.c_shims("mps"))
        assert CSHIM not in sys.modules
    (warning,) = said
    assert str(warning.message) == (
        "torch_metal_ops.executorch: skipped the C shims of torchao's quantised linear layers, since its MPS library "
        "cannot be loaded (Could not find libtorchao_ops_mps_aten.dylib. Please build with "
        "TORCHAO_BUILD_EXPERIMENTAL_MPS=1). Only models with such layers need them."
    )
    assert warning.filename == __file__
    with pytest.raises(RuntimeError, match="libtorchao_ops_mps_aten"):
        MetalBackend.get_aoti_compile_options([])


@pytest.mark.parametrize("hook", ["get_aoti_compile_options", "get_supported_fallback_kernels"])
def test_a_version_without_a_hook(monkeypatch: pytest.MonkeyPatch, hook: str):
    monkeypatch.delattr(MetalBackend, hook)
    own = dict(vars(MetalBackend))
    with pytest.raises(ImportError) as error:
        enable()
    assert str(error.value) == (
        "torch_metal_ops.executorch: ExecuTorch's Metal backend must have the hooks of release 1.5.1, got a MetalBackend "
        f"without {hook}. Install that release: pip install executorch==1.5.1"
    )
    assert dict(vars(MetalBackend)) == own


def test_a_version_without_the_option(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(MetalBackend, "get_aoti_compile_options", classmethod(lambda cls, specs: {}))
    with enable(), pytest.raises(ImportError, match=f"got compile options without {OPTION}"):
        options()


def test_a_version_without_the_backend(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, metal_backend.__name__, None)
    with pytest.raises(ImportError, match=r"^torch_metal_ops.executorch: ExecuTorch's Metal backend must have"):
        enable()


BACKEND = f"from {metal_backend.__name__} import MetalBackend"
OURS = "import torch_metal_ops.executorch"
CHECK = """
with torch_metal_ops.executorch.enable():
    print(*MetalBackend.get_aoti_compile_options([])["aot_inductor.custom_ops_to_c_shims"])
    print(*sorted(set(MetalBackend.get_supported_fallback_kernels()) & {"metal::sdpa", "aoti_torch_mps_sdpa"}))
"""


@pytest.mark.parametrize(
    "order",
    [
        [OURS, BACKEND],
        [BACKEND, OURS],
        [OURS, "torch_metal_ops.executorch.enable()", BACKEND],
    ],
    ids=["ours first", "theirs first", "enabled before theirs"],
)
def test_import_orders(order: list[str]):
    shims, kernels = output_of("\n".join(["import torch", *order, CHECK]), silent=False).splitlines()
    assert sorted(shims.split()) == ["metal.gated_delta_rule.default", "metal.gather_qmv.default", "metal.sdpa.default"]
    assert kernels == "aoti_torch_mps_sdpa metal::sdpa"


def test_importing_does_not_import_the_backend():
    code = f"import sys\n{OURS}\nprint({metal_backend.__name__!r} in sys.modules)"
    assert output_of(code) == "False\n"
