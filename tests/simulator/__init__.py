"""Metal on Linux, for the tests: `simulator.msl` runs the shading language on the CPU, `simulator.mps` is a device."""


def activate(check: bool = False) -> None:
    """Makes `torch.device("mps")` work; see `simulator.mps.activate`."""
    from simulator import mps

    mps.activate(check)
