"""Which testbed a specification means."""

from __future__ import annotations

from genie.errors import InputError
from genie.experiment.spec import Testbed as TestbedSpec
from genie.experiment.testbeds.base import Testbed


def make_testbed(spec: TestbedSpec) -> Testbed:
    """Return the testbed, not built yet.

    Raises:
        InputError: There is no such testbed.
        FabricError: It cannot be made here; says what is missing.
    """
    kind = spec.network.partition(":")[0]
    if kind == "commands":
        from genie.experiment.testbeds.commands import Commands

        return Commands(spec)
    if spec.endpoints or spec.setup or spec.teardown:
        raise InputError(f'testbed {spec.network!r} makes its own hosts: "commands" takes yours')
    if kind in ("star", "leaf-spine"):
        from genie.experiment.testbeds.namespaces import Namespaces

        return Namespaces(spec.network, spec.mtu)
    if kind == "rxe":
        from genie.experiment.testbeds.rxe import SoftRoce

        return SoftRoce(spec.network, spec.mtu)
    raise InputError(
        f"no testbed {spec.network!r}: expected star:HOSTS, leaf-spine:LEAVESxSPINESxHOSTS, "
        "rxe:DEVICES or commands"
    )
