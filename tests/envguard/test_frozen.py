"""The values between the stages: what a frozen, keyword-only dataclass with slots would be, made without compiling."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from envguard.findings import Finding, Problem, Repair, Skip
from envguard.frozen import NOTHING, Frozen, as_dict, replace
from envguard.surroundings import Surroundings

PROBLEM = Problem(subject="alpha", message="it is gone", repair=Repair(sync=True))


def test_fields_have_their_values_and_their_defaults() -> None:
    assert (PROBLEM.subject, PROBLEM.expected, PROBLEM.repair.sync) == ("alpha", None, True)
    assert list(as_dict(PROBLEM)) == ["subject", "message", "expected", "observed", "fix", "severity", "repair"]
    assert as_dict(PROBLEM)["repair"] is PROBLEM.repair


def test_equal_are_those_of_one_class_with_equal_fields() -> None:
    same = Problem(repair=Repair(sync=True), message="it is gone", subject="alpha")
    assert same == PROBLEM
    assert hash(same) == hash(PROBLEM)
    assert same != replace(PROBLEM, subject="beta")
    assert Skip(reason="alpha") != "alpha"
    assert Surroundings() == Surroundings(problems={})


def test_replace_changes_only_what_is_named() -> None:
    changed = replace(PROBLEM, expected="1.0")
    assert changed.expected == "1.0"
    assert replace(changed, expected=None) == PROBLEM


def test_it_shows_its_fields() -> None:
    assert repr(Skip(reason="no lock")) == "Skip(reason='no lock')"


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: Problem(subject="alpha"), "message"),  # type: ignore[call-arg]
        (lambda: Skip(reason="a", cause="b"), "cause"),  # type: ignore[call-arg]
        (lambda: replace(PROBLEM, subjects="beta"), "subjects"),
        (lambda: Skip("no lock"), "positional"),  # type: ignore[misc]
    ],
)
def test_a_missing_or_unknown_field_is_a_type_error(make: Callable[[], object], named: str) -> None:
    with pytest.raises(TypeError, match=named):
        make()


def test_nothing_can_be_set_deleted_or_added() -> None:
    value: Any = Skip(reason="no lock")
    with pytest.raises(AttributeError, match="reason"):
        value.reason = "another"
    with pytest.raises(AttributeError, match="other"):
        value.other = 1
    with pytest.raises(AttributeError, match="reason"):
        del value.reason
    assert not hasattr(value, "__dict__")
    assert value.reason == "no lock"
    with pytest.raises(TypeError):
        NOTHING["a"] = 1  # type: ignore[index]


def test_fields_are_not_inherited() -> None:
    with pytest.raises(TypeError, match="declare all of them"):
        type("More", (Skip,), {})
    assert issubclass(Finding, Frozen)


def test_it_can_be_copied_and_pickled() -> None:
    assert copy.deepcopy(PROBLEM) == PROBLEM
    assert pickle.loads(pickle.dumps(PROBLEM)) == PROBLEM


def test_no_start_pays_for_dataclasses() -> None:
    code = "import sys, envguard.cli, envguard.guard; print({'dataclasses', 'inspect'} & set(sys.modules))"
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


def test_values_with_the_shared_empty_mapping_are_copied_and_pickled() -> None:
    here = Surroundings()
    assert pickle.loads(pickle.dumps(here)) == here
    assert copy.deepcopy(here) == here
