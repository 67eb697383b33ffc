"""What torch's own machinery does with the ops: gradients, autocast, vmap, inference mode, version counters."""

import expecttest
import pytest
import torch

import torch_metal_ops
from torch_metal_ops import gated_delta_rule, gather_qmv, sdpa


def quantized(E=4, N=64, K=128):
    return torch_metal_ops.quantize_affine(torch.randn(E, N, K), bits=4, group_size=32)


def delta_inputs(*batch, T=2, heads=2, size=8):
    q, k, v = (torch.randn(*batch, T, heads, size) for _ in range(3))
    g, beta = torch.rand(*batch, T, heads), torch.rand(*batch, T, heads)
    return [q, k, v, g, beta, torch.randn(*batch, heads, size, size)]


def run_sdpa(x):
    return sdpa(x, torch.randn(1, 2, 9, 16), torch.randn(1, 2, 9, 16))


def run_gather_qmv(x):
    return gather_qmv(x, *quantized(), torch.zeros(x.shape[:-1], dtype=torch.int32), 32)


def run_gated_delta_rule(x):
    _, k, v, g, beta, state = delta_inputs(1)
    return gated_delta_rule(x, k, v, g, beta, state)


ARGUMENTS = [
    pytest.param(run_sdpa, (1, 2, 5, 16), id="sdpa"),
    pytest.param(run_gather_qmv, (3, 128), id="gather_qmv"),
    pytest.param(run_gated_delta_rule, (1, 2, 2, 8), id="gated_delta_rule"),
]


@pytest.mark.parametrize("run, shape", ARGUMENTS)
def test_backward_raises(run, shape):
    result = run(torch.randn(shape, requires_grad=True))
    assert result.requires_grad, "a result without a gradient would pass for one whose gradient is zero"
    with pytest.raises(RuntimeError, match=r"derivative for metal::\w+ is not implemented"):
        result.sum().backward()


@pytest.mark.parametrize("run, shape", ARGUMENTS)
def test_inference_mode(run, shape):
    x = torch.randn(shape)
    torch.manual_seed(1)
    expected = run(x)
    torch.manual_seed(1)
    with torch.inference_mode():
        assert torch.equal(run(x), expected)


def test_state_that_requires_grad_is_refused():
    *args, state = delta_inputs(1)
    with pytest.raises(RuntimeError, match="leaf Variable that requires grad is being used in an in-place operation"):
        gated_delta_rule(*args, state.requires_grad_())


def test_autograd_notices_the_mutated_state():
    *args, state = delta_inputs(1)
    weight = torch.randn_like(state, requires_grad=True)
    product = weight * state  # saves the state for its backward
    version = state._version
    gated_delta_rule(*args, state)
    assert state._version == version + 1
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.sum().backward()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_casts_as_torch_does(dtype):
    q, k = torch.randn(1, 2, 5, 16), torch.randn(1, 2, 9, 16)
    mask = torch.randn(5, 9)
    with torch.autocast("cpu", dtype=dtype):
        ours = sdpa(q, k, k, mask)
        theirs = torch.nn.functional.scaled_dot_product_attention(q, k, k, mask)
        sinks = sdpa(q, k, k, mask > 0, sinks=torch.randn(2))
    cast = sdpa(*(tensor.to(dtype) for tensor in (q, k, k, mask)))
    assert ours.dtype == theirs.dtype == sinks.dtype == dtype
    assert torch.equal(ours, cast)


def test_autocast_leaves_the_other_ops_alone():
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert run_gather_qmv(torch.randn(3, 128)).dtype == torch.float32
        assert run_gated_delta_rule(torch.randn(1, 2, 2, 8)).dtype == torch.float32


def test_vmap_sdpa():
    q, k = torch.randn(3, 1, 2, 5, 16), torch.randn(1, 2, 9, 16)
    mapped = torch.vmap(lambda q: sdpa(q, k, k))(q)
    assert torch.equal(mapped, torch.stack([sdpa(element, k, k) for element in q]))


def test_vmap_gather_qmv():
    weights = quantized()
    x, indices = torch.randn(3, 5, 128), torch.randint(0, 4, (3, 5))
    mapped = torch.vmap(lambda x, i: gather_qmv(x, *weights, i, 32))(x, indices)
    assert torch.equal(mapped, torch.stack([gather_qmv(a, *weights, i, 32) for a, i in zip(x, indices, strict=True)]))


def test_vmap_gated_delta_rule_updates_each_state():
    args = delta_inputs(3, 1)
    copies = [arg.clone() for arg in args]
    mapped = torch.vmap(gated_delta_rule)(*args)
    assert torch.equal(mapped, torch.stack([gated_delta_rule(*(arg[i] for arg in copies)) for i in range(3)]))
    assert torch.equal(args[-1], copies[-1])


def test_vmap_gated_delta_rule_needs_a_state_an_element():
    args = delta_inputs(3, 1)
    with pytest.raises(ValueError) as caught:
        torch.vmap(gated_delta_rule, in_dims=(0, 0, 0, 0, 0, None))(*args[:-1], args[-1][0])
    expecttest.assert_expected_inline(
        str(caught.value),
        """\
gated_delta_rule: under vmap the state must be mapped too, got in_dims None for it. Give each element a state of its own.""",
    )


def test_public_functions_have_the_schemas_arguments():
    import inspect

    for op in torch_metal_ops.custom_ops_to_c_shims:
        function = getattr(torch_metal_ops, op._opname)
        parameters = inspect.signature(function).parameters.values()
        schema = op._schema.arguments
        assert [parameter.name for parameter in parameters] == [argument.name for argument in schema]
        for parameter, argument in zip(parameters, schema, strict=True):
            assert (parameter.kind == parameter.KEYWORD_ONLY) == argument.kwarg_only
            if argument.has_default_value():
                assert parameter.default == argument.default_value
        for name in (parameter.name for parameter in parameters):
            assert name in function.__doc__, f"{op._opname}: {name} is not documented"


def test_c_shim_declarations():
    lines = [line for device in ("cpu", "mps") for op in torch_metal_ops.c_shims(device).values() for line in op]
    expecttest.assert_expected_inline(
        "\n".join(line.replace("(", "(\n  ").replace(", ", ",\n  ") for line in lines[:3]),
        """\
AOTITorchError aoti_torch_cpu_sdpa(
  AtenTensorHandle query,
  AtenTensorHandle key,
  AtenTensorHandle value,
  AtenTensorHandle* attn_mask,
  double dropout_p,
  int32_t is_causal,
  double* scale,
  int32_t enable_gqa,
  AtenTensorHandle* seqused_k,
  int64_t* sliding_window,
  double softcap,
  AtenTensorHandle* sinks,
  AtenTensorHandle* ret0)
AOTITorchError aoti_torch_cpu_gather_qmv(
  AtenTensorHandle x,
  AtenTensorHandle w,
  AtenTensorHandle scales,
  AtenTensorHandle biases,
  AtenTensorHandle expert_indices,
  int64_t group_size,
  AtenTensorHandle* ret0)
AOTITorchError aoti_torch_cpu_gated_delta_rule(
  AtenTensorHandle q,
  AtenTensorHandle k,
  AtenTensorHandle v,
  AtenTensorHandle g,
  AtenTensorHandle beta,
  AtenTensorHandle state,
  AtenTensorHandle* ret0)""",
    )
    assert lines[3:] == [line.replace("_cpu_", "_mps_") for line in lines[:3]]
    with pytest.raises(ValueError, match="c_shims: device must be 'cpu' or 'mps', got 'cuda'"):
        torch_metal_ops.c_shims("cuda")
