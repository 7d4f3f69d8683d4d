"""A defect: a cause and its effects, as plain data that JSON can carry."""

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from lockstep.properties.defects.cause import Cause
from lockstep.properties.defects.needs import are_alternatives


@dataclass(frozen=True)
class Defect:
    """One defect of an implementation.

    ``causes``: mostly one; several if programs with little in common fail in the same manner. ``faces``: its effects,
    each with its smallest program, as `properties.reports.failure.filed_failure` makes them. ``number`` and ``law``:
    the law that the first face breaks. ``met_in``: the law under which it was found. ``claim``: the claim that covers
    exactly its cause. ``manner``: how its programs fail, which distinguishes defects. ``told``: the file of its report.
    """

    id: str
    implementation: str
    causes: tuple[Cause, ...]
    number: str
    law: str
    met_in: str
    world: str
    manner: str = ""
    claim: str = ""
    told: str = ""
    faces: tuple[Mapping[str, Any], ...] = field(default=(), repr=False)

    @property
    def stops(self) -> bool:
        """True if the plainest program shows it under every law, so that nothing else can be judged."""
        return any(not cause.needs and not cause.only for cause in self.causes)

    @property
    def verdict(self) -> str:
        """The verdicts of all its faces."""
        return " and ".join(dict.fromkeys(str(face["verdict"]) for face in self.faces))

    def within(self, drawn: Any, family: str) -> bool:
        """True if the law of this family is about to run a program or call that contains one of the causes."""
        return any(cause.within(drawn, family) for cause in self.causes)

    def words(self) -> str:
        """The needs of programs that show it, in words."""
        return ", or ".join(dict.fromkeys(cause.words() for cause in self.causes))

    @property
    def filed(self) -> dict[str, Any]:
        """Its data for machines, see `properties.verdict`."""
        first: Mapping[str, Any] = self.faces[0] if self.faces else {}
        return {
            "id": self.id,
            "implementation": self.implementation,
            "number": self.number,
            "law": self.law,
            "met_in": self.met_in,
            "world": self.world,
            "verdict": self.verdict,
            "cause": self.words(),
            "needs": sorted(self.causes[0].needs),
            "claim": self.claim,
            "stops": self.stops,
            "scenario": first.get("scenario", ""),
            "script": first.get("script", ""),
            "told": self.told,
            "faces": [{**face, "defect": self.id} for face in self.faces],
        }

    def to_json(self) -> str:
        """The defect as JSON."""
        data = asdict(self)
        data["causes"] = [{"needs": sorted(cause.needs), "only": cause.only} for cause in self.causes]
        return json.dumps(data)

    @classmethod
    def from_json(cls, text: str) -> "Defect":
        """The defect that `to_json` wrote."""
        data = json.loads(text)
        causes = tuple(Cause(frozenset(each["needs"]), each["only"]) for each in data["causes"])
        return cls(**{**data, "causes": causes, "faces": tuple(data["faces"])})


def the_same(known: Iterable[Defect], cause: Cause, manners: Collection[str]) -> Defect | None:
    """The known defect to which a minimal failing program belongs, or None if the program shows a new defect.

    ``manners``: the manner in which it fails, and those of its other faces. It belongs to a defect if both need the
    same features. It also does if one needs a part of the other's features and both fail in the same manner. The cause
    of the returned defect is then widened to the needs that both share. It also belongs to it if both fail in the same
    manner and are alternatives, see `are_alternatives`. The defect then has both causes.
    """
    known = tuple(known)
    for defect in known:
        for place, other in enumerate(defect.causes):
            if other.only != cause.only:
                continue
            mine, theirs = cause.telling, other.telling
            if mine == theirs or (defect.manner in manners and (mine <= theirs or theirs <= mine)):
                wider = Cause(cause.needs & other.needs, cause.only)
                if wider.needs or not (cause.needs and other.needs):
                    return replace(defect, causes=(*defect.causes[:place], wider, *defect.causes[place + 1 :]))
    for defect in known:  # only after all were compared, as one of them may have exactly this cause
        for other in defect.causes:
            alike = other.only == cause.only and are_alternatives(cause.telling, other.telling)
            if alike and defect.manner in manners:
                return replace(defect, causes=(*defect.causes, cause))
    return None
