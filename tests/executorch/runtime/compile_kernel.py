"""python compile_kernel.py <Metal source> <kernel>: compiles it for the simulator and prints the path of the code."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from simulator import msl


def main(source: str, kernel: str) -> None:
    print(msl.compile(Path(source).read_text()).kernel(kernel).path)


if __name__ == "__main__":
    main(*sys.argv[1:])
