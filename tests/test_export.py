"""torch.export keeps each op one node, and fixes no size that the op does not need fixed."""

from collections.abc import Callable

import pytest
import torch
from dynamic_calls import BAD_CALLS, CALLS, BadCall, DynamicCall
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from torch_metal_ops import gated_delta_rule, gather_qmv, quantize_affine, sdpa


class Call(nn.Module):
    def __init__(self, call: Callable[..., Tensor]) -> None:
        super().__init__()
        self.call = call

    def forward(self, *arguments: Tensor) -> Tensor:
        return self.call(*arguments)


def export(case: DynamicCall, strict: bool) -> ExportedProgram:
    names = {name for dims in case.dims for name in dims.values()}
    symbols = {name: Dim(name, min=1, max=case.most.get(name, 10_000)) for name in names}
    shapes = tuple({d: symbols[name] for d, name in dims.items()} for dims in case.dims)
    return torch.export.export(Call(case.call), case.make(**case.sizes[0]), dynamic_shapes=(shapes,), strict=strict)


def targets(program: ExportedProgram) -> list[object]:
    return [node.target for node in program.graph.nodes if node.op == "call_function"]


def symbols_of_inputs(case: DynamicCall, program: ExportedProgram) -> dict[str, torch.SymInt]:
    inputs = [node.meta["val"] for node in program.graph.nodes if node.op == "placeholder"]
    return {name: value.shape[d] for value, dims in zip(inputs, case.dims, strict=True) for d, name in dims.items()}


def output_of(program: ExportedProgram) -> Tensor:
    (node,) = program.graph.output_node().args[0]
    return node.meta["val"]


@pytest.mark.parametrize("strict", [False, True], ids=["trace", "strict"])
@pytest.mark.parametrize("case", CALLS, ids=str)
def test_export_is_one_node_for_every_size(case: DynamicCall, strict: bool):
    program = export(case, strict)
    op = getattr(torch.ops.metal, case.op).default
    assert [target for target in targets(program) if target != torch.ops.aten.transpose.int] == [op]

    symbols = symbols_of_inputs(case, program)
    for name, symbol in symbols.items():
        assert isinstance(symbol, torch.SymInt), f"{name} was fixed to {symbol}"
    assert str(tuple(output_of(program).shape)) == str(tuple(symbols.get(size, size) for size in case.out))

    run = program.module()
    for sizes in [*case.sizes, dict.fromkeys(case.sizes[0], 1)]:
        arguments = case.make(**sizes)
        again = [argument.clone() for argument in arguments]
        expected = case.call(*arguments)
        assert torch.equal(run(*again), expected)
        assert all(map(torch.equal, again, arguments)), "the exported call must mutate what the eager call mutates"


@pytest.mark.parametrize("case", CALLS, ids=str)
def test_decompositions_keep_the_node(case: DynamicCall):
    program = export(case, strict=False).run_decompositions()
    op = getattr(torch.ops.metal, case.op).default
    nodes = [node for node in program.graph.nodes if node.op == "call_function"]
    # An op with a mutated argument is wrapped, once, by functionalisation.
    assert sum(node.target == op or op in node.args for node in nodes) == 1


@pytest.mark.parametrize("bad", BAD_CALLS, ids=str)
@pytest.mark.parametrize("strict", [False, True], ids=["trace", "strict"])
def test_bad_input_gives_the_sentence(bad: BadCall, strict: bool):
    with pytest.raises(Exception) as error:
        torch.export.export(Call(bad.call), bad.arguments(), strict=strict)
    assert bad.sentence in str(error.value)


class RowsOfOneExpert(nn.Module):
    """The rows that go to expert 0, as many as there are: a size that depends on the data."""

    def __init__(self) -> None:
        super().__init__()
        for name, tensor in zip(("w", "scales", "biases"), quantize_affine(torch.randn(2, 10, 64)), strict=True):
            self.register_buffer(name, tensor)

    def forward(self, x: Tensor, expert: Tensor) -> Tensor:
        rows = (expert == 0).nonzero().squeeze(1)
        return gather_qmv(x[rows], self.w, self.scales, self.biases, expert[rows], 64)


class FilledCache(nn.Module):
    """The filled part of a cache, sliced by a number that is known only at run time."""

    def forward(self, q: Tensor, cache: Tensor, filled: Tensor) -> Tensor:
        n = filled.item()
        torch._check(n >= 1)
        torch._check(n <= cache.shape[2])
        keys = cache.narrow(2, 0, n)
        return sdpa(q, keys, keys, is_causal=True, enable_gqa=True)


class RowsOfABatch(nn.Module):
    """The sequences that are still running, chosen by a mask."""

    def forward(self, x: Tensor, decay: Tensor, states: Tensor, running: Tensor) -> Tensor:
        rows = running.nonzero().squeeze(1)
        state = states[rows]
        y = gated_delta_rule(x[rows], x[rows], x[rows], decay[rows], decay[rows], state)
        states[rows] = state
        return y


@pytest.mark.parametrize("strict", [False, True], ids=["trace", "strict"])
def test_rows_chosen_by_data(strict: bool):
    model = RowsOfOneExpert()
    arguments = torch.randn(5, 64), torch.tensor([0, 1, 0, 1, 1])
    program = torch.export.export(model, arguments, dynamic_shapes=2 * ({0: Dim("P")},), strict=strict)
    assert targets(program).count(torch.ops.metal.gather_qmv.default) == 1
    rows = output_of(program).shape[0]
    assert isinstance(rows, torch.SymInt) and not rows.node.has_hint(), f"the number of rows was fixed to {rows}"
    for P in (5, 1, 20):
        x, expert = torch.randn(P, 64), torch.randint(0, 2, (P,))
        assert torch.equal(program.module()(x, expert), model(x, expert))
    x, nobody = torch.randn(4, 64), torch.ones(4, dtype=torch.long)
    assert program.module()(x, nobody).shape == (0, 10)


@pytest.mark.parametrize("strict", [False, True], ids=["trace", "strict"])
def test_keys_sliced_by_data(strict: bool):
    model = FilledCache()
    q, cache = torch.randn(1, 4, 3, 16), torch.randn(1, 2, 32, 16)
    program = torch.export.export(model, (q, cache, torch.tensor(7)), strict=strict)
    assert targets(program).count(torch.ops.metal.sdpa.default) == 1
    for n in (7, 1, 32):
        assert torch.equal(program.module()(q, cache, torch.tensor(n)), model(q, cache, torch.tensor(n)))


@pytest.mark.parametrize("strict", [False, True], ids=["trace", "strict"])
def test_batch_chosen_by_data(strict: bool):
    model = RowsOfABatch()

    def arguments(running: list[bool]) -> tuple[Tensor, ...]:
        return torch.randn(4, 3, 2, 8), torch.rand(4, 3, 2), torch.randn(4, 2, 8, 8), torch.tensor(running)

    program = torch.export.export(model, arguments([True, False, True, True]), strict=strict)
    assert targets(program).count(torch.ops.metal.gated_delta_rule.default) == 1
    for running in ([True, True, False, False], [False] * 4, [True] * 4, [False, False, True, False]):
        x, decay, states, mask = arguments(running)
        expected_states = states.clone()
        expected = model(x, decay, expected_states, mask)
        assert torch.equal(program.module()(x, decay, states, mask), expected)
        assert torch.equal(states, expected_states)
