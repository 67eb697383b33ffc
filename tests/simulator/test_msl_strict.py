"""The strict pass: each rule has its own planted mistakes, each beside a neighbour that is right."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from simulator import msl
from simulator import test_msl_foreign as torch_kernels
from simulator import test_msl_mlx as mlx

ROOT = Path(__file__).parents[2]
KERNELS = ROOT / "csrc/mps/kernels"


def inside(*lines: str) -> str:
    """Statements of a kernel with a value of every kind."""
    return "\n".join(
        [
            "kernel void k(device float* x [[buffer(0)]], constant int* c [[buffer(1)]], device half* h [[buffer(2)]],",
            "              device bfloat* b [[buffer(3)]], device uint* u [[buffer(4)]], device long* l [[buffer(5)]],",
            "              constant uint& n [[buffer(6)]], uint i [[thread_position_in_grid]]) {",
            "  if (i < n) { x[i] = float(c[i]) + float(h[i]) + float(b[i]) + float(u[i]) + float(l[i]); }",
            *lines,
            "}",
        ]
    )


def parameters(text: str, body: str = "") -> str:
    return f"kernel void k({text}) {{ {body} }}"


# (rule, wrong, right). The two differ in one thing.
STATEMENTS = [
    # 1. Overload sets that are closed over their types; the gate of the simd functions.
    ("ambiguous call", "x[0] = max(x[0], 1);", "x[0] = max(x[0], 1.0f);"),
    ("ambiguous call", "u[0] = max(0, u[0]);", "u[0] = max(0u, u[0]);"),
    ("ambiguous call", "h[0] = half(min(h[0], x[0]));", "h[0] = half(min(float(h[0]), x[0]));"),
    ("ambiguous call", "x[0] = clamp(x[0], -1, 1);", "x[0] = clamp(x[0], -1.0f, 1.0f);"),
    ("ambiguous call", "l[0] = max(l[0], 1);", "l[0] = max(l[0], 1l);"),
    ("ambiguous call", "l[0] = select(l[0], 1, true);", "l[0] = select(l[0], 1l, true);"),
    ("ambiguous call", "x[0] = pow(h[0], x[0]);", "x[0] = pow(float(h[0]), x[0]);"),
    ("ambiguous call", "x[0] = fmod(x[0], h[0]);", "x[0] = fmod(x[0], float(h[0]));"),
    ("ambiguous call", "x[0] = mix(h[0], x[0], x[1]);", "x[0] = mix(float(h[0]), x[0], x[1]);"),
    ("ambiguous call", "u[0] = isnan(c[0]);", "u[0] = isnan(x[0]);"),
    ("ambiguous call", "x[0] = exp(c[0]);", "x[0] = exp(float(c[0]));"),
    ("simd type", "l[0] = simd_sum(l[0]);", "x[0] = simd_sum(x[0]);"),
    ("simd type", "b[0] = simd_max(b[0]);", "b[0] = bfloat(simd_max(float(b[0])));"),
    ("simd type", "u[0] = simd_shuffle(i > 3, 0);", "u[0] = simd_shuffle(i, 0);"),
    ("simd type", "l[0] = simd_shuffle_xor(l[0], 1);", "u[0] = simd_shuffle_xor(u[0], 1);"),
    ("simd type", "l[0] = quad_sum(l[0]);", "x[0] = quad_sum(x[0]);"),
    # 2. bfloat.
    ("bfloat", "bfloat v = x[0]; b[0] = v;", "bfloat v = bfloat(x[0]); b[0] = v;"),
    ("bfloat", "bfloat v = h[0]; b[0] = v;", "bfloat v = bfloat(h[0]); b[0] = v;"),
    ("bfloat", "bfloat v = abs(b[0]); b[0] = v;", "bfloat v = bfloat(abs(float(b[0]))); b[0] = v;"),
    ("bfloat", "b[0] = b[1] * 2.0;", "b[0] = bfloat(float(b[1]) * 2.0);"),
    ("bfloat", "b[0] = i > 3 ? b[1] : 0.0;", "b[0] = i > 3 ? b[1] : bfloat(0.0);"),
    ("bfloat", "b[0] += x[0];", "b[0] += bfloat(x[0]);"),
    ("bfloat", "x[0] = b[0] * h[0];", "x[0] = float(b[0]) * float(h[0]);"),
    # Other types.
    ("type", "double d = 1.0; x[0] = d;", "float d = 1.0; x[0] = d;"),
    ("type", "long long d = 1; l[0] = d;", "long d = 1; l[0] = d;"),
    ("type", "bfloat16_t d = 1; b[0] = d;", "bfloat d = 1; b[0] = d;"),
    ("type", "u[0] = as_type<uint>(l[0]);", "u[0] = as_type<uint>(x[0]);"),
    ("type", "simdgroup_matrix<int, 8, 8> m; (void)m;", "simdgroup_matrix<half, 8, 8> m; (void)m;"),
    ("vector component", "float4 v = 0; thread float* p = &v.x; x[0] = *p;", "float4 v = 0; x[0] = v.x;"),
    ("narrowing", "uint v{c[0]}; u[0] = v;", "uint v{uint(c[0])}; u[0] = v;"),
    ("narrowing", "half v{x[0]}; h[0] = v;", "half v{half(x[0])}; h[0] = v;"),
    # 3. Address spaces.
    ("address space", "float* p = x + 1; p[0] = 1;", "device float* p = x + 1; p[0] = 1;"),
    ("address space", "const auto& v = x[0]; x[1] = v;", "const device auto& v = x[0]; x[1] = v;"),
    ("address space", "uint v = *(uint*)(x + 1); u[0] = v;", "uint v = *(device uint*)(x + 1); u[0] = v;"),
    (
        "address space",
        "u[0] = *reinterpret_cast<const uint*>(x);",
        "u[0] = *reinterpret_cast<const device uint*>(x);",
    ),
    ("address space", "u[0] = *(threadgroup uint*)(x);", "u[0] = *(device uint*)(x);"),
    ("address space", "u[0] = *(thread uint*)(c);", "u[0] = *(constant uint*)(c);"),
    ("address space", "thread float* p = x; p[0] = 1;", "device float* p = x; p[0] = 1;"),
    ("address space", "device float v = 1; x[0] = v;", "float v = 1; x[0] = v;"),
    ("const", "const device float* p = x; p[0] = 1;", "device float* p = x; p[0] = 1;"),
    ("const", "c[0] = 1;", "u[0] = 1;"),
    ("const", "n = 1;", "i = 1;"),
    ("threadgroup variable", "threadgroup float t[4] = {}; x[0] = t[0];", "threadgroup float t[4]; x[0] = t[0];"),
    ("threadgroup variable", "threadgroup float t = 0; x[0] = t;", "threadgroup float t; x[0] = t;"),
    # 4. What the language does not have.
    ("goto", "goto end; x[0] = 1; end: x[0] = 2;", "x[0] = 2;"),
    ("exceptions", "throw 1;", "return;"),
    ("exceptions", "try { x[0] = 1; } catch (int) {}", "{ x[0] = 1; }"),
    ("allocation", "thread float* p = new float(); x[0] = *p;", "float p = 0; x[0] = p;"),
    ("lambda", "auto f = [](float v) { return v; }; x[0] = f(1);", "auto f = 1.0; x[0] = f;"),
    ("static local", "static int s = 0; u[0] = uint(s);", "int s = 0; u[0] = uint(s);"),
    ("asm", 'asm("nop");', "x[0] = 1;"),
    ("array size", "float a[0]; (void)a;", "float a[1]; (void)a;"),
    ("array size", "int s = c[0]; float a[s]; a[0] = 1; x[0] = a[0];", "float a[4]; a[0] = 1; x[0] = a[0];"),
    ("std", "x[0] = std::max(x[0], x[1]);", "x[0] = max(x[0], x[1]);"),
    ("storage", "register int r = 1; u[0] = uint(r);", "int r = 1; u[0] = uint(r);"),
    ("run-time types", "(void)typeid(x);", "(void)x;"),
    ("ascii", "x[0] = 1;  // 8 \u00d7 8", "x[0] = 1;  // 8 x 8"),
    ("function pointer", "float (*f)(float) = nullptr; (void)f;", "float f = 0; (void)f;"),
    # 5. Threadgroup memory.
    ("threadgroup memory", "threadgroup float t[9000]; x[0] = t[0];", "threadgroup float t[8192]; x[0] = t[0];"),
    # 6. Metal 3.1.
    ("language version", "if constexpr (sizeof(int) == 4) { x[0] = 1; }", "if (sizeof(int) == 4) { x[0] = 1; }"),
    ("language version", "int2 v = 1; float a[2] = {}; auto [p, q] = a; x[0] = p + q + v.x;", "x[0] = 1;"),
    # -Wall -Wextra.
    ("warning", "int unused = 3;", "int used = 3; u[0] = uint(used);"),
    ("warning", "if (c[0] < u[0]) { x[0] = 1; }", "if (c[0] < int(u[0])) { x[0] = 1; }"),
]
X = "device float* x [[buffer(0)]]"
DECLARATIONS = [
    ("address space", "float f(float* p) { return *p; }", "float f(device float* p) { return *p; }"),
    ("address space", "float f(const float& p) { return p; }", "float f(const thread float& p) { return p; }"),
    ("address space", "struct S { float* p; };", "struct S { device float* p; };"),
    ("address space", "float* f(device float* p) { return p; }", "device float* f(device float* p) { return p; }"),
    ("address space", "using P = float*;", "using P = device float*;"),
    ("address space", "float f(device float v) { return v; }", "float f(float v) { return v; }"),
    ("address space", "constexpr int N = 4;", "constant constexpr int N = 4;"),
    (
        "address space",
        "struct S { static constexpr int N = 4; };",
        "struct S { static constexpr constant int N = 4; };",
    ),
    (
        "address space",
        "struct S { int v; int f() { return v; } };\n" + parameters("device S* s [[buffer(0)]]", "s->v = s->f();"),
        "struct S { int v; int f() device { return v; } };\n"
        + parameters("device S* s [[buffer(0)]]", "s->v = s->f();"),
    ),
    (
        "overload",
        "void f(threadgroup float* p) { *p = 1; }\n" + parameters(X, "f(x);"),
        "void f(device float* p) { *p = 1; }\n" + parameters(X, "f(x);"),
    ),
    (
        "threadgroup variable",
        "void f() { threadgroup int t[4]; (void)t; }",
        "kernel void f() { threadgroup int t[4]; (void)t; }",
    ),
    ("virtual", "struct S { virtual void f(); };", "struct S { void f(); };"),
    ("inheritance", "struct A {}; struct S : A {};", "struct A {}; struct S { A a; };"),
    ("exceptions", "void f() noexcept {}", "void f() {}"),
    ("reserved name", "void main() {}", "void start() {}"),
    ("include", "#include <vector>", "#include <metal_math>"),
    (
        "recursion",
        "int f(int n) { return n ? f(n - 1) : 0; }",
        "int g(int n) { return n; }\nint f(int n) { return g(n); }",
    ),
    ("language version", "template <class T> concept C = true;", "template <class T> struct C {};"),
    ("kernel", parameters("device float* x [[buffer(31)]]"), parameters("device float* x [[buffer(30)]]")),
    ("kernel", parameters(f"{X}, device int* y [[buffer(0)]]"), parameters(f"{X}, device int* y [[buffer(1)]]")),
    ("kernel", parameters("uint v [[buffer(0)]]"), parameters("constant uint& v [[buffer(0)]]")),
    ("kernel", parameters(f"{X}, uint v"), parameters(f"{X}, constant uint& v")),
    ("kernel", parameters("threadgroup float* t [[buffer(0)]]"), parameters("threadgroup float* t [[threadgroup(0)]]")),
    (
        "kernel",
        parameters("const thread uint& i [[thread_position_in_grid]]"),
        parameters("uint i [[thread_position_in_grid]]"),
    ),
    ("kernel", parameters("int i [[thread_position_in_grid]]"), parameters("uint i [[thread_position_in_grid]]")),
    ("kernel", parameters("uint i [[thread_index_in_grid]]"), parameters("uint i [[thread_index_in_simdgroup]]")),
    ("kernel", "kernel int k() { return 1; }", "kernel void k() {}"),
    ("kernel", "struct S { kernel void k() {} };", "struct S {}; kernel void k() {}"),
    (
        "kernel",
        '[[host_name("a")]] kernel void f() {}\n[[host_name("a")]] kernel void g() {}',
        '[[host_name("a")]] kernel void f() {}\n[[host_name("b")]] kernel void g() {}',
    ),
]
CASES = [(rule, inside(wrong), inside(right)) for rule, wrong, right in STATEMENTS] + DECLARATIONS
PRELUDE = "#include <metal_stdlib>\nusing namespace metal;\n"


def ids(case):
    return re.sub(r"\W+", "_", case) if isinstance(case, str) and len(case) < 24 else ""


@pytest.mark.parametrize("rule, wrong, right", CASES, ids=ids)
def test_a_planted_mistake(rule, wrong, right):
    unused = "" if rule == "warning" else "warning"  # a mistake may leave something unused
    found = msl.strict(PRELUDE + wrong + "\n")
    assert {v.rule for v in found} - {unused} == {rule}, "\n".join(map(str, found))
    planted = [n for n, (a, b) in enumerate(zip(wrong.splitlines(), right.splitlines(), strict=False), 1) if a != b]
    assert {v.line - 2 for v in found} & {*planted, len(wrong.splitlines())}
    assert [str(v) for v in msl.strict(PRELUDE + right + "\n") if v.rule != unused] == []


def test_there_are_enough_mistakes():
    assert len(CASES) >= 60
    assert len({wrong for _, wrong, _ in CASES}) == len(CASES)


# -- kernels that Apple's compiler accepts -----------------------------------------------------------------------------

# README.md says why: of these, only torch and MLX write what our own kernels do not.
OURS_ONLY = {"ascii", "warning", "language version", "recursion"}
TORCH = {
    "decode": (("c10/metal/common.h", f"{torch_kernels.KERNELS}/DecodeAttention.h"), ""),
    "prefill": (("c10/metal/utils.h", f"{torch_kernels.KERNELS}/PrefillAttention.h"), ""),
    "sort": (torch_kernels.SORT, ""),
    "reductions": (("c10/metal/reduction_utils.h",), torch_kernels.REDUCTIONS),
    "elementwise": (("c10/metal/indexing.h",), torch_kernels.ELEMENTWISE.format(T="bfloat")),
    "random": (("c10/metal/random.h",), torch_kernels.RANDOM),
    "atomic": (("c10/metal/atomic.h",), "kernel void k() {}\n"),
    "special": (
        ("c10/metal/special_math.h",),
        "".join(
            torch_kernels.SPECIAL_BODY.format(name=name).replace("void special", f"void special_{name}")
            for name in torch_kernels.SPECIAL
        ),
    ),
}


@pytest.mark.parametrize("name", TORCH)
def test_torch_passes(name):
    headers, body = TORCH[name]
    includes = "".join(f"#include <{header}>\n" for header in headers)
    found = msl.strict(PRELUDE + includes + body, [torch_kernels.INCLUDE])
    assert [str(v) for v in found if v.rule not in OURS_ONLY] == []


MLX = [
    (("sdpa_vector.h",), "sdpa_vector<bfloat, 96>"),
    (("steel/attn/kernels/steel_attention.h",), "attention<bfloat, 32, 32, 64, 64, 4, 1, bfloat, float>"),
    (("softmax.h",), "softmax_looped<half, float>"),
    (("gated_delta_update.h",), "gated_delta_seq<bfloat, 64, 8, 1, 2, 64>"),
]
# Constructors of MLX's own complex numbers, by address space, and what is made of them; constants of bfloat; a pointer
# that a class with a conversion to int is added to.
MLX_NOT = re.compile(r"complex\.h|utils\.h:(70|34\d|35\d)|mma\.h:118")


@pytest.mark.skipif(mlx.INCLUDE is None, reason="MLX's kernels are not here: they come with mlx-metal for macOS")
@pytest.mark.parametrize("headers, function", MLX, ids=ids)
def test_mlx_passes(headers, function):
    includes = "".join(f'#include "{mlx.KERNELS}/{header}"\n' for header in ("utils.h", *headers))
    source = f'{includes}template [[host_name("k")]] [[kernel]] decltype({function}) {function};\n'
    found = [str(v) for v in msl.strict(source, [mlx.INCLUDE]) if v.rule not in OURS_ONLY]
    assert [v for v in found if not MLX_NOT.search(v)] == []


# -- our own -----------------------------------------------------------------------------------------------------------


def libraries() -> list[Path]:
    return sorted(KERNELS.glob("*.metal"))


def test_there_are_libraries():
    assert libraries()


@pytest.mark.parametrize("path", libraries(), ids=lambda path: path.stem)
def test_our_kernels_pass(path):
    assert [str(v) for v in msl.strict(path, [KERNELS])] == []


# -- what host and shader share ------------------------------------------------------------------------------------------

FIELD = re.compile(r"^\s*(?:[\w:]+\s+)+(\w+(?:\[\w+\])?(?:\s*,\s*\w+(?:\[\w+\])?)*)(?:\s*=[^;]*)?;", re.MULTILINE)


def structures() -> list[tuple[Path, str, list[str]]]:
    found = []
    for header in sorted(KERNELS.glob("*_params.h")):
        text = re.sub(r"//.*", "", header.read_text())
        for name, body in re.findall(r"struct (\w+)\s*\{(.*?)\n\s*\}", text, re.DOTALL):
            fields = [re.sub(r"\[.*", "", f.split("=")[0]).strip() for g in FIELD.findall(body) for f in g.split(",")]
            found.append((header, name, fields))
    return found


@pytest.mark.parametrize("header, name, fields", structures(), ids=ids)
def test_layout_is_the_hosts(header, name, fields, tmp_path):
    """Sizes and offsets by the host's compiler and in the shader; no byte between fields."""
    import torch

    assert fields
    terms = [f"sizeof({name})"]
    terms += [f"{what}" for f in fields for what in (f"__builtin_offsetof({name}, {f})", f"sizeof((({name}*)0)->{f})")]
    scope = re.search(r"namespace ([\w:]+)", header.read_text())
    using = f"using namespace {scope[1]};\n" if scope else ""
    host = tmp_path / "layout.cpp"
    prints = "".join(f'std::printf("%zu ", {term});' for term in terms)
    host.write_text(f'#include <cstdio>\n#include <cstddef>\n#include "{header}"\n{using}int main() {{ {prints} }}\n')
    compiler = shutil.which("c++") or shutil.which("g++")
    assert compiler
    subprocess.run([compiler, "-std=c++20", str(host), "-o", str(tmp_path / "layout")], check=True)
    on_host = [int(v) for v in subprocess.check_output([tmp_path / "layout"], text=True).split()]
    stores = "".join(f"out[{i}] = int({term});" for i, term in enumerate(terms))
    shader = (
        f'{PRELUDE}#include "{header.name}"\n{using}kernel void layout(device int* out [[buffer(0)]]) {{ {stores} }}\n'
    )
    out = torch.zeros(len(terms), dtype=torch.int32)
    msl.compile(shader, [KERNELS]).kernel("layout").run({0: out}, groups=(1, 1, 1), group=(1, 1, 1))
    assert out.tolist() == on_host
    end = 0
    for offset, size in zip(on_host[1::2], on_host[2::2], strict=True):
        assert offset == end, "a gap before a field"
        end = offset + size
    assert end == on_host[0] <= 4096


def test_there_are_shared_structures():
    assert structures()
