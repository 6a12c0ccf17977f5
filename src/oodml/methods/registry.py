"""The registry of methods, and how a method is made from its name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from oodml._errors import OodmlError, unknown_name
from oodml._registry import Registry
from oodml.losses import list_losses, loss_record
from oodml.methods.base import Method

REGISTRY = Registry("method", "oodml.methods", "oodml.methods")
register_method = REGISTRY.register
list_methods = REGISTRY.names
method_records = REGISTRY.records
method_record = REGISTRY.__getitem__


def method_spec(spec: str | Mapping[str, Any], **options: Any) -> dict[str, Any]:
    """The long form of a method: {"name": METHOD, ...options}.

    A loss's name is short for {"name": "plain", "loss": NAME}, a dict named like a loss for the same with options.
    """
    if isinstance(spec, Mapping) and not isinstance(spec.get("name"), str):
        raise OodmlError(f"A method is a name or a dict with 'name' and its options, got {dict(spec)!r}.")
    given = {"name": spec} if isinstance(spec, str) else {key: _short(value) for key, value in spec.items()}
    given.update(options)
    name = given["name"]
    if name in REGISTRY:
        return {**given, "name": method_record(name).name}
    losses = {alias for each in list_losses() for alias in (each, *loss_record(each).aliases)}
    if name in losses:
        return {"name": "plain", "loss": name if len(given) == 1 else given}
    raise unknown_name("method or loss", name, [*list_methods(), *losses])


def _short(value: Any) -> Any:
    """A dict with nothing but a name is that name, so that a method has one spelling."""
    return value["name"] if isinstance(value, Mapping) and value.keys() == {"name"} else value


def wrapped_option(spec: Mapping[str, Any]) -> tuple[str, Any] | None:
    """The option by which a method or a loss wraps another one (`base` or `loss`), and its value, given or default.

    None if it wraps nothing or is not registered.
    """
    try:
        record = method_record(spec["name"]) if spec["name"] in REGISTRY else loss_record(spec["name"])
    except OodmlError:
        return None
    for option in ("base", "loss"):
        value = spec.get(option, record.defaults.get(option))
        if isinstance(value, str | Mapping) and (option in record.defaults or record.takes_any_keyword):
            return option, value
    return None


def make_method(spec: str | Mapping[str, Any], **options: Any) -> Method:
    """Build a method from its name, a loss's name, or a dict, e.g. `make_method("rho", base="triplet")`.

    Options are checked here; losses are built when `setup` is given the number of classes.
    """
    long = method_spec(spec, **options)
    name = long.pop("name")
    try:
        return REGISTRY.make(name, **long)
    except TypeError as error:  # a missing option, or one of another type
        raise OodmlError(
            f"The method {name!r} cannot be made with {long}: {error}. `oodml methods {name}` shows its options."
        ) from error
