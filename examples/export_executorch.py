"""Lowers a model to ExecuTorch's Metal backend: one command from a module to a .pte, and a table of what became of it.

    python examples/export_executorch.py --output decoder.pte

The model is the decoder block of decoder.py, tiny unless --full-size is given, for one number of new tokens. Its ops
are called by their C shims from the code that AOTInductor generates; the table has them, with how often the graph
calls each and whether the code asks for its symbol, and the sizes of code and weights in the file.

On a Mac the code in the .pte is for Metal. On Linux there is no Metal: the model is lowered for the simulated device of
tests/simulator, which shows the whole route, but the code in the file is for this machine, and the file runs nowhere
else. Needs ExecuTorch 1.5.1 beside torch_metal_ops: pip install executorch==1.5.1
"""

import argparse
import re
import sys
import time
import warnings
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

SHIM = re.compile(rb"\baoti_torch_mps_\w+")
ENDINGS = ("_so_blob", "_weights_blob")


@dataclass(frozen=True)
class Delegate:
    """What the Metal backend put into a .pte: a shared library and its weights."""

    library: bytes
    weights: bytes

    @property
    def shims(self) -> set[str]:
        """The C functions for mps that the library asks of the process that loads it."""
        return {name.decode() for name in SHIM.findall(self.library)}


def delegates(pte: bytes) -> list[Delegate]:
    """The Metal delegates of an ExecuTorch program, in the order of its plan."""
    from executorch.exir._serialize._program import deserialize_pte_binary

    file = deserialize_pte_binary(pte)
    data = {key: file.named_data.buffers[entry.buffer_index] for key, entry in file.named_data.pte_data.items()}
    inline = file.program.backend_delegate_data
    found = []
    for delegate in file.program.execution_plan[0].delegates:
        keys = inline[delegate.processed.index].data.decode().split("\n")
        assert delegate.id == "MetalBackend" and all(map(str.endswith, keys, ENDINGS))
        found.append(Delegate(*(bytes(data[key]) for key in keys)))
    return found


def lower(
    model: nn.Module, inputs: tuple[Tensor, ...], passes: tuple[Any, ...] = (), **options: Any
) -> tuple[bytes, Counter[str]]:
    """A module as a .pte for the Metal backend, and how often its graph calls each op of the metal namespace.

    Args:
        model: the module, on the CPU.
        inputs: example arguments.
        passes: graph passes, SDPAToMetalPass for one.
        options: for torch.export.export.
    """
    from executorch.backends.apple.metal.metal_backend import MetalBackend
    from executorch.backends.apple.metal.metal_partitioner import MetalPartitioner
    from executorch.exir import to_edge_transform_and_lower

    import torch_metal_ops.executorch

    calls: Counter[str] = Counter()

    def count(graph_module: torch.fx.GraphModule) -> None:
        for node in graph_module.graph.nodes:
            # An op that mutates an argument is itself an argument, of a functional call; others wear an edge operator.
            for called in (node.target, *node.args):
                op = called if isinstance(called, torch._ops.OpOverload) else getattr(called, "_op", None)
                if str(op).startswith("metal."):
                    calls[str(op)] += 1

    method = MetalBackend.generate_method_name_compile_spec("forward")
    with torch_metal_ops.executorch.enable(), torch.no_grad():
        program = torch.export.export(model, inputs, **options)
        edge = to_edge_transform_and_lower(
            program, transform_passes=[*passes, count], partitioner=[MetalPartitioner([method])]
        )
    return edge.to_executorch().buffer, calls


def print_table(pte: bytes, calls: Counter[str]) -> None:
    (delegate,) = delegates(pte)
    print(f"{'op':<40}{'calls':>6}  C shim")
    for op, count in sorted(calls.items()):
        shim = f"aoti_torch_mps_{op.split('.')[1]}"
        print(f"{op:<40}{count:>6}  {shim if shim in delegate.shims else 'NOT CALLED'}")
    print(f"{'file':<16}{len(pte) / 2**20:>8.2f} MiB")
    print(f"{'its code':<16}{len(delegate.library) / 2**20:>8.2f} MiB")
    print(f"{'its weights':<16}{len(delegate.weights) / 2**20:>8.2f} MiB")


def activate_simulator() -> None:
    """An mps device on Linux, from the tests; before anything asks torch for one."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
    import simulator

    print("no Metal here: lowering for the simulated device (its first use compiles it, for some minutes)", flush=True)
    simulator.activate()


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--output", type=Path, default=Path("decoder.pte"), help="the file (default %(default)s)")
    parser.add_argument("--tokens", type=int, default=1, help="new tokens of a call (default %(default)s)")
    parser.add_argument("--full-size", action="store_true", help="Qwen3.5-MoE's layer sizes instead of tiny ones")
    arguments = parser.parse_args(argv)
    simulated = sys.platform.startswith("linux")
    if simulated:
        activate_simulator()

    from decoder import TINY, Config, Decoder

    config = Config() if arguments.full_size else TINY
    if not 1 <= arguments.tokens <= config.max_length:
        parser.error(f"--tokens must be from 1 to {config.max_length}, the length of the cache, got {arguments.tokens}")
    if not torch.backends.mps.is_available():
        parser.error("lowering needs an mps device, got none. Use a Mac with Apple silicon, or Linux.")

    torch.manual_seed(0)
    model = Decoder(config)
    print("exporting and lowering ...", flush=True)
    start = time.perf_counter()
    pte, calls = lower(model, (torch.randn(config.batch, arguments.tokens, config.hidden),))
    arguments.output.write_bytes(pte)
    print(f"wrote {arguments.output} in {time.perf_counter() - start:.0f} s")
    print_table(pte, calls)
    if simulated:
        print("The code in this file is for this machine, which has no Metal: lower on a Mac for one that runs there.")
    return 0


if __name__ == "__main__":
    warnings.filterwarnings("ignore", category=FutureWarning)  # torch.export's own
    sys.exit(main())
