"""AOTInductor packages: built here, run in a new process, with our C shims and without."""

import ctypes
import os
import re
import subprocess
import sys
import zipfile
from copy import deepcopy
from pathlib import Path
from typing import Any

import expecttest
import export_decoder
import pytest
import torch
from decoder import TINY, Decoder, float64_twin
from dynamic_calls import quantized_weights
from torch import Tensor, nn

import torch_metal_ops
from tolerances import check
from torch_metal_ops import gated_delta_rule, gather_qmv, sdpa

HERE = Path(__file__).parent


class AllOps(nn.Module):
    """Each op with the arguments of each C type, given and left out; the state is an argument that is mutated."""

    def __init__(self) -> None:
        super().__init__()
        for name, tensor in zip(("w", "scales", "biases"), quantized_weights(3, 10, 64), strict=True):
            self.register_buffer(name, tensor)

    def forward(
        self, q: Tensor, k: Tensor, mask: Tensor, used: Tensor, x: Tensor, expert: Tensor, v: Tensor, decay: Tensor,
        state: Tensor,
    ) -> tuple[Tensor, ...]:  # fmt: skip
        plain = sdpa(q, q, q)
        cached = sdpa(
            q, k, k, mask, 0.0, True, scale=0.25, enable_gqa=True, seqused_k=used, sliding_window=q.shape[2] + 2,
            softcap=30.0, sinks=decay[0, 0],
        )  # fmt: skip
        routed = gather_qmv(x, self.w, self.scales, self.biases, expert, 32)
        return plain, cached, routed, gated_delta_rule(v, v, v, decay, decay, state)


def inputs(B: int, Lq: int, Lk: int, P: int, T: int, **replaced: Tensor) -> tuple[Tensor, ...]:
    tensors = {
        "q": torch.randn(B, 4, Lq, 16),
        "k": torch.randn(B, 2, Lk, 16),
        "mask": torch.rand(Lq, Lk) < 0.7,
        "used": torch.randint(1, Lk + 1, (B,), dtype=torch.int32),
        "x": torch.randn(P, 64),
        "expert": torch.randint(-1, 3, (P, 2)),
        "v": torch.rand(B, T, 4, 8),
        "decay": torch.rand(B, T, 4),
        "state": torch.randn(B, 4, 8, 8),
    }
    return tuple((tensors | replaced).values())


@pytest.fixture(scope="module")
def ops(tmp_path_factory: pytest.TempPathFactory) -> tuple[nn.Module, Path]:
    torch.manual_seed(0)
    model = AllOps()
    B, Lq, Lk, P, T = torch.export.dims("B", "Lq", "Lk", "P", "T", min=1, max=1000)
    program = torch.export.export(
        model,
        inputs(2, 3, 7, 4, 5),
        dynamic_shapes=(
            {0: B, 2: Lq}, {0: B, 2: Lk}, {0: Lq, 1: Lk}, {0: B}, {0: P}, {0: P}, {0: B, 1: T}, {0: B, 1: T}, {0: B},
        ),
    )  # fmt: skip
    path = tmp_path_factory.mktemp("aoti") / "ops.pt2"
    configs = {"aot_inductor.custom_ops_to_c_shims": torch_metal_ops.custom_ops_to_c_shims}
    torch._inductor.aoti_compile_and_package(program, package_path=str(path), inductor_configs=configs)
    return model, path


@pytest.fixture(scope="module")
def decoder() -> Decoder:
    torch.manual_seed(0)
    return Decoder(TINY)


@pytest.fixture(scope="module")
def decoder_package(decoder: Decoder, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export_decoder.package(decoder, TINY, tmp_path_factory.mktemp("aoti") / "decoder.pt2")


@pytest.fixture(scope="module")
def proxied_package(decoder: Decoder, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export_decoder.package(decoder, TINY, tmp_path_factory.mktemp("aoti") / "proxied.pt2", c_shims={})


def lines_naming_an_op(package: Path) -> str:
    with zipfile.ZipFile(package) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".wrapper.cpp"))
        lines = archive.read(name).decode().splitlines()
    named = re.compile(r"\baoti_torch_(cpu|mps)_(sdpa|gather_qmv|gated_delta_rule)\b|metal::|proxy_executor, ")
    return "\n".join(line.strip() for line in lines if named.search(line))


def run_in_new_process(package: Path, calls: list[tuple[Tensor, ...]], folder: Path, *flags: str) -> list[Any]:
    torch.save(calls, folder / "calls.pt")
    command = [sys.executable, HERE / "run_package.py", package, folder / "calls.pt", folder / "results.pt", *flags]
    path = os.pathsep.join([str(HERE.parent), str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(command, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return torch.load(folder / "results.pt")


def test_packages_call_the_shims(ops: tuple[nn.Module, Path], decoder_package: Path):
    """Direct calls, one an op; the decoder's state and cache are handed over themselves, not as copies."""
    declared = [f"extern {text};" for texts in torch_metal_ops.custom_ops_to_c_shims.values() for text in texts]
    calls = []
    for package in (ops[1], decoder_package):
        lines = lines_naming_an_op(package).splitlines()
        assert lines[: len(declared)] == declared
        calls.append("\n".join(lines[len(declared) :]))
    expecttest.assert_expected_inline(
        calls[0],
        """\
AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_cpu_sdpa(arg3_1, arg3_1, arg3_1, nullptr, 0.0, 0, nullptr, 0, nullptr, nullptr, 0.0, nullptr, &buf1_handle));
AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_cpu_sdpa(arg3_1, arg4_1, arg4_1, &temporary_reference(arg5_1.get()), 0.0, 1, &var_0, 1, &temporary_reference(arg6_1.get()), &var_1, 30.0, &temporary_reference(wrap_with_raii_handle_if_needed(reinterpret_tensor_wrapper(arg10_1, 1, int_array_0, int_array_1, 0L)).get()), &buf3_handle));
AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_cpu_gather_qmv(arg7_1, w, scales, biases, arg8_1, 32L, &buf5_handle));
AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_cpu_gated_delta_rule(arg9_1, arg9_1, arg9_1, arg10_1, arg10_1, arg11_1, &buf8_handle));""",
    )
    expecttest.assert_expected_inline(
        calls[1],
        """\
AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_cpu_gated_delta_rule(buf12, buf13, wrap_with_raii_handle_if_needed(reinterpret_tensor_wrapper(buf8, 4, int_array_29, int_array_30, 64L*s27)), buf14, buf15, layers_0_state, &buf18_handle));
AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_cpu_sdpa(buf32, layers_1_keys, layers_1_values, nullptr, 0.0, 1, nullptr, 1, &temporary_reference(buf39.get()), nullptr, 0.0, nullptr, &buf41_handle));
AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_cpu_gather_qmv(buf46, layers_2_gate_up_w, layers_2_gate_up_scales, layers_2_gate_up_biases, buf52, 16L, &buf54_handle));
AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_cpu_gather_qmv(buf55, layers_2_down_w, layers_2_down_scales, layers_2_down_biases, buf52, 16L, &buf57_handle));""",
    )


def test_ops_in_a_new_process(ops: tuple[nn.Module, Path], tmp_path: Path):
    model, package = ops
    calls = [inputs(2, 3, 7, 4, 5), inputs(3, 9, 9, 17, 2), inputs(1, 1, 1, 1, 1), inputs(5, 2, 64, 2, 33)]
    for call, (results, after) in zip(calls, run_in_new_process(package, calls, tmp_path), strict=True):
        assert all(map(torch.equal, results, model(*call)))
        assert all(map(torch.equal, after, call)), "the package must mutate what the eager call mutates"


def test_bad_input_gives_the_sentence(ops: tuple[nn.Module, Path], tmp_path: Path):
    model, package = ops
    sentences = {
        "sdpa: seqused_k must be [B] = [3], got shape [2]. Give one length a batch.": {
            "used": torch.ones(2, dtype=torch.int32)
        },
        "sdpa: query and key must have one dtype, got Half and Float. Convert one with .to() first.": {
            "q": torch.randn(3, 4, 5, 16).half()
        },
        "gather_qmv: expert_indices must be from 0 to E-1 = 2, or -1, got 3. Use -1 where a row has no expert.": {
            "expert": torch.full((6, 2), 3)
        },
        "gated_delta_rule: state must be [B, Hv, Dv, Dk] = [3, 4, 8, 8], got shape [3, 4, 8, 7]. Reshape it, or check "
        "the sizes of q and v.": {"state": torch.randn(3, 4, 8, 7)},
    }
    calls = [inputs(3, 5, 9, 6, 2, **replaced) for replaced in sentences.values()] + [inputs(3, 5, 9, 6, 2)]
    *messages, (results, _) = run_in_new_process(package, calls, tmp_path)
    assert [message.splitlines()[0] for message in messages] == list(sentences)
    assert all(map(torch.equal, results, model(*calls[-1]))), "an error must leave the package usable"


def test_decoder_in_a_new_process(decoder: Decoder, decoder_package: Path, proxied_package: Path, tmp_path: Path):
    """A prompt and single tokens; each result depends on the state and the cache that the calls before it left."""
    assert "aoti_torch_cpu" not in lines_naming_an_op(proxied_package)
    calls = [(torch.randn(TINY.batch, tokens, TINY.hidden),) for tokens in (5, 1, 1, 3, 1, 1)]
    direct = [result for result, _ in run_in_new_process(decoder_package, calls, tmp_path)]
    proxied = [result for result, _ in run_in_new_process(proxied_package, calls, tmp_path)]
    eager, truth = deepcopy(decoder), float64_twin(decoder)
    for (x,), y, by_proxy in zip(calls, direct, proxied, strict=True):
        check(y, truth(x.double()), eager(x))
        assert torch.equal(y, by_proxy)


def test_state_is_mutated_in_place(decoder: Decoder, decoder_package: Path):
    """A host that owns the state and the cache sees them change in its own tensors."""
    eager = deepcopy(decoder)
    run = torch._inductor.aoti_load_package(str(decoder_package))
    held = set(run.get_constant_fqns())  # not all: a small constant becomes a part of the code
    mine = {name: buffer.clone() for name, buffer in decoder.state_dict().items() if name in held}
    run.load_constants(mine, check_full_update=True, user_managed=True)
    x = torch.randn(TINY.batch, 4, TINY.hidden)
    y = eager(x)
    torch.testing.assert_close(run(x), y)
    for name in ("layers.0.state", "layers.0.recent", "layers.1.keys", "layers.1.values", "layers.1.filled"):
        assert not torch.equal(mine[name], decoder.state_dict()[name])
        torch.testing.assert_close(mine[name], eager.state_dict()[name])


def test_without_the_import(decoder_package: Path, tmp_path: Path):
    calls = [(torch.randn(TINY.batch, 1, TINY.hidden),)]
    with pytest.raises(AssertionError, match="undefined symbol: aoti_torch_cpu_"):
        run_in_new_process(decoder_package, calls, tmp_path, "--without-import")


@pytest.mark.skipif(sys.platform == "darwin", reason="the loader there goes by install name and path")
def test_library_is_known_by_its_name():
    """A package built with aot_inductor.custom_op_libs needs this name, and gets the library that is loaded."""
    library = ctypes.CDLL("libtorch_metal_ops.so")
    assert library._handle == ctypes.CDLL(torch_metal_ops._C.__file__)._handle


@pytest.mark.parametrize("found", [{"eager": 1e-6, "package": 1e-2}, {"eager": 1e-6, "package": float("nan")}])
def test_example_refuses_a_wrong_result(found: dict[str, float]):
    assert export_decoder.wrong(found, [torch.zeros(3, dtype=torch.float64)], torch.float32) == ["package"]


def test_example_compares_and_times(decoder: Decoder, decoder_package: Path, capsys: pytest.CaptureFixture[str]):
    assert export_decoder.shim_calls(decoder_package) == {
        "aoti_torch_cpu_sdpa": 1, "aoti_torch_cpu_gather_qmv": 2, "aoti_torch_cpu_gated_delta_rule": 1,
    }  # fmt: skip
    ways = {"eager": deepcopy(decoder), "AOTInductor": torch._inductor.aoti_load_package(str(decoder_package))}
    xs = [torch.randn(TINY.batch, tokens, TINY.hidden) for tokens in (4, 4, 1, 1, 1)]
    results = export_decoder.decode(ways, xs)
    twin = float64_twin(decoder)
    truth = [twin(x.double()) for x in xs]
    found = export_decoder.errors(results, truth)
    assert export_decoder.wrong(found, truth, torch.float32) == []
    export_decoder.print_table(results, found, prompt=4)
    assert re.search(r"^AOTInductor +\d\.\de-\d+ +[\d.]+ +[\d.]+ +[\d.]+$", capsys.readouterr().out, re.MULTILINE)


@pytest.mark.parametrize(
    ("flag", "value", "message"),
    [
        ("--experts", "7", "at least 8"),
        ("--steps", "2", "over 2"),
        ("--prompt", "600", "must fit in the cache of 1024"),
    ],
)
def test_example_explains_a_bad_argument(monkeypatch: pytest.MonkeyPatch, capsys, flag: str, value: str, message: str):
    monkeypatch.setattr(sys, "argv", ["export_decoder.py", flag, value])
    with pytest.raises(SystemExit):
        export_decoder.main()
    assert message in capsys.readouterr().err
