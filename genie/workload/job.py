"""`Workload`: a job whose ranks are generated one at a time, and written as a trace set."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
from pathlib import Path

from genie.errors import InputError
from genie.trace import Builder
from genie.workload.cost import Roofline
from genie.workload.layout import Group, Layout
from genie.workload.part import Part
from genie.workload.rules import validate
from genie.workload.spec import Spec
from genie.workload.template import Template, shares_nodes


class Workload:
    """A job that has been checked; nothing is generated before it is asked for.

    Attributes:
        spec: What it is.
        layout: Its ranks and groups.
        roofline: How long its operators take.
    """

    def __init__(self, spec: Spec, replicas: int = 0) -> None:
        """Check the spec.

        Args:
            spec: The whole job.
            replicas: Generate only the first so many data-parallel replicas (`part.Part`); 0 = all.

        Raises:
            InputError: The spec breaks a rule, or has no such replicas.
        """
        validate(spec)
        self.spec = spec
        self.layout = Layout(spec)
        self.part: Part | None = None
        if replicas:
            if spec.shape.family != "transformer":
                raise InputError(f"replicas: a {spec.shape.family} is generated as a whole")
            if not 1 <= replicas <= spec.parallelism.dp:
                raise InputError(f"replicas must be 1 to dp ({spec.parallelism.dp}): {replicas}")
            if replicas < spec.parallelism.dp:
                self.part = Part(self.layout, replicas)
        self.roofline = Roofline(spec.hardware, spec.precision.compute, spec.precision.scaling)
        self._templates: dict[int, Template] = {}

    @property
    def world_size(self) -> int:
        """Ranks that are generated."""
        return self.layout.world if self.part is None else len(self.part.kept)

    def groups(self) -> dict[str, tuple[int, ...]]:
        """Return every process group: name to global ranks in communicator order."""
        groups = self.layout.all_groups()
        if self.part is None:
            return groups
        left = {name: self.part.members(Group(name, members)) for name, members in groups.items()}
        return {name: members for name, members in left.items() if len(members) > 1}

    def rank(self, rank: int) -> Builder:
        """Return the nodes of one rank; costs what that rank's nodes cost.

        Raises:
            InputError: There is no such rank.
        """
        if not 0 <= rank < self.world_size:
            raise InputError(f"no rank {rank} in a job of {self.world_size} ranks")
        if self.spec.shape.family == "dlrm":
            from genie.workload.dlrm import DlrmRank

            return DlrmRank(self.spec, self.roofline, rank).run()
        if self.spec.shape.family == "convnet":
            from genie.workload.convnet import ConvnetRank

            return ConvnetRank(self.spec, self.roofline).run()
        from genie.workload.transformer import TransformerRank

        if self.part is not None:
            rank = self.part.kept[rank]
        return TransformerRank(self.spec, self.layout, self.roofline, rank, self.part).run()

    def content(self, rank: int) -> bytes:
        """Return the content of a rank's `.et` file; cheaper than `rank` for ranks alike."""
        if not shares_nodes(self.spec):
            return self.rank(rank).to_bytes()
        whole = rank if self.part is None else self.part.kept[rank]
        stage = self.layout.coordinates(whole)["pp"]
        template = self._templates.get(stage)
        if template is None:
            template = Template(self.rank(rank), self.layout, whole, self.part)
            self._templates[stage] = template
        return template.to_bytes(whole)

    def write(
        self,
        folder: str | os.PathLike[str],
        *,
        ranks: Iterable[int] | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> Path:
        """Write `<name>.<rank>.et` of every rank and `<name>.groups.json`; return the folder.

        Args:
            folder: Where; made if it is not there.
            ranks: Only these ranks.
            progress: Called with (ranks written, ranks in all).
        """
        target = Path(folder)
        target.mkdir(parents=True, exist_ok=True)
        wanted = range(self.world_size) if ranks is None else list(ranks)
        for done, rank in enumerate(wanted, 1):
            content = self.content(rank)
            (target / f"{self.spec.name}.{rank}.et").write_bytes(content)
            if progress:
                progress(done, len(wanted))
        groups = {name: list(members) for name, members in self.groups().items()}
        if groups:
            text = json.dumps(groups, separators=(",", ":")) + "\n"
            (target / f"{self.spec.name}.groups.json").write_text(text)
        return target
