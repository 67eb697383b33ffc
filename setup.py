"""Builds the extension against the torch that is installed. Metadata is in pyproject.toml."""

import glob
import importlib.util
import sys
import sysconfig
from pathlib import Path

from setuptools import setup

ROOT = Path(__file__).parent
MACOS = sys.platform == "darwin"
WARNINGS = ["-Wall", "-Wextra", "-Wno-unused-parameter"]  # torch's headers leave parameters unused
VERSION = (ROOT / "version.txt").read_text().strip()

missing = [name for name in ("torch", "ninja", "pybind11") if importlib.util.find_spec(name) is None]
if missing:
    sys.exit(
        f"torch_metal_ops: building needs {', '.join(missing)} in the environment that builds it, got none there. "
        "Install torch, setuptools, wheel, ninja and pybind11 first, then: pip install --no-build-isolation ."
    )

import pybind11  # noqa: E402
import torch  # noqa: E402
from torch.utils.cpp_extension import BuildExtension, CppExtension  # noqa: E402

sys.path.insert(0, str(ROOT / "tools"))
import embed_metal  # noqa: E402

SHADERS = "build/shaders.cpp"
EXECUTORCH = glob.glob("csrc/executorch/**/*.cpp", root_dir=ROOT, recursive=True)  # a library of its own, without torch


def sources() -> list[str]:
    found = sorted(set(glob.glob("csrc/**/*.cpp", root_dir=ROOT, recursive=True)) - set(EXECUTORCH))
    # Elsewhere the Metal half is built by the tests, for their simulated device.
    return [*found, *sorted(glob.glob("csrc/mps/*.mm", root_dir=ROOT)), SHADERS] if MACOS else found


def openmp() -> list[str]:
    # at::parallel_for is inline and uses the compiler's OpenMP; its runtime is the one that torch has loaded.
    return ["-fopenmp"] if sys.platform.startswith("linux") else []


def link_args() -> list[str]:
    # The name under which the dynamic loader knows the library, so that an AOTInductor package that lists it finds
    # the one that is already loaded.
    if MACOS:
        # Without an export list: there, an exception class is the same in two libraries only if both export it.
        return ["-Wl,-install_name,@rpath/libtorch_metal_ops.dylib", "-Wl,-rpath,@loader_path/../torch/lib"]
    # The export list takes away the weak symbols of torch's headers, which RTLD_GLOBAL would offer to everyone.
    return ["-Wl,-soname,libtorch_metal_ops.so", f"-Wl,--version-script={ROOT / 'csrc' / 'exports.map'}"]


class Build(BuildExtension):
    """Also writes down which torch the extension was built with, to be compared before it is loaded."""

    def finalize_options(self) -> None:
        super().finalize_options()
        # An editable install would compile everything again, in a temporary folder; here ninja sees what is done.
        self.build_temp = str(ROOT / "build" / f"temp.{sysconfig.get_platform()}-{sys.implementation.cache_tag}")

    def build_extensions(self) -> None:
        if MACOS:
            # Python makes bundles of extensions, which have no install name and which nothing can be linked with.
            for name in ("linker_so", "linker_so_cxx"):
                command = getattr(self.compiler, name, [])
                setattr(self.compiler, name, ["-dynamiclib" if part == "-bundle" else part for part in command])
        super().build_extensions()

    def run(self) -> None:
        if MACOS:
            embed_metal.write(ROOT / SHADERS, metallib=embed_metal.choose_metallib())
        super().run()
        text = f'"""Written by setup.py."""\n\nVERSION = "{VERSION}"\nBUILT_WITH_TORCH = "{torch.__version__}"\n'
        (Path(self.get_ext_fullpath("torch_metal_ops._C")).parent / "_build.py").write_text(text)


setup(
    version=VERSION,
    ext_modules=[
        CppExtension(
            "torch_metal_ops._C",
            sources(),
            include_dirs=[pybind11.get_include()],
            extra_compile_args=["-O3", "-g0", "-std=c++20", "-fvisibility=hidden", *WARNINGS, *openmp()],
            extra_link_args=link_args(),
        )
    ],
    cmdclass={"build_ext": Build},
)
