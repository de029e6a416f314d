"""The values that pass between the stages: frozen, slotted, keyword-only, compared and shown by their fields.

In: a class with annotated fields, of which some have defaults. Out: what ``dataclass(frozen=True, kw_only=True,
slots=True)`` makes of it, for type checkers too. A dataclass compiles six functions for each class and imports
``inspect``, and envguard has 41 classes: a third of the time of ``envguard doctor`` (docs/LOG.md). Here all classes
share these methods, so that a class costs nothing; an object costs 2 µs more, so what comes by the ten thousand is a
NamedTuple. A default is shared by all objects, so it must be as frozen as they are.
"""

from __future__ import annotations

from collections.abc import KeysView, Mapping
from types import MappingProxyType
from typing import Any, NoReturn, TypeVar, dataclass_transform

NOTHING: Mapping[Any, Any] = MappingProxyType({})
"""The default of a field that is a mapping."""


@dataclass_transform(frozen_default=True, kw_only_default=True)
class _FrozenType(type):
    """Turns annotations into slots."""

    _fields: KeysView[str]
    _defaults: dict[str, Any]

    def __new__(cls, name: str, bases: tuple[type, ...], namespace: dict[str, Any]) -> _FrozenType:
        if any(getattr(base, "_fields", ()) for base in bases):
            raise TypeError(f"{name} derives from a class with fields: declare all of them in one class")
        fields = dict.fromkeys(namespace.get("__annotations__", ()))
        defaults = {field: namespace.pop(field) for field in fields if field in namespace}
        return super().__new__(
            cls, name, bases, {**namespace, "__slots__": tuple(fields), "_fields": fields.keys(), "_defaults": defaults}
        )


class Frozen(metaclass=_FrozenType):
    """The base of them all; a class derives from it directly and declares all its fields."""

    def __init__(self, /, **values: Any) -> None:
        cls = type(self)
        if values.keys() != cls._fields:
            values = {**cls._defaults, **values}
            if values.keys() != cls._fields:
                wrong = ", ".join(sorted(values.keys() ^ cls._fields))
                raise TypeError(f"{cls.__qualname__}() lacks, or does not know: {wrong}")
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"{type(self).__qualname__} is frozen, so its {name} cannot be set")

    def __delattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"{type(self).__qualname__} is frozen, so its {name} cannot be deleted")

    def __eq__(self, other: object) -> bool:
        return as_dict(self) == as_dict(other) if type(other) is type(self) else NotImplemented

    def __hash__(self) -> int:
        return hash(tuple(as_dict(self).values()))

    def __repr__(self) -> str:
        return f"{type(self).__qualname__}({', '.join(f'{k}={v!r}' for k, v in as_dict(self).items())})"

    def __reduce__(self) -> tuple[Any, ...]:
        given = {name: value for name, value in as_dict(self).items() if value is not NOTHING}  # which does not pickle
        return _make, (type(self), given)

    def __replace__(self, /, **changes: Any) -> Any:  # copy.replace of Python 3.13
        return replace(self, **changes)


def _make(cls: type[Frozen], values: dict[str, Any]) -> Frozen:
    return cls(**values)


Value = TypeVar("Value", bound=Frozen)


def replace(value: Value, **changes: Any) -> Value:
    """``value`` with some fields changed."""
    return type(value)(**{**as_dict(value), **changes})


def as_dict(value: Frozen) -> dict[str, Any]:
    """Its fields by name, in their order; what lies in them stays as it is."""
    return {name: getattr(value, name) for name in type(value)._fields}
