"""The simulated device as an ordinary torch device: what works on the CPU works on it, with the same numbers."""

import copy
import io
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

TESTS = Path(__file__).resolve().parents[1]

# Expressions of x, y: floats [3, 4], y positive; s: symmetric positive definite [4, 4]; i: int64 [3, 4] below 4;
# b: bool [3, 4]; c: complex [3, 4]; t: [2, 3, 8, 8], an image.
EXPRESSIONS = """
x + y; x - y; x * y; x / y; x // y; x % y; x ** 2; y ** x; -x; x + 1; 2 - x; 1 / y; x.add(y, alpha=3)
x < y; x <= y; x > y; x >= y; x == x; x != y; b & b; b | ~b; b ^ b; i & 3; i << 1; i >> 1; ~i; b.logical_not()
x.abs(); x.sign(); x.floor(); x.ceil(); x.round(); x.trunc(); x.frac(); x.exp(); x.exp2(); x.expm1(); y.log()
y.log2(); y.log10(); y.log1p(); y.sqrt(); y.rsqrt(); y.reciprocal(); x.sin(); x.cos(); x.tan(); x.tanh(); x.atan()
x.sinh(); x.cosh(); x.asinh(); x.sigmoid(); x.erf(); x.erfc(); y.lgamma(); y.digamma(); x.square(); x.neg()
x.clamp(-0.5, 0.5); x.clamp_min(0); torch.maximum(x, y); torch.minimum(x, y); torch.fmod(x, y); torch.atan2(x, y)
torch.hypot(x, y); torch.lerp(x, y, 0.3); torch.addcmul(x, y, y); torch.addcdiv(x, x, y); torch.where(b, x, y)
x.isnan(); x.isinf(); x.isfinite(); x.nan_to_num(); torch.logaddexp(x, y); torch.copysign(y, x); torch.signbit(x)
x.sum(); x.sum(0); x.sum(-1, keepdim=True); x.mean(); x.mean(1); x.prod(0); x.std(); x.var(1); x.amax(0); x.amin(1)
x.max(); x.min(); x.max(1); x.min(0); x.argmax(1); x.argmin(); x.median(); x.norm(); x.norm(1, dim=0); x.logsumexp(1)
b.any(); b.all(0); x.count_nonzero(); x.cumsum(0); x.cumprod(1); x.cummax(0); x.diff(); x.aminmax(); x.nansum(0)
x.sort(1); x.argsort(0); x.topk(2); x.kthvalue(2); i.unique(); i.bincount if 0 else i.flatten().bincount()
torch.searchsorted(x.sort(1).values, y); torch.bucketize(x, y[0].sort().values); torch.histc(x, 4, -1, 1)
x @ y.T; torch.mm(x, y.T); torch.addmm(x, x, s); torch.mv(s, x[0]); torch.dot(x[0], y[0]); torch.outer(x[0], y[0])
torch.bmm(t[0], t[1]); torch.baddbmm(t[0], t[0], t[1]); torch.matmul(t, s.repeat(2, 2)); torch.einsum("ij,kj->ik", x, y)
torch.tensordot(x, y, dims=([1], [1])); torch.kron(x, y); torch.cross(t[0, 0, :, :3], t[1, 0, :, :3], dim=1)
torch.linalg.inv(s); torch.linalg.det(s); torch.linalg.cholesky(s); torch.linalg.solve(s, x.T).contiguous(); torch.linalg.eigvalsh(s)
torch.linalg.qr(x); torch.linalg.svdvals(x); torch.linalg.norm(x); torch.trace(s); torch.cdist(x, y)
x.view(4, 3); x.reshape(2, 6); x.t(); x.transpose(0, 1); x.permute(1, 0); x.flatten(); x.unsqueeze(1); x[None].squeeze(0)
x[1]; x[:, 1]; x[1:, ::2]; x[..., -1]; x[[0, 2]]; x[b]; x[i[:, 0] % 3]; x.select(1, 2); x.narrow(1, 1, 2); x.unfold(1, 2, 1)
x.as_strided((2, 2), (1, 2), 1); x.expand(2, 3, 4); x.diagonal(); x.split(2, 1); x.chunk(2, 1); x.unbind(0); x.movedim(0, 1)
x.T.contiguous(); x.flip(0); x.roll(1, 1); x.rot90(); x.repeat(2, 2); x.tile(2); x.repeat_interleave(2, 0); x.tril(); x.triu(1)
torch.cat([x, y]); torch.stack([x, y], 1); torch.hstack([x, y]); torch.gather(x, 1, i); x.index_select(1, i[0])
x.scatter(1, i, y); x.scatter_add(1, i, y); x.index_add(0, i[0, :3] * 0, y); x.masked_fill(b, 7); x.masked_select(b)
x.index_fill(1, i[0], 2.0); x.index_put((i[:, 0] % 3,), y[0, 0]); x.take(i); x.nonzero(); b.nonzero(); torch.take_along_dim(x, i, 1)
torch.diag(x[0]); torch.block_diag(x, y); torch.meshgrid(x[0], y[0], indexing="ij"); torch.cartesian_prod(x[0], y[0])
x.half(); x.bfloat16(); x.int(); x.bool(); i.float(); x.to(torch.int8); x.bfloat16() + y.bfloat16(); x.half() @ y.half().T
x.view(torch.int32); c.real; c.imag; c.abs(); c.angle(); c.conj(); c * c; torch.view_as_real(c); torch.view_as_complex(t)
torch.fft.fft(x); torch.fft.rfft(x); torch.fft.ifft(c); x.softmax(1); x.log_softmax(1); F.relu(x); F.gelu(x); F.silu(x)
F.elu(x); F.selu(x); F.leaky_relu(x); F.softplus(x); F.hardtanh(x); F.hardswish(x); F.mish(x); F.glu(x); F.logsigmoid(x)
F.layer_norm(x, (4,)); F.rms_norm(x, (4,)); F.group_norm(t, 3); F.batch_norm(x, x[0] * 0, y[0], training=True); F.normalize(x)
F.linear(x, s); F.embedding(i, s); F.one_hot(i, 4); F.mse_loss(x, y); F.l1_loss(x, y); F.smooth_l1_loss(x, y)
F.cross_entropy(x, i[:, 0]); F.nll_loss(x, i[:, 0]); F.binary_cross_entropy_with_logits(x, b.float()); F.kl_div(x, y)
F.cosine_similarity(x, y); F.conv2d(t, t[:, :, :3, :3]); F.conv1d(t[0], t[0, :, :3, :3][:, [0, 1, 2]][:, :, :2].repeat(1, 3, 1)[:, :8])
F.conv_transpose2d(t, t[0, :, None, :3, :3].expand(3, 2, 3, 3)); F.max_pool2d(t, 2); F.avg_pool2d(t, 2); F.adaptive_avg_pool2d(t, 2)
F.interpolate(t, scale_factor=2); F.interpolate(t, scale_factor=2, mode="bilinear"); F.pad(x, (1, 1)); F.pad(t, (1, 1, 1, 1), mode="reflect")
F.pixel_shuffle(t.flatten()[:256].view(1, 4, 8, 8), 2); F.unfold(t, 3); F.grid_sample(t, t[:, 0, :, :2, None].expand(2, 8, 2, 2))
F.scaled_dot_product_attention(t, t, t); F.scaled_dot_product_attention(t, t, t, is_causal=True)
F.scaled_dot_product_attention(t, t, t, attn_mask=t[:1, :1] > 0); torch.zeros_like(x); torch.ones_like(x); torch.full_like(x, 3)
x.new_zeros(2); x.new_tensor([1.0, 2.0]); x.tolist(); x[0, 0].item(); x.equal(x); torch.allclose(x, x); x.shape; x.stride()
"""
CASES = [text.strip() for text in EXPRESSIONS.replace("\n", ";").split(";") if text.strip()]

IN_PLACE = """
x.add_(y); x.mul_(2); x.zero_(); x.fill_(3); x[0].mul_(2); x[:, 1].add_(y[:, 0]); x.T.mul_(y.T); x.view(4, 3).t().add_(1)
x[1:, ::2].copy_(y[1:, ::2]); x.diagonal().zero_(); x.unfold(1, 2, 2)[0].mul_(5); x.index_add_(0, i[0, :3] * 0, y)
x.scatter_(1, i, y); x.masked_fill_(b, 0); x.index_put_((i[:, 0] % 3,), y[0], accumulate=False) if 0 else x.clamp_(0)
x.copy_(y.half()); x.T.copy_(y.T); x.expand(3, 4).sub_(y); x.as_strided((2, 2), (1, 2), 1).fill_(9); x.swapaxes(0, 1)[1:].exp_()
x.index_copy_(0, i[0, :1] * 0, y[:1]); x.set_(y); x.resize_(2, 3); x.transpose_(0, 1); x.unsqueeze_(0); x.t_(); x.relu_()
torch.add(x, y, out=x); torch.mm(x, s, out=y); torch.exp(x, out=x[:]); torch.cumsum(y, 0, out=x); F.relu(x, inplace=True)
x.__setitem__(0, 7); x.__setitem__((slice(None), 1), y[:, 0]); x.__setitem__(b, 1); x.__setitem__((i[0, :2] % 3, i[1, :2]), 4)
"""
IN_PLACE_CASES = [text.strip() for text in IN_PLACE.replace("\n", ";").split(";") if text.strip()]


def tensors() -> dict[str, torch.Tensor]:
    x, t = torch.randn(3, 4), torch.randn(2, 3, 8, 8)
    t = t.view(2, 3, 8, 8)
    root = torch.randn(4, 4)
    return {
        "x": x, "y": torch.rand(3, 4) + 0.1, "s": root @ root.T + 4 * torch.eye(4), "i": torch.randint(0, 4, (3, 4)),
        "b": torch.rand(3, 4) < 0.5, "c": torch.randn(3, 4, dtype=torch.complex64), "t": t,
    }  # fmt: skip


def evaluate(expression: str, values: dict[str, torch.Tensor]):
    if expression == "torch.view_as_complex(t)":
        return torch.view_as_complex(values["t"].view(2, 3, 8, 4, 2))
    return eval(expression, {"torch": torch, "F": F}, values)


def same(actual, expected) -> None:
    if isinstance(expected, torch.Tensor):
        assert actual.device.type == "mps"
        torch.testing.assert_close(actual.cpu(), expected, rtol=1e-6, atol=1e-6, equal_nan=True)
        assert actual.stride() == expected.stride()
    elif isinstance(expected, tuple | list):
        assert len(actual) == len(expected)
        for a, b in zip(actual, expected, strict=True):
            same(a, b)
    else:
        assert actual == expected


def on_mps(values: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: value.to("mps") for name, value in values.items()}


@pytest.mark.parametrize("expression", CASES)
def test_operation(expression: str):
    values = tensors()
    same(evaluate(expression, on_mps(values)), evaluate(expression, values))


@pytest.mark.parametrize("expression", IN_PLACE_CASES)
def test_operation_in_place(expression: str):
    values = tensors()
    moved = on_mps(values)
    evaluate(expression, moved)
    evaluate(expression, values)
    for name, value in values.items():
        same(moved[name], value)


def test_every_view_of_torch_is_one_here():
    """What returns a view has a kernel of its own: the fallback would return a copy."""
    kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    composite = ("CompositeExplicitAutograd", "CompositeImplicitAutograd", "CompositeExplicitAutogradNonFunctional")
    missing = []
    for name in torch._C._dispatch_get_all_op_names():
        if not name.startswith("aten::") or not kernel(name, "CPU") or any(kernel(name, key) for key in composite):
            continue
        schema = torch._C._get_schema(*(name.split(".") if "." in name else (name, "")))
        view = any(r.alias_info is not None and not r.alias_info.is_write for r in schema.returns)
        if view and not kernel(name, "MPS"):
            missing.append(name)
    assert missing == ["aten::_nested_view_from_buffer"]  # nested tensors are not for this device


@pytest.mark.parametrize(
    "view",
    [
        lambda x: x.view(4, 3), lambda x: x.t(), lambda x: x[1:, ::2], lambda x: x.unfold(1, 2, 1),
        lambda x: x.as_strided((2, 2), (1, 2), 1), lambda x: x.reshape(-1), lambda x: x.view(torch.int32),
        lambda x: torch.view_as_complex(x.view(3, 2, 2)), lambda x: x.detach(), lambda x: x.expand(2, 3, 4),
    ],
)  # fmt: skip
def test_views_share_memory(view):
    x = torch.randn(3, 4, device="mps")
    seen = view(x)
    assert seen.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
    before = seen.cpu().clone()
    x.zero_()
    assert not seen.cpu().equal(before) and not seen.cpu().any()


def model() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 8), nn.LayerNorm(8),
        nn.GELU(), nn.Linear(8, 2),
    )  # fmt: skip


def close(actual: nn.Module, expected: nn.Module) -> None:
    for a, b in zip(actual.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(a.detach().cpu(), b.detach())


@pytest.mark.parametrize("optimiser", [torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.RMSprop])
def test_training(optimiser):
    on_cpu = model()
    moved = copy.deepcopy(on_cpu).to("mps")
    image, label = torch.randn(5, 3, 8, 8), torch.tensor([0, 1, 1, 0, 1])
    for module, device in ((on_cpu, "cpu"), (moved, "mps")):
        steps = optimiser(module.parameters(), lr=0.01)
        for _ in range(3):
            steps.zero_grad()
            F.cross_entropy(module(image.to(device)), label.to(device)).backward()
            steps.step()
    close(moved, on_cpu)


@pytest.mark.parametrize(
    "module, shape",
    [
        (nn.LSTM(8, 6), (3, 2, 8)), (nn.GRU(8, 6), (3, 2, 8)), (nn.MultiheadAttention(8, 2), (3, 2, 8)),
        (nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0), (3, 2, 8)), (nn.Conv1d(8, 4, 1), (2, 8, 5)),
        (nn.ConvTranspose2d(8, 4, 3), (2, 8, 5, 5)), (nn.GroupNorm(2, 8), (2, 8, 5)), (nn.PReLU(8), (2, 8)),
    ],
)  # fmt: skip
def test_module_and_its_gradient(module, shape):
    moved, x = copy.deepcopy(module).to("mps"), torch.randn(shape)
    for m, device in ((module, "cpu"), (moved, "mps")):
        input = x.to(device)
        result = m(input, input, input) if isinstance(m, nn.MultiheadAttention) else m(input)
        (result[0] if isinstance(result, tuple) else result).square().sum().backward()
    for a, b in zip(moved.parameters(), module.parameters(), strict=True):
        torch.testing.assert_close(a.grad.cpu(), b.grad)


def test_state_dict_and_deepcopy():
    source = model().to("mps")
    target = model().to("mps")
    target.load_state_dict(source.state_dict())
    copied = copy.deepcopy(source)
    close(target, source.cpu())
    assert all(p.device.type == "mps" for p in copied.parameters())
    close(copied, source.cpu())


def test_save_and_load():
    x = torch.randn(3, 4)
    kept = x.to("mps")
    file = io.BytesIO()
    torch.save({"whole": kept, "part": kept[1:]}, file)
    for location in (None, "mps", "cpu"):
        file.seek(0)
        loaded = torch.load(file, map_location=location)
        assert loaded["whole"].device.type == ("cpu" if location == "cpu" else "mps")
        assert loaded["whole"].cpu().equal(x) and loaded["part"].cpu().equal(x[1:])
        assert loaded["part"].untyped_storage().data_ptr() == loaded["whole"].untyped_storage().data_ptr()


def test_random_numbers():
    def draw(**kwargs):
        return [
            torch.rand(5, device="mps", **kwargs), torch.randn(5, device="mps", **kwargs),
            torch.randint(9, (5,), device="mps", **kwargs), torch.randperm(5, device="mps", **kwargs),
            torch.bernoulli(torch.full((5,), 0.5, device="mps"), **kwargs),
        ]  # fmt: skip

    torch.manual_seed(3)
    first = draw()
    torch.mps.manual_seed(3)
    cpu_state = torch.get_rng_state()
    second = draw()
    assert torch.get_rng_state().equal(cpu_state), "the CPU's generator is not touched"
    generator = torch.Generator("mps").manual_seed(3)
    third = draw(generator=generator)
    for a, b, c in zip(first, second, third, strict=True):
        assert a.equal(b) and a.equal(c)
    state = torch.mps.get_rng_state()
    dropped = F.dropout(torch.ones(64, device="mps"))
    torch.mps.set_rng_state(state)
    assert dropped.equal(F.dropout(torch.ones(64, device="mps"))) and 0 < dropped.count_nonzero() < 64


def test_vmap_and_grad():
    x = torch.randn(3, 4)
    per_row = torch.func.vmap(torch.func.grad(lambda row: row.sin().sum()))
    torch.testing.assert_close(per_row(x.to("mps")).cpu(), per_row(x))


def test_autocast():
    with torch.autocast("mps", dtype=torch.bfloat16):
        assert (torch.ones(2, 2, device="mps") @ torch.ones(2, 2, device="mps")).dtype == torch.bfloat16


def test_opcheck():
    @torch.library.custom_op("simulator_test::scale", mutates_args=())
    def scale(x: torch.Tensor, by: float) -> torch.Tensor:
        return x * by

    scale.register_fake(lambda x, by: torch.empty_like(x))
    torch.library.opcheck(scale, (torch.randn(3, device="mps"), 2.0))


def test_the_device_says_what_it_is():
    assert torch.backends.mps.is_available() and torch.backends.mps.is_built() and torch.mps.device_count() == 1
    assert torch.accelerator.current_accelerator().type == "mps"
    assert repr(torch.ones(2, device="mps")) == "tensor([1., 1.], device='mps:0')"
    before = torch.mps.current_allocated_memory()
    x = torch.empty(1000, device="mps")
    assert torch.mps.current_allocated_memory() == before + 4000
    del x
    assert torch.mps.current_allocated_memory() == before
    start, end = (torch.mps.Event(enable_timing=True) for _ in range(2))
    start.record()
    end.record()
    assert start.elapsed_time(end) >= 0 and end.query()


def test_fresh_memory_is_poisoned():
    assert torch.empty_strided((5,), (1,), device="mps").isnan().all()


def test_mistakes_are_errors():
    x = torch.ones(2, device="mps")
    with pytest.raises(TypeError, match="float64"):
        torch.ones(2, dtype=torch.float64, device="mps")
    with pytest.raises(TypeError, match="can't convert mps"):
        x.numpy()
    with pytest.raises(RuntimeError, match="same device"):
        x + torch.ones(2)


def test_an_op_without_a_kernel_for_mps_does_not_run_on_the_cpu():
    with torch.library._scoped_library("simulator_test_cpu_only", "DEF") as library:
        library.define("f(Tensor x) -> Tensor")
        library.impl("f", lambda x: x.clone(), "CPU")
        with pytest.raises(NotImplementedError, match="simulator_test_cpu_only::f"):
            torch.ops.simulator_test_cpu_only.f(torch.ones(2, device="mps"))


@pytest.mark.parametrize("access", ["ctypes.c_float.from_address(p).value", "ctypes.memset(p, 0, 4)"])
def test_the_host_cannot_use_a_data_pointer(access: str):
    program = f"""
import ctypes, simulator
simulator.activate()
import torch
p = torch.ones(4, device="mps").data_ptr()
print("there", flush=True)
{access}
"""
    environment = os.environ | {"PYTHONPATH": str(TESTS)}
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=TESTS.parent, env=environment, capture_output=True, text=True
    )
    assert done.stdout == "there\n", done.stderr
    assert done.returncode == -signal.SIGSEGV
