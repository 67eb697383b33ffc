"""Grids, threadgroups, memory and entry points, against values worked out by hand."""

import struct
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from simulator import msl
from simulator.msl.toolchain import Toolchain

PREAMBLE = "#include <metal_stdlib>\nusing namespace metal;\n"


def kernel(source: str, name: str, **kwargs) -> msl.Kernel:
    return msl.compile(PREAMBLE + source).kernel(name, **kwargs)


def ints(*values: int) -> bytes:
    return struct.pack(f"{len(values)}i", *values)


def test_tensors_are_bound_in_place_and_may_be_views():
    double = kernel("kernel void twice(device float* x, uint i [[thread_position_in_grid]]) { x[i] *= 2; }", "twice")
    whole = torch.arange(6.0)
    double.run({0: whole[2:5]}, threads=(3, 1, 1), group=(32, 1, 1))
    assert whole.tolist() == [0, 1, 4, 6, 8, 5]


def test_a_ragged_grid_has_smaller_groups_at_its_edges():
    sizes = kernel(
        """
        kernel void sizes(device uint2* out, uint2 p [[thread_position_in_grid]], uint2 n [[threads_per_grid]],
                          ushort2 size [[threads_per_threadgroup]], ushort2 full [[dispatch_threads_per_threadgroup]],
                          uint2 groups [[threadgroups_per_grid]]) {
          out[p.y * n.x + p.x] = uint2(size.x * 100 + size.y, full.x * 1000 + full.y * 100 + groups.x * 10 + groups.y);
        }""",
        "sizes",
    )
    out = torch.zeros(3, 5, 2, dtype=torch.int32)
    run = sizes.run({0: out}, threads=(5, 3, 1), group=(4, 2, 1))
    assert run.cost.threads == 15
    assert out[..., 0].tolist() == [[402] * 4 + [102]] * 2 + [[401] * 4 + [101]]
    assert (out[..., 1] == 4222).all()


def test_positions_of_a_thread():
    where = kernel(
        """
        kernel void where(device uint* out, uint3 p [[thread_position_in_grid]], uint3 l [[thread_position_in_threadgroup]],
                          uint3 g [[threadgroup_position_in_grid]], uint flat [[thread_index_in_threadgroup]],
                          uint lane [[thread_index_in_simdgroup]], uint sg [[simdgroup_index_in_threadgroup]],
                          uint sgs [[simdgroups_per_threadgroup]], uint width [[threads_per_simdgroup]]) {
          if (p.x == 9 && p.y == 3 && p.z == 1) {
            uint values[] = {l.x, l.y, l.z, g.x, g.y, g.z, flat, lane, sg, sgs, width};
            for (int i = 0; i < 11; i++) out[i] = values[i];
          }
        }""",
        "where",
    )
    out = torch.zeros(11, dtype=torch.int32)
    where.run({0: out}, groups=(2, 2, 2), group=(8, 2, 3))
    # Local (1, 1, 1) in group (1, 1, 0): flat 1 + 8 * (1 + 2 * 1) = 25.
    assert out.tolist() == [1, 1, 1, 1, 1, 0, 25, 25, 0, 2, 32]


def test_threadgroup_memory_and_barriers():
    reverse = kernel(
        """
        kernel void reverse(device const int* in, device int* out, constant int& bias,
                            threadgroup int* dynamic [[threadgroup(0)]], uint i [[thread_position_in_threadgroup]],
                            uint g [[threadgroup_position_in_grid]], uint n [[threads_per_threadgroup]]) {
          threadgroup int fixed[64], total[1];
          fixed[i] = in[g * n + i];
          dynamic[n - 1 - i] = fixed[i];
          if (i == 0) total[0] = bias;
          threadgroup_barrier(mem_flags::mem_threadgroup);
          out[g * n + i] = dynamic[i] + total[0];
        }""",
        "reverse",
    )
    values = torch.arange(120, dtype=torch.int32)
    out = torch.zeros_like(values)
    run = reverse.run(
        {0: values, 1: out, 2: ints(1000)}, groups=(2, 1, 1), group=(60, 1, 1), threadgroup_memory={0: 240}
    )
    assert torch.equal(out, 1000 + torch.cat([values[:60].flip(0), values[60:].flip(0)]))
    assert run.cost.threadgroup_barriers == 2
    assert run.findings == ()


def test_instantiations_and_attributes():
    library = msl.compile(
        PREAMBLE
        + """
        template <typename T, int N>
        [[kernel, max_total_threads_per_threadgroup(N * 32)]] void fill(device T* out [[buffer(3)]],
                                                                       uint i [[thread_position_in_grid]]) {
          out[i] = T(N + sizeof(T));
        }
        namespace inner { template <typename T> struct box { T value; }; kernel void plain(device int* out) { *out = 7; } }
        using fill_byte = decltype(fill<uchar, 5>);
        template [[host_name("fill_" "i" "2")]] [[kernel]] decltype(fill<int, 2>) fill<int, 2>;
        template [[host_name("fill_h3")]] kernel void fill<half, (3 > 2) ? 3 : 2>(device half*, uint);
        template [[host_name("fill_b5")]] kernel fill_byte fill<uchar, 5>;
        [[host_name("renamed")]] kernel void original(device int* a, device int* b [[buffer(0)]]) { *a = 1; *b = 2; }
        """
    )
    assert library.names == ("plain", "fill_i2", "fill_h3", "fill_b5", "renamed")
    for name, dtype, value in [("fill_i2", torch.int32, 6), ("fill_h3", torch.half, 5), ("fill_b5", torch.uint8, 6)]:
        out = torch.zeros(4, dtype=dtype)
        library.kernel(name).run({3: out}, threads=(4, 1, 1), group=(4, 1, 1))
        assert out.tolist() == [value] * 4
    first, second = torch.zeros(1, dtype=torch.int32), torch.zeros(1, dtype=torch.int32)
    library.kernel("renamed").run({0: first, 1: second}, threads=(1, 1, 1), group=(1, 1, 1))
    assert (first.item(), second.item()) == (2, 1)  # the parameter without an index takes the free one


def test_function_constants():
    source = """
    constant bool scaled [[function_constant(3)]];
    constant int factor [[function_constant(4)]];
    constant int exponent = is_function_constant_defined(factor) ? factor : 10;
    kernel void f(device int* out, device const int* scale [[buffer(1), function_constant(scaled)]]) {
      out[0] = scaled ? exponent * scale[0] : exponent;
    }"""
    out, scale = torch.zeros(1, dtype=torch.int32), torch.tensor([5], dtype=torch.int32)
    kernel(source, "f").run({0: out}, threads=(1, 1, 1), group=(1, 1, 1))
    assert out.item() == 10
    kernel(source, "f", constants={3: True, 4: 6}).run({0: out, 1: scale}, threads=(1, 1, 1), group=(1, 1, 1))
    assert out.item() == 30
    with pytest.raises(KeyError, match="no function constant 9"):
        kernel(source, "f", constants={9: 1})


def test_address_spaces_of_one_overload_set():
    chosen = kernel(
        """
        inline float first(device const float* p) { return p[0]; }
        inline float first(threadgroup const float* q) { return q[0]; }
        inline float first(thread const float* p) { return p[0]; }
        struct Pair {
          float a;
          float sum() const device { return a + 1; }
          float sum() const threadgroup { return a + 1; }
        };
        struct Box {
          float value;
          Box(float v) thread : value(v) {}
          Box(float v) threadgroup : value(v) {}
          Box(float v) constant : value(v) {}
        };
        constant Box box = 0.5;
        template <typename P> struct is_pointer_to_float { static constexpr constant bool value = false; };
        template <> struct is_pointer_to_float<device float*> { static constexpr constant bool value = true; };
        template <> struct is_pointer_to_float<threadgroup float*> { static constexpr constant bool value = true; };
        constant float table[3] = {1, 2, 4};
        kernel void f(device float* out) {
          threadgroup float group[2];
          thread float own[2] = {3, 4};
          group[0] = own[1];
          device Pair* pair = (device Pair*)out;
          out[1] = first(out) + first(group) + first(own) + pair->sum() + table[2] + box.value;
          out[2] = is_pointer_to_float<threadgroup float*>::value;
        }""",
        "f",
    )
    out = torch.tensor([10.0, 0, 0])
    chosen.run({0: out}, threads=(1, 1, 1), group=(1, 1, 1))
    assert out.tolist() == [10, 10 + 4 + 3 + 11 + 4 + 0.5, 1]


def test_an_unsuffixed_literal_is_a_float():
    literal = kernel("kernel void f(device uint* out) { out[0] = sizeof(1.0); out[1] = 0.1 == 0.1f; }", "f")
    out = torch.zeros(2, dtype=torch.int32)
    literal.run({0: out}, threads=(1, 1, 1), group=(1, 1, 1))
    assert out.tolist() == [4, 1]


def test_the_order_of_threads_can_be_shuffled():
    order = kernel(
        """
        kernel void order(device int* out, device atomic_int* next, uint i [[thread_position_in_grid]]) {
          out[atomic_fetch_add_explicit(next, 1, memory_order_relaxed)] = i;
        }""",
        "order",
    )
    outs = []
    for seed in (0, 1, 1, 2):
        out, count = torch.zeros(128, dtype=torch.int32), torch.zeros(1, dtype=torch.int32)
        order.run({0: out, 1: count}, threads=(128, 1, 1), group=(32, 1, 1), seed=seed)
        assert out.sort().values.tolist() == list(range(128))
        outs.append(out.tolist())
    assert outs[0] == list(range(128))
    assert outs[1] == outs[2] != outs[0]


def test_only_the_kernel_that_is_asked_for_is_compiled():
    library = msl.compile(
        PREAMBLE
        + """
        template <typename T> kernel void f(device int* out) { *out = T::value; }
        struct Has { static constexpr constant int value = 3; };
        template [[host_name("good")]] kernel void f<Has>(device int*);
        template [[host_name("bad")]] kernel void f<int>(device int*);
        """
    )
    out = torch.zeros(1, dtype=torch.int32)
    library.kernel("good").run({0: out}, threads=(1, 1, 1), group=(1, 1, 1))
    assert out.item() == 3
    with pytest.raises(msl.CompileError, match="cannot be used prior to '::'"):
        library.kernel("bad")


def test_a_compiled_kernel_is_kept(monkeypatch):
    source = "kernel void f(device int* out) {{ *out = {}; }}"
    kernel(source.format(1), "f")

    def compile_again(*_):
        raise RuntimeError("compiled again")

    monkeypatch.setattr(Toolchain, "compile", compile_again)
    kernel(source.format(1), "f")
    with pytest.raises(RuntimeError, match="compiled again"):
        kernel(source.format("1 + 1"), "f")


def test_several_threads_may_launch_at_once():
    add = kernel(
        """
        kernel void add(device int* x, threadgroup int* t [[threadgroup(0)]], uint i [[thread_position_in_grid]]) {
          t[i] = x[i];
          threadgroup_barrier(mem_flags::mem_threadgroup);
          x[i] = t[i ^ 1] + 1;
        }""",
        "add",
    )

    def work(start: int) -> torch.Tensor:
        x = torch.arange(start, start + 64, dtype=torch.int32)
        for _ in range(100):
            add.run({0: x}, threads=(64, 1, 1), group=(64, 1, 1), threadgroup_memory={0: 256})
        return x

    with ThreadPoolExecutor(4) as pool:
        for start, x in zip(range(8), pool.map(work, range(8)), strict=True):
            assert x.tolist() == list(range(start + 100, start + 164))


def test_included_files_are_found_and_errors_name_their_lines(tmp_path):
    (tmp_path / "helper.h").write_text("inline int answer() { return 42; }\n")
    path = tmp_path / "k.metal"
    path.write_text('#include <metal_stdlib>\n#include "helper.h"\nkernel void f(device int* o) { o[0] = answer(); }\n')
    out = torch.zeros(1, dtype=torch.int32)
    msl.compile(path).kernel("f").run({0: out}, threads=(1, 1, 1), group=(1, 1, 1))
    assert out.item() == 42

    path.write_text("#include <metal_stdlib>\n\nkernel void f(device int* o) { o[0] = nothing(); }\n")
    with pytest.raises(msl.CompileError, match=rf"{path}:3:.*nothing"):
        msl.compile(path).kernel("f")
    with pytest.raises(msl.CompileError, match=r"absent\.h"):
        msl.compile('#include "absent.h"\n')
    with pytest.raises(msl.CompileError, match="thread_position_in_nowhere"):
        kernel("kernel void f(uint i [[thread_position_in_nowhere]]) {}", "f")


@pytest.mark.parametrize(
    "call, message",
    [
        (dict(threads=(1, 1, 1), groups=(1, 1, 1), group=(1, 1, 1)), "give either threads or groups"),
        (
            dict(threads=(0, 1, 1), group=(1, 1, 1)),
            r"the grid must have three dimensions of at least 1, got \(0, 1, 1\)",
        ),
        (dict(threads=(1, 1, 1), group=(64, 32, 1)), r"a threadgroup has at most 1024 threads, got \(64, 32, 1\)"),
        (dict(threads=(1, 1, 1), group=(1, 1, 1)), r"threadgroup 0 must be bound, got \[\]"),
        (dict(threads=(1, 1, 1), group=(1, 1, 1), unbound=True), r"buffer 2 must be bound, got \[\]"),
    ],
)
def test_illegal_launches(call, message):
    f = kernel("kernel void f(device int* a [[buffer(2)]], threadgroup int* t [[threadgroup(0)]]) {}", "f")
    arguments = {} if call.pop("unbound", False) else {2: torch.zeros(1, dtype=torch.int32)}
    with pytest.raises(ValueError, match=f"^f: {message}"):
        f.run(arguments, **call)


def test_unknown_kernels_are_named():
    with pytest.raises(KeyError, match="no kernel named g; the library has f"):
        kernel("kernel void f(device int* a) {}", "g")
