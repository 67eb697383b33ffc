"""This project's Metal half, csrc/mps, as macOS compiles it, for the simulated device."""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path

from simulator.mps.build import build
from simulator.msl.cache import stored

ROOT = Path(__file__).resolve().parents[3]
CSRC = ROOT / "csrc"


def load() -> None:
    """Registers the Metal kernels of the ops with torch."""
    import torch_metal_ops  # noqa: F401, defines the ops

    sources = [*sorted((CSRC / "mps").glob("*.mm")), *sorted((CSRC / "core").glob("*.cpp")), _shaders()]
    ctypes.CDLL(str(build("ops", sources, ["-fvisibility=hidden"])))


def _shaders() -> Path:
    sys.path.insert(0, str(ROOT / "tools"))
    try:
        import embed_metal
    finally:
        sys.path.pop(0)
    return _stored("shaders.cpp", embed_metal.definitions(metallib=False))


def _stored(name: str, text: str) -> Path:
    return stored(name, text, make=lambda path: path.write_text(text))
