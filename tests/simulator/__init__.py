"""Metal on Linux, for the tests: `simulator.msl` runs the shading language on the CPU."""
