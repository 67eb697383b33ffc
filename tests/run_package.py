"""Runs an AOTInductor package in a process of its own, as a deployment does:

    python run_package.py PACKAGE CALLS RESULTS [--without-import] [--mps]

CALLS holds a list of argument tuples, RESULTS gets for each call its result and the arguments after it, or the error.
"""

import sys

import torch


def main() -> None:
    package, calls, results = sys.argv[1:4]
    if "--mps" in sys.argv and sys.platform.startswith("linux"):
        import simulator

        simulator.activate()
    if "--without-import" not in sys.argv:
        import torch_metal_ops  # noqa: F401, brings the symbols that the package calls

    run = torch._inductor.aoti_load_package(package)
    done = []
    for arguments in torch.load(calls):
        try:
            done.append((run(*arguments), arguments))
        except RuntimeError as error:
            done.append(str(error))
    torch.save(done, results)


if __name__ == "__main__":
    main()
