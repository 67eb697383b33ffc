"""What is special to metal::gated_delta_rule: its errors, its properties, the memory of its state, its autograd."""

import os
import subprocess
import sys

import numpy
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from cases import Call
from cases.gated_delta_rule import POISONED, Case, near_one, slice_of_cache
from contract import expect_error
from tolerances import check, same_bits
from torch_metal_ops import gated_delta_rule, reference

OP = torch.ops.metal.gated_delta_rule.default
# device, the only fixture, is a name.
few = settings(
    derandomize=True, max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def call_of(**changes: Tensor) -> Call:
    """A legal call with some arguments replaced."""
    return Call(OP, tuple((Case(B=2, T=3, Hk=2, Hv=4, Dk=8, Dv=6).arguments() | changes).values()))


def arguments_on(device: str, case: Case) -> dict[str, Tensor]:
    return {name: tensor.to(device) for name, tensor in case.arguments().items()}


def run(case: Case, device: str = "cpu") -> tuple[Tensor, Tensor]:
    arguments = arguments_on(device, case)
    return gated_delta_rule(**arguments), arguments["state"]


def check_against_reference(case: Case, device: str = "cpu") -> None:
    call = case.call()
    truth, eager = call.reference(torch.float64), call.reference(torch.float32)
    for actual, expected, plain in zip(call.copy(device).run(), truth, eager, strict=True):
        check(actual, expected, plain.to(actual.dtype))


# -- errors


def test_q_must_be_float():
    expect_error(
        ValueError,
        call_of(q=torch.zeros(2, 3, 2, 8, dtype=torch.int32)),
        """\
gated_delta_rule: q must be float32, float16 or bfloat16, got Int. Convert it with .to() first.""",
    )


def test_one_dtype():
    expect_error(
        ValueError,
        call_of(k=torch.zeros(2, 3, 2, 8, dtype=torch.float16)),
        """\
gated_delta_rule: q and k must have one dtype, got Float and Half. Convert one with .to() first.""",
    )
    expect_error(
        ValueError,
        call_of(v=torch.zeros(2, 3, 4, 6, dtype=torch.bfloat16)),
        """\
gated_delta_rule: q and v must have one dtype, got Float and BFloat16. Convert one with .to() first.""",
    )


def test_gates_and_state_must_be_float():
    expect_error(
        ValueError,
        call_of(g=torch.zeros(2, 3, 4, dtype=torch.float64)),
        """\
gated_delta_rule: g must be float32, float16 or bfloat16, got Double. Convert it with .to() first.""",
    )
    expect_error(
        ValueError,
        call_of(beta=torch.zeros(2, 3, 4, dtype=torch.bool)),
        """\
gated_delta_rule: beta must be float32, float16 or bfloat16, got Bool. Convert it with .to() first.""",
    )
    expect_error(
        ValueError,
        call_of(state=torch.zeros(2, 4, 6, 8, dtype=torch.float64)),
        """\
gated_delta_rule: state must be float32, float16 or bfloat16, got Double. Convert it with .to() \
first.""",
    )


def test_dimensions():
    expect_error(
        ValueError,
        call_of(q=torch.zeros(3, 2, 8)),
        """gated_delta_rule: q must be [B, T, Hk, Dk], got shape [3, 2, 8]. Add or merge dimensions.""",
    )
    expect_error(
        ValueError,
        call_of(v=torch.zeros(2, 3, 24)),
        """\
gated_delta_rule: v must be [B, T, Hv, Dv], got shape [2, 3, 24]. Add or merge dimensions.""",
    )


def test_sizes():
    expect_error(
        ValueError,
        call_of(k=torch.zeros(2, 3, 2, 9)),
        """\
gated_delta_rule: k must be [B, T, Hk, Dk] = [2, 3, 2, 8], got shape [2, 3, 2, 9]. Reshape it, or \
check the sizes of q and v.""",
    )
    expect_error(
        ValueError,
        call_of(v=torch.zeros(2, 4, 4, 6)),
        """\
gated_delta_rule: v must be [B, T, Hv, Dv] = [2, 3, 4, 6], got shape [2, 4, 4, 6]. Reshape it, or \
check the sizes of q and v.""",
    )
    expect_error(
        ValueError,
        call_of(g=torch.zeros(2, 3, 2)),
        """\
gated_delta_rule: g must be [B, T, Hv] or [B, T, Hv, Dk] = [2, 3, 4], got shape [2, 3, 2]. Reshape \
it, or check the sizes of q and v.""",
    )
    expect_error(
        ValueError,
        call_of(g=torch.zeros(2, 3, 4, 6)),
        """\
gated_delta_rule: g must be [B, T, Hv] or [B, T, Hv, Dk] = [2, 3, 4, 8], got shape [2, 3, 4, 6]. \
Reshape it, or check the sizes of q and v.""",
    )
    expect_error(
        ValueError,
        call_of(beta=torch.zeros(2, 4, 3)),
        """\
gated_delta_rule: beta must be [B, T, Hv] = [2, 3, 4], got shape [2, 4, 3]. Reshape it, or check the \
sizes of q and v.""",
    )
    expect_error(
        ValueError,
        call_of(state=torch.zeros(2, 4, 8, 6)),
        """\
gated_delta_rule: state must be [B, Hv, Dv, Dk] = [2, 4, 6, 8], got shape [2, 4, 8, 6]. Reshape it, \
or check the sizes of q and v.""",
    )


def test_head_sizes():
    empty = {"q": torch.zeros(2, 3, 2, 0), "k": torch.zeros(2, 3, 2, 0), "state": torch.zeros(2, 4, 6, 0)}
    expect_error(
        ValueError, call_of(**empty), """gated_delta_rule: Dk must be from 1 to 256, got 0. Split larger heads."""
    )
    large = {"q": torch.zeros(2, 3, 2, 257), "k": torch.zeros(2, 3, 2, 257), "state": torch.zeros(2, 4, 6, 257)}
    expect_error(
        ValueError, call_of(**large), """gated_delta_rule: Dk must be from 1 to 256, got 257. Split larger heads."""
    )
    expect_error(
        ValueError,
        call_of(v=torch.zeros(2, 3, 4, 0), state=torch.zeros(2, 4, 0, 8)),
        """gated_delta_rule: Dv must be from 1 to 256, got 0. Split larger heads.""",
    )
    expect_error(
        ValueError,
        call_of(v=torch.zeros(2, 3, 4, 257), state=torch.zeros(2, 4, 257, 8)),
        """gated_delta_rule: Dv must be from 1 to 256, got 257. Split larger heads.""",
    )


def test_heads():
    none = torch.zeros(2, 3, 0, 8)
    expect_error(
        ValueError,
        call_of(q=none, k=none.clone()),
        """\
gated_delta_rule: q must have at least one head when v has any, got 0 for 4. Check the head \
dimension.""",
    )
    three = torch.zeros(2, 3, 3, 8)
    expect_error(
        ValueError,
        call_of(q=three, k=three.clone()),
        """\
gated_delta_rule: the heads of v must be a multiple of the heads of q, got 4 and 3. Check the head \
dimension.""",
    )


# One head, Dv = 8 and Dk = 8: each of q, k, v and a decay a channel has the shape of a row of the state.
ROW = {"q": (1, 1, 1, 8), "k": (1, 1, 1, 8), "v": (1, 1, 1, 8), "g": (1, 1, 1, 8), "beta": (1, 1, 1)}


def rows_and_state(**changes: Tensor) -> Call:
    arguments = {name: torch.zeros(sizes) for name, sizes in ROW.items()} | {"state": torch.zeros(1, 1, 8, 8)}
    return Call(OP, tuple((arguments | changes).values()))


def test_state_shares_memory_with_q():
    state = torch.zeros(1, 1, 8, 8)
    expect_error(
        ValueError,
        rows_and_state(state=state, q=state[:, :, 3:4]),
        """\
gated_delta_rule: state must not share memory with another argument, got one that overlaps q. Clone \
q first.""",
    )


@pytest.mark.parametrize("name", ROW)
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_state_shares_memory(name, device):
    memory = torch.zeros(100, device=device)
    arguments = {other: torch.zeros(sizes, device=device) for other, sizes in ROW.items()}
    state = memory[:64].view(1, 1, 8, 8)
    last = memory[63 : 63 + arguments[name].numel()].view(ROW[name])  # its first element is the state's last
    with pytest.raises(ValueError, match=f"got one that overlaps {name}. Clone {name} first"):
        OP(**(arguments | {name: last}), state=state)
    after = memory[64 : 64 + arguments[name].numel()].view(ROW[name])
    OP(**(arguments | {name: after}), state=state)


def test_state_of_another_storage_over_the_same_memory():
    memory = numpy.zeros(64, dtype=numpy.float32)
    state, q = torch.from_numpy(memory).view(1, 1, 8, 8), torch.from_numpy(memory)[8:16].view(1, 1, 1, 8)
    with pytest.raises(ValueError, match="got one that overlaps q"):
        rows_and_state(state=state, q=q).run()


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_interleaved_views_do_not_share_memory(device):
    """Columns 0 to 7 of a matrix are the state, column 8 is q: their ranges of bytes meet, their bytes do not."""
    matrix = torch.zeros(8, 9, device=device)
    rest = {name: torch.zeros(sizes, device=device) for name, sizes in ROW.items() if name != "q"}
    OP(q=matrix[:, 8].view(1, 1, 1, 8), state=matrix[:, :8].view(1, 1, 8, 8), **rest)


def test_state_with_stride_0():
    expect_error(
        ValueError,
        rows_and_state(state=torch.zeros(1, 1, 1, 8).expand(1, 1, 8, 8)),
        """\
gated_delta_rule: state must not hold one element twice, got strides [8, 8, 0, 1] for shape [1, 1, \
8, 8]. Clone an expanded tensor first.""",
    )


def test_state_of_overlapping_windows():
    expect_error(
        ValueError,
        rows_and_state(state=torch.zeros(15).as_strided((1, 1, 8, 8), (0, 0, 1, 1))),
        """\
gated_delta_rule: state must not hold one element twice, got strides [0, 0, 1, 1] for shape [1, 1, \
8, 8]. Clone an expanded tensor first.""",
    )


def test_state_with_strides_that_cross_but_do_not_repeat():
    """Strides 2 and 3 over 2 and 2 elements reach 0, 2, 3 and 5: nothing is held twice."""
    state = torch.arange(6.0).as_strided((1, 1, 2, 2), (6, 6, 2, 3))
    one = torch.ones(1, 1, 1, 2)
    gate = torch.ones(1, 1, 1)
    expected = reference.gated_delta_rule(one, one, one, gate, gate, state)[1]
    gated_delta_rule(one, one.clone(), one.clone(), gate, gate.clone(), state)
    assert torch.equal(state.double(), expected)


# -- the reference


def test_reference_by_hand():
    q, k, v = (torch.tensor(values).view(1, 1, 1, 2) for values in ([1.0, 2.0], [1.0, -1.0], [5.0, 6.0]))
    g, beta = torch.tensor(0.5).view(1, 1, 1), torch.tensor(0.25).view(1, 1, 1)
    state = torch.tensor([[2.0, 4.0], [6.0, 8.0]]).view(1, 1, 2, 2)
    y, new = reference.gated_delta_rule(q, k, v, g, beta, state)
    # S = [[1, 2], [3, 4]]; S k = [-1, -1]; d = [6, 7] / 4; S + d k^T = [[2.5, 0.5], [4.75, 2.25]]
    assert new.flatten().tolist() == [2.5, 0.5, 4.75, 2.25]
    assert y.flatten().tolist() == [3.5, 9.25]


def test_reference_by_hand_a_decay_a_channel():
    one = torch.ones(1, 1, 1, 2)
    g, beta = torch.tensor([0.5, 0.0]).view(1, 1, 1, 2), torch.ones(1, 1, 1)
    y, new = reference.gated_delta_rule(one, one, 4 * one, g, beta, torch.full((1, 1, 2, 2), 2.0))
    assert new.flatten().tolist() == [4.0, 3.0, 4.0, 3.0]  # S = [1, 0]; d = 4 - 1 = 3
    assert y.flatten().tolist() == [7.0, 7.0]


# -- properties

odd_sizes = st.sampled_from([1, 2, 3, 5, 8, 17, 32, 33])
cases = st.builds(
    Case,
    B=st.integers(1, 2),
    T=st.sampled_from([1, 2, 11, 12, 13, 31, 33, 65]),
    Hk=st.just(2),
    Hv=st.sampled_from([2, 4]),
    Dk=odd_sizes,
    Dv=odd_sizes,
    per_channel=st.booleans(),
    decay=st.just(near_one),
)


@few
@given(case=cases)
def test_any_sizes(case, device):
    check_against_reference(case, device)


@few
@given(case=cases, first=st.integers(0, 65))
def test_two_calls_equal_one(case, first, device):
    first = min(first, case.T)
    y, state = run(case, device)
    arguments = arguments_on(device, case)
    carried = arguments.pop("state")
    parts = []
    for steps in (slice(0, first), slice(first, None)):
        parts.append(gated_delta_rule(**{name: tensor[:, steps] for name, tensor in arguments.items()}, state=carried))
    truth = case.call().reference(torch.float64)
    check(torch.cat(parts, dim=1), truth[0], y)
    check(carried, truth[1], state)


@few
@given(case=cases)
def test_repeated_key_heads(case, device):
    y, state = run(case, device)
    arguments = arguments_on(device, case)
    for name in ("q", "k"):
        arguments[name] = arguments[name].repeat_interleave(case.Hv // case.Hk, 2)
    assert same_bits(gated_delta_rule(**arguments), y) and same_bits(arguments["state"], state)


@few
@given(case=cases, dtype=st.sampled_from([torch.float32, torch.float16, torch.bfloat16]))
def test_padding_leaves_the_state_alone(case, dtype, device):
    arguments = case.arguments()
    arguments["g"].fill_(1), arguments["beta"].fill_(0)
    before = arguments["state"].to(dtype)
    before.view(-1)[::3] = -0.0
    arguments["state"] = before
    on_device = {name: tensor.to(device, copy=True) for name, tensor in arguments.items()}
    gated_delta_rule(**on_device)
    assert same_bits(before, on_device["state"].cpu())


@few
@given(case=cases)
def test_rows_of_the_state_are_independent(case, device):
    y, state = run(case, device)
    arguments = arguments_on(device, case)
    arguments["v"], arguments["state"] = arguments["v"].flip(3), arguments["state"].flip(2)
    assert same_bits(gated_delta_rule(**arguments), y.flip(3)) and same_bits(arguments["state"], state.flip(2))


@pytest.mark.parametrize("case", POISONED, ids=str)
def test_nan_and_inf(case, device):
    check_against_reference(case, device)


# -- many steps


def test_a_thousand_calls_equal_one():
    """D1: the state must stay float32 between calls although everything else is bfloat16."""
    case = Case(T=1000, Dk=16, Dv=8, dtype=torch.bfloat16, decay=near_one)
    truth = case.call().reference(torch.float64)[1]
    _, at_once = run(case)
    arguments = case.arguments()
    state = arguments.pop("state")
    for t in range(case.T):
        gated_delta_rule(**{name: tensor[:, t : t + 1] for name, tensor in arguments.items()}, state=state)
    for actual in (at_once, state):
        assert (actual - truth).norm() / truth.norm() < 1e-5


def test_decay_near_one_in_float32():
    """D2: 4096 steps with decays that bfloat16 rounds to 1."""
    check_against_reference(Case(T=4096, Dk=16, dtype=torch.bfloat16, decay=near_one))


@pytest.mark.parametrize(("T", "beta"), [(30, 1.0), (20, 2.0)])
def test_keys_that_are_not_normalised(T, beta):
    """D6: each step multiplies the state by 1 - 9 beta along its key, so errors are relative to what it has become."""
    case = Case(T=T, Dk=16, Dv=16, key_norm=3.0, beta=beta)
    call = case.call()
    truth = call.reference(torch.float64)
    for actual, expected in zip(call.run(), truth, strict=True):
        assert (actual - expected).norm() / expected.norm() < 1e-5


def test_offsets_beyond_32_bits():
    """Batches that are 2^31 elements apart in memory that is only reserved."""
    case = Case(B=2, T=1, Dk=8, Dv=8)
    call = case.call()
    far = torch.empty(2**31 + 64, dtype=torch.float32)
    arguments = case.arguments()
    for place, (name, tensor) in enumerate(arguments.items()):
        if name == "state":
            continue
        strides = (2**31 - 512, *tensor[0].contiguous().stride())
        arguments[name] = far.as_strided(tensor.shape, strides, place * 16).copy_(tensor)
    for actual, expected in zip((gated_delta_rule(**arguments), arguments["state"]), call.run(), strict=True):
        assert same_bits(actual, expected)


# -- autograd


def test_version_of_the_state_is_bumped():
    arguments = Case().arguments()
    version = arguments["state"]._version
    gated_delta_rule(**arguments)
    assert arguments["state"]._version == version + 1


def test_version_of_a_view_s_base_is_bumped():
    arguments = Case(layout={"state": slice_of_cache}).arguments()
    base = arguments["state"]._base
    version = base._version
    gated_delta_rule(**arguments)
    assert base._version == version + 1


def test_backward_through_a_tensor_that_the_op_changed():
    arguments = Case().arguments()
    leaf = torch.zeros_like(arguments["state"], requires_grad=True)
    saved = leaf.exp()  # exp keeps its result for backward
    arguments["state"] = saved.detach()
    gated_delta_rule(**arguments)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        saved.sum().backward()


def test_no_derivative():
    arguments = Case().arguments()
    arguments["v"].requires_grad_()
    with pytest.raises(RuntimeError, match="derivative for metal::gated_delta_rule is not implemented"):
        gated_delta_rule(**arguments).sum().backward()


def test_no_derivative_through_the_state():
    arguments = Case().arguments()
    arguments["state"] = arguments["state"].requires_grad_() * 2
    gated_delta_rule(**arguments)
    with pytest.raises(RuntimeError, match="derivative for metal::gated_delta_rule is not implemented"):
        arguments["state"].sum().backward()


def test_state_that_is_a_leaf():
    arguments = Case().arguments()
    before = arguments["state"].clone()
    arguments["state"].requires_grad_()
    with pytest.raises(RuntimeError, match="a leaf Variable that requires grad"):
        gated_delta_rule(**arguments)
    assert same_bits(arguments["state"].detach(), before)


def test_inference_mode():
    with torch.inference_mode():
        call = Case().call()
        truth, eager = call.reference(torch.float64), call.reference(torch.float32)
        for actual, expected, plain in zip(call.run(), truth, eager, strict=True):
            check(actual, expected, plain)


# -- other instruction sets


def test_without_avx():
    """The contract on the kernels for machines that have nothing more than the baseline."""
    if torch.backends.cpu.get_cpu_capability() == "DEFAULT":
        pytest.skip("torch runs on the baseline anyway")
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "tests/test_contract.py"]
    command += ["-k", "gated_delta_rule and (reference or threads) and not mps"]
    done = subprocess.run(
        command, env=os.environ | {"ATEN_CPU_CAPABILITY": "default"}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout
