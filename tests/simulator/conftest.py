import pytest

from simulator.msl import Unavailable
from simulator.msl.toolchain import toolchain


@pytest.fixture(autouse=True, scope="session")
def compiler() -> None:
    try:
        toolchain()
    except Unavailable as reason:
        pytest.skip(str(reason))
