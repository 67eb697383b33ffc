"""Check mode finds faults in the project's own kernels: planted ones all, and no other."""

import functools
import importlib
import pkgutil
from collections.abc import Callable

import pytest

from cases import Call
from simulator import mps, mutations
from simulator.mps import Launch
from simulator.msl import Fault
from simulator.mutations import Mutation

TABLES: dict[str, list[Mutation]] = {
    module.name: importlib.import_module(f"{mutations.__name__}.{module.name}").MUTATIONS
    for module in pkgutil.iter_modules(mutations.__path__)
}
MUTATIONS = [mutation for table in TABLES.values() for mutation in table]


@functools.cache
def launches(call: Callable[[], Call]) -> list[Launch]:
    with mps.record() as recorded:
        call().copy("mps").run()
    return recorded


def launch(call: Callable[[], Call], kernel: str) -> Launch:
    names = [each.kernel for each in launches(call)]
    assert kernel in names, f"the call launches {names}"
    return launches(call)[names.index(kernel)]


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("call, kernel", dict.fromkeys((m.call, m.kernel) for m in MUTATIONS))
def test_no_fault_where_none_was_planted(call, kernel, seed):
    run = launch(call, kernel).replay(seed=seed)
    assert not run.findings, "\n".join(map(str, run.findings))


@pytest.mark.parametrize("mutation", MUTATIONS, ids=str)
def test_a_planted_fault_is_found(mutation):
    recorded = launch(mutation.call, mutation.kernel)
    run = recorded.replay(source=mutation.plant(recorded.source))
    assert mutation.fault in [finding.fault for finding in run.findings], "\n".join(map(str, run.findings))


def test_many_faults_are_planted():
    assert len(MUTATIONS) >= 30 and all(len(table) >= 10 for table in TABLES.values())
    assert {mutation.fault for mutation in MUTATIONS} >= set(Fault) - {Fault.INACTIVE_LANE}
