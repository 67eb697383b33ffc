"""torch.compile: the same result as eager, in one graph, compiled once for all sizes."""

from copy import deepcopy

import pytest
import torch
import torch.fx.experimental._config
from decoder import TINY, Decoder, float64_twin
from dynamic_calls import BAD_CALLS, CALLS, BadCall, DynamicCall
from torch._dynamo.decorators import mark_unbacked

from tolerances import check
from torch_metal_ops import gated_delta_rule, gather_qmv, quantize_affine, sdpa


@pytest.fixture(autouse=True)
def nothing_compiled():
    torch._dynamo.reset()
    # Off, or torch takes two sizes for one because the first call happens to have the same number in both.
    with torch.fx.experimental._config.patch(use_duck_shape=False):
        yield


@pytest.mark.parametrize("case", CALLS, ids=str)
@torch._dynamo.config.patch(error_on_recompile=True)
def test_op_is_compiled_once(case: DynamicCall):
    compiled = torch.compile(case.call, fullgraph=True, dynamic=True)
    for sizes in case.sizes:
        arguments = case.make(**sizes)
        again = [argument.clone() for argument in arguments]
        expected = case.call(*arguments)
        assert torch.equal(compiled(*again), expected)
        assert all(map(torch.equal, again, arguments)), "the compiled call must mutate what the eager call mutates"


@torch._dynamo.config.patch(error_on_recompile=True)
def test_sizes_known_only_at_run_time_are_compiled_once():
    """Unbacked sizes: not even 1 is special."""
    weights = quantize_affine(torch.randn(3, 10, 64), group_size=32)

    def call(x, expert, q, k, delta, state):
        y = gated_delta_rule(delta, delta, delta, delta[..., 0], delta[..., 1], state)
        return gather_qmv(x, *weights, expert, 32), sdpa(q, k, k, is_causal=True), y

    compiled = torch.compile(call, fullgraph=True)
    for n in (3, 1, 17):
        delta = torch.rand(2, n, 3, 8)
        arguments = (
            torch.randn(n, 64),
            torch.randint(-1, 3, (n,)),
            torch.randn(2, 4, n, 16),
            torch.randn(2, 4, n, 16),
            delta,
        )
        for tensor, dim in zip(arguments, (0, 0, 2, 2, 1), strict=True):
            mark_unbacked(tensor, dim)
        state = torch.rand(2, 3, 8, 8)
        expected_state = state.clone()
        expected = call(*arguments, expected_state)
        assert all(map(torch.equal, compiled(*arguments, state), expected))
        assert torch.equal(state, expected_state)


# Inductor takes most of a minute for each of the two graphs, so it gets one, and the cheap backend both.
@pytest.mark.parametrize(("backend", "prompts"), [("inductor", (5,)), ("aot_eager", (5, 1))])
def test_decoder(backend: str, prompts: tuple[int, ...]):
    eager = Decoder(TINY)
    truth, model = float64_twin(eager), deepcopy(eager)
    compiled = torch.compile(model, fullgraph=True, dynamic=True, backend=backend)

    def step(tokens: int) -> None:
        x = torch.randn(TINY.batch, tokens, TINY.hidden)
        check(compiled(x), truth(x.double()), eager(x))

    for tokens in prompts:  # torch always treats a size of 1 apart
        step(tokens)
    with torch._dynamo.config.patch(error_on_recompile=True):
        for tokens in (3, 2, 7, 2) if backend == "inductor" else (3, 1, 1, 7, 1):
            step(tokens)
    for name, buffer in eager.named_buffers():
        check(model.get_buffer(name), truth.get_buffer(name).double(), buffer)


@pytest.mark.parametrize("bad", BAD_CALLS, ids=str)
def test_bad_input_gives_the_sentence(bad: BadCall):
    compiled = torch.compile(bad.call, fullgraph=True, dynamic=True)
    with pytest.raises(Exception) as error:
        compiled(*bad.arguments())
    assert bad.sentence in str(error.value)
