"""python compile_kernel.py <Metal source> <kernel>: compiles it for the simulator and prints the path of the code."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from simulator import msl

print(msl.compile(Path(sys.argv[1]).read_text()).kernel(sys.argv[2]).path)
