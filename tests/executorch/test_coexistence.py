"""ExecuTorch's metal::gather_qmv and metal::gated_delta_rule in the process of ours, whichever is imported first.

In the main run these are skipped rather than not collected, so that the run says what it left out.
"""

import pytest

from interpreter import output_of

# With tests/ on the path, "executorch" alone would find this folder.
METAL = "executorch.backends.apple.metal.ops"
pytest.importorskip(METAL, reason="executorch is not installed: .ci/executorch runs these beside it")

OURS = "import torch_metal_ops"
THEIRS = f"import {METAL}.gather_qmv, {METAL}.gated_delta_rule"
ORDERS = {
    "ours first": f"{OURS}\n{THEIRS}",
    "theirs first": f"{THEIRS}\n{OURS}",
    "one of theirs first": f"import {METAL}.gated_delta_rule\n{OURS}\n{THEIRS}",
}
both_orders = pytest.mark.parametrize("order", ORDERS.values(), ids=ORDERS.keys())

# Importing both asks for every warning, and none may come.
PREAMBLE = """
import torch
torch.set_warn_always(True)
{order}
import torch_metal_ops as ours
from torch.testing import assert_close
torch.set_warn_always(False)
torch.manual_seed(0)

def expert_args(bits=4, indices=(3, 0, 3), requires_grad=False):
    weights = ours.quantize_affine(torch.randn(4, 8, 64), bits, 32)
    x = torch.randn(3, 64, requires_grad=requires_grad)
    return x, *weights, torch.tensor(indices), 32

def delta_args(Dk=64, requires_grad=False):
    q, k = torch.randn(1, 5, 2, Dk, requires_grad=requires_grad), torch.randn(1, 5, 2, Dk) / Dk**0.5
    v, g, beta = torch.randn(1, 5, 4, 64), torch.rand(1, 5, 4), torch.rand(1, 5, 4)
    return q, k, v, g, beta, torch.randn(1, 4, 64, Dk)

TOP_K = ((3, 0), (1, -1), (2, 2))
gather_qmv, gated_delta_rule = torch.ops.metal.gather_qmv.default, torch.ops.metal.gated_delta_rule.default
"""


def run(order: str, code: str, **options: bool) -> str:
    return output_of(PREAMBLE.format(order=order) + code, **options)


OUR_FORMS = """
args = expert_args(bits=5, indices=TOP_K)  # neither 5 bits nor top-k indices are ExecuTorch's
assert_close(ours.gather_qmv(*args), ours.reference.gather_qmv(*args).float())
*rest, state = delta_args()
expected = ours.reference.gated_delta_rule(*rest, state)
assert_close((ours.gated_delta_rule(*rest, state), state), tuple(t.float() for t in expected))
q = torch.randn(1, 2, 3, 16)
assert_close(ours.sdpa(q, q, q), torch.nn.functional.scaled_dot_product_attention(q, q, q))
"""

THEIR_FORMS = """
from executorch.backends.apple.metal.ops import gather_qmv as their_gather, gated_delta_rule as their_delta
args = expert_args()
body = their_gather.gather_qmv._init_fn  # what they compute themselves
assert_close(their_gather.gather_qmv(*args), body(*args))
assert_close(ours.gather_qmv(*args), body(*args))

*rest, state = delta_args()
their_state, body_state = state.clone(), state.clone()
body = their_delta.gated_delta_rule._init_fn(*rest, body_state)
assert_close(their_delta.gated_delta_rule(*rest, their_state), body)
assert_close(ours.gated_delta_rule(*rest, state), body)
assert_close(state, body_state)
assert_close(their_state, body_state)
"""


@both_orders
def test_both_packages_functions(order):
    run(order, OUR_FORMS + THEIR_FORMS)


@both_orders
def test_opcheck(order):
    code = """
for args in (expert_args(), expert_args(3, TOP_K)):
    result = torch.library.opcheck(gather_qmv, args)
    assert set(result.values()) == {"SUCCESS"}, result
for args in (delta_args(), delta_args(Dk=7)):
    result = torch.library.opcheck(gated_delta_rule, args)
    assert set(result.values()) == {"SUCCESS"}, result
"""
    run(order, code, silent=False)  # torch's own deprecations


@both_orders
def test_our_errors(order):
    """The contract's sentence from a CPU, a Meta and a fake tensor: the last would be theirs, which checks nothing."""
    code = """
from torch._subclasses import FakeTensorMode

def sentence(op, args):
    try:
        op(*args)
    except ValueError as error:
        return str(error)

def on_meta(value):
    return value.to("meta") if isinstance(value, torch.Tensor) else value

def wrong(args, i, value):
    return *args[:i], value, *args[i + 1:]

for op, args in ((gather_qmv, wrong(expert_args(), 5, 48)), (gated_delta_rule, wrong(delta_args(), 4, torch.rand(1, 5, 3)))):
    with FakeTensorMode() as mode:
        fakes = [mode.from_tensor(value) if isinstance(value, torch.Tensor) else value for value in args]
        found = {sentence(op, fakes)}
    found |= {sentence(op, args), sentence(op, [on_meta(value) for value in args])}
    print(*found)
"""
    group_size, beta = run(order, code).splitlines()
    assert group_size.startswith("gather_qmv: group_size must be one of 16, 32, 64, 128, 256, got 48. ")
    assert beta.startswith("gated_delta_rule: beta must be [B, T, Hv] = [1, 5, 4], got shape [1, 5, 3]. ")


@both_orders
def test_backward_raises(order):
    code = """
for op, args in ((gather_qmv, expert_args(requires_grad=True)), (gated_delta_rule, delta_args(requires_grad=True))):
    try:
        op(*args).sum().backward()
    except RuntimeError as error:
        print(error)
"""
    assert run(order, code).splitlines() == [
        "derivative for metal::gather_qmv is not implemented",
        "derivative for metal::gated_delta_rule is not implemented",
    ]


@both_orders
def test_export_and_compile(order):
    """One node an op, dynamic sizes, the state's mutation kept, and our forms, traced by our Meta kernels."""
    code = """
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("state", torch.zeros(1, 4, 64, 64))

    def forward(self, x, w, scales, biases, indices, q, k, v, g, beta):
        y = gated_delta_rule(q, k, v, g, beta, self.state)
        return gather_qmv(x, w, scales, biases, indices, 32), y

*delta, _ = delta_args()
inputs = *expert_args(6, TOP_K)[:5], *delta
rows, steps = torch.export.Dim("rows"), torch.export.Dim("steps")
shapes = ({0: rows}, None, None, None, {0: rows}) + ({1: steps},) * 5
program = torch.export.export(Model(), inputs, dynamic_shapes=shapes)
print(*(str(node.target) for node in program.graph.nodes if "metal" in str(node.target)))
functional = program.run_decompositions({})
print(sorted(functional.graph_signature.buffers_to_mutate.values()))
more = (torch.cat([inputs[0]] * 2), *inputs[1:4], torch.cat([inputs[4]] * 2), *(torch.cat([t] * 2, 1) for t in delta))
exported, compiled, eager = program.module(), torch.compile(Model(), fullgraph=True, dynamic=True, backend="aot_eager"), Model()
for _ in range(2):
    expected = eager(*more)
    assert_close(exported(*more), expected)
    assert_close(compiled(*more), expected)
assert_close(exported.state, eager.state)
assert_close(compiled.state, eager.state)
"""
    assert run(order, code, silent=False).splitlines() == [
        "metal.gated_delta_rule.default metal.gather_qmv.default",
        "['state']",
    ]


IMPORT_BACKEND = """
import sys, types
# torchao's own map needs its MPS library, which no Linux wheel has.
cshim = types.ModuleType("torchao.experimental.ops.mps.cshim")
cshim.torchao_op_c_shim = {}
sys.modules[cshim.__name__] = cshim
from executorch.backends.apple.metal.metal_backend import MetalBackend
"""

COMPARE_SHIMS = """
shims = MetalBackend.get_aoti_compile_options([])["aot_inductor.custom_ops_to_c_shims"]
for op in (torch.ops.metal.gather_qmv.default, torch.ops.metal.gated_delta_rule.default):
    (theirs,), our = shims[op], torch_metal_ops.c_shims("mps")[op][0]
    types_of = lambda text: [argument.split()[0] for argument in text.split("(")[1].split(",")]
    assert theirs.split("(")[0] == our.split("(")[0] and types_of(theirs) == types_of(our), (theirs, our)
"""


@pytest.mark.parametrize("ours_first", [True, False])
def test_metal_backend(ours_first):
    """ExecuTorch's backend still finds its C shims, keyed by the ops that are registered, and they are called as ours."""
    orders = [IMPORT_BACKEND, OURS]
    code = "\n".join(["import torch", *(reversed(orders) if ours_first else orders), COMPARE_SHIMS])
    output_of(code, silent=False)  # its own imports warn


def test_importing_ours_brings_in_their_two_modules_only():
    code = f"import sys, torch; before = set(sys.modules)\n{OURS}\nprint(*set(sys.modules) - before)"
    theirs = {name for name in output_of(code).split() if name.startswith("executorch")}
    assert {name for name in theirs if "ops." in name} == {
        f"{METAL}.gather_qmv",
        f"{METAL}.gated_delta_rule",
    }
    assert len(theirs) <= 7  # and the packages they are in
