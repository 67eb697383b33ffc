"""Runs one decoder block three ways, eager, torch.compile and an AOTInductor package, and compares and times them.

    python examples/export_decoder.py

Every way gets the same tokens, a prompt and then one token at a time, and is held to a float64 run of the same module
before any time is printed. decoder.py has the module.
"""

import argparse
import re
import statistics
import sys
import tempfile
import time
import warnings
import zipfile
from collections import Counter
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path

import torch
from decoder import Config, Decoder, float64_twin
from torch import Tensor, nn
from torch._inductor.cpp_builder import get_cpp_compiler
from torch._inductor.exc import InvalidCxxCompiler
from torch._inductor.utils import fresh_cache

import torch_metal_ops

warnings.filterwarnings("ignore", message=".*LeafSpec", category=FutureWarning)  # torch.export's own

WARM_UP = 2  # decode steps that are checked but not timed: torch.compile compiles in the first


def package(model: nn.Module, config: Config, path: Path, c_shims: dict | None = None) -> Path:
    """Compile the model to an AOTInductor package that takes any number of new tokens."""
    x = torch.randn(config.batch, 5, config.hidden)
    tokens = torch.export.Dim("tokens", min=1, max=config.max_length)
    program = torch.export.export(model, (x,), dynamic_shapes={"x": {1: tokens}})
    c_shims = torch_metal_ops.custom_ops_to_c_shims if c_shims is None else c_shims
    torch._inductor.aoti_compile_and_package(
        program, package_path=str(path), inductor_configs={"aot_inductor.custom_ops_to_c_shims": c_shims}
    )
    return path


def shim_calls(path: Path) -> Counter[str]:
    """How often the generated code of a package calls each of our C shims."""
    with zipfile.ZipFile(path) as archive:
        sources = [archive.read(name).decode() for name in archive.namelist() if name.endswith(".wrapper.cpp")]
    return Counter(re.findall(r"CHECK\((aoti_torch_\w+_(?:sdpa|gather_qmv|gated_delta_rule))\(", "".join(sources)))


def decode(ways: dict[str, Callable[[Tensor], Tensor]], inputs: list[Tensor]) -> dict[str, list[tuple[Tensor, float]]]:
    """Each way's outputs and seconds, input by input; the ways take turns, so that a busy machine slows them all."""
    results = {name: [] for name in ways}
    for x in inputs:
        for name, run in ways.items():
            start = time.perf_counter()
            y = run(x)
            results[name].append((y, time.perf_counter() - start))
    return results


def errors(results: dict[str, list[tuple[Tensor, float]]], truth: list[Tensor]) -> dict[str, float]:
    """The largest difference from the truth over all steps, for each way."""
    return {
        name: max((y.double() - true).abs().max().item() for (y, _), true in zip(steps, truth, strict=True))
        for name, steps in results.items()
    }


def wrong(found: dict[str, float], truth: list[Tensor], dtype: torch.dtype) -> list[str]:
    """The ways that are further from the truth than twice eager, and a floor for what no kernel can avoid.

    The floor is flash-attention's: twice what adding and taking away 0.3 costs in this dtype.
    """
    rounded = [true.to(dtype) for true in truth]
    floor = 2 * max((x + 0.3 - 0.3 - x).abs().max().item() for x in rounded)
    return [name for name, error in found.items() if not error <= 2 * found["eager"] + floor]


def print_table(results: dict[str, list[tuple[Tensor, float]]], found: dict[str, float], prompt: int) -> None:
    print(f"{'way':<16}{'error':>10}{f'prompt of {prompt} ms':>20}{'token ms':>10}{'x eager':>9}")
    decode_ms = {
        name: 1000 * statistics.median(seconds for _, seconds in steps[2 + WARM_UP :])
        for name, steps in results.items()
    }
    for name, steps in results.items():
        ratio = decode_ms["eager"] / decode_ms[name]
        print(f"{name:<16}{found[name]:>10.1e}{1000 * steps[1][1]:>20.1f}{decode_ms[name]:>10.2f}{ratio:>9.2f}")


def check_arguments(parser: argparse.ArgumentParser, arguments: argparse.Namespace, config: Config) -> None:
    if arguments.experts < config.top_k:
        parser.error(f"--experts must be at least {config.top_k}, the experts of a token, got {arguments.experts}")
    if arguments.steps <= WARM_UP or arguments.prompt < 2:
        parser.error(
            f"--steps must be over {WARM_UP} and --prompt over 1, got {arguments.steps} and {arguments.prompt}"
        )
    if 2 * arguments.prompt + arguments.steps > config.max_length:
        parser.error(
            f"two prompts and the steps must fit in the cache of {config.max_length} tokens, "
            f"got 2 * {arguments.prompt} + {arguments.steps}"
        )
    try:
        get_cpp_compiler()
    except InvalidCxxCompiler:
        parser.error("torch.compile and AOTInductor need a C++ compiler, got none. Install g++, or name one in CXX.")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "--experts", type=int, default=Config.experts, help="experts of the layer (default %(default)s)"
    )
    parser.add_argument("--prompt", type=int, default=32, help="tokens of a prompt; two are run (default %(default)s)")
    parser.add_argument("--steps", type=int, default=24, help="single tokens after the prompts (default %(default)s)")
    arguments = parser.parse_args()
    config = Config(experts=arguments.experts)
    check_arguments(parser, arguments, config)

    torch.manual_seed(0)
    model = Decoder(config)
    # The first prompt pays for compilation and is not timed.
    lengths = 2 * [arguments.prompt] + arguments.steps * [1]
    inputs = [torch.randn(config.batch, length, config.hidden) for length in lengths]

    with tempfile.TemporaryDirectory() as folder, fresh_cache(dir=folder), torch.no_grad():
        print("exporting and compiling the package ...", flush=True)
        start = time.perf_counter()
        path = package(model, config, Path(folder) / "decoder.pt2")
        size = path.stat().st_size / 2**20
        print(f"  {time.perf_counter() - start:.0f} s, {size:.0f} MiB; its code calls", end=" ")
        print(", ".join(f"{name} x{count}" for name, count in sorted(shim_calls(path).items())))
        print(
            f"running {len(lengths) - arguments.steps} prompts of {arguments.prompt} and {arguments.steps} tokens ..."
        )
        ways = {
            "eager": deepcopy(model),
            "torch.compile": torch.compile(deepcopy(model), fullgraph=True, dynamic=True),
            "AOTInductor": torch._inductor.aoti_load_package(str(path)),
        }
        results = decode(ways, inputs)
        twin = float64_twin(model)
        truth = [twin(x.double()) for x in inputs]

    found = errors(results, truth)
    failed = wrong(found, truth, inputs[0].dtype)
    if failed:
        print(f"WRONG: {', '.join(failed)}; largest differences from the float64 run: {found}", file=sys.stderr)
        return 1
    print_table(results, found, arguments.prompt)
    return 0


if __name__ == "__main__":
    sys.exit(main())
