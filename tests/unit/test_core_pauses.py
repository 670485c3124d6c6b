"""Pauses: what they are about, and what a decision leaves of them."""

from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest

from leasekeeper.core.decisions import Action, Decision, Target
from leasekeeper.core.pauses import Pause, Scope, named_in, pause_decided, pause_id_of, scope_of
from leasekeeper.errors import IllegalTransition, InputError
from tests.unit.records import NOW, before, seconds

SOON = NOW + seconds(60)


def decision(pause_id: str, action: Action = Action.PAUSE, until: datetime | None = None) -> Decision:
    return Decision(target=Target.PAUSE, id=pause_id, action=action, note="night", actor="ann", until=until)


def a_pause(pause_id: str, until: datetime | None = None) -> Pause:
    scope, name = scope_of(pause_id) or (Scope.ALL, "")
    return Pause(pause_id=pause_id, scope=scope, name=name, note="old", actor="bob", since=before(90), until=until)


@pytest.mark.parametrize(
    ("pause_id", "until", "where"),
    [
        ("all", None, None),
        ("pool:eu", SOON, None),
        ("account:shop", None, None),
        ("worker:w1", None, None),
        ("pool", None, "id"),
        ("pool:", None, "id"),
        ("proxy:x", None, "id"),
        ("all", NOW, "until"),
        ("all", before(1), "until"),
    ],
)
def test_a_pause_has_a_known_id_and_an_end_that_is_to_come(
    pause_id: str, until: datetime | None, where: str | None
) -> None:
    if where is None:
        assert pause_id_of(*named_in(decision(pause_id, until=until), NOW)) == pause_id
        return
    with pytest.raises(InputError) as refused:
        named_in(decision(pause_id, until=until), NOW)
    assert [problem.where for problem in refused.value.problems] == [where]


REFUSED, KEPT = "refused", "kept"


@pytest.mark.parametrize(
    ("pause_id", "earlier", "action", "until", "after"),
    [
        ("all", None, Action.PAUSE, None, KEPT),
        ("pool:eu", None, Action.PAUSE, SOON, KEPT),
        ("pool:eu", {"until": None}, Action.PAUSE, SOON, KEPT),
        ("worker:w1", {"until": SOON}, Action.PAUSE, None, KEPT),
        ("all", {"until": None}, Action.RESUME, None, None),
        ("all", {"until": SOON}, Action.RESUME, None, None),
        ("all", {"until": NOW}, Action.RESUME, None, REFUSED),
        ("pool:eu", None, Action.RESUME, None, REFUSED),
        ("account:shop", None, Action.PAUSE, None, None),
        ("account:shop", {"until": SOON}, Action.PAUSE, None, None),
        ("account:shop", None, Action.PAUSE, SOON, KEPT),
        ("account:shop", None, Action.RESUME, None, None),
        ("account:shop", {"until": SOON}, Action.RESUME, None, None),
    ],
)
def test_what_a_decision_leaves_of_a_pause(
    pause_id: str, earlier: dict[str, Any] | None, action: Action, until: datetime | None, after: str | None
) -> None:
    known = a_pause(pause_id, **earlier) if earlier is not None else None
    decided, (scope, name) = decision(pause_id, action, until), named_in(decision(pause_id), NOW)
    if after == REFUSED:
        with pytest.raises(IllegalTransition, match=f"{pause_id} is not paused") as refused:
            pause_decided(decided, scope, name, known, NOW)
        assert (refused.value.state, refused.value.allowed) == ("active", ("pause",))
        return
    left = pause_decided(decided, scope, name, known, NOW)
    expected = replace(a_pause(pause_id, until), note="night", actor="ann", since=NOW)
    assert left == (expected if after == KEPT else None)
