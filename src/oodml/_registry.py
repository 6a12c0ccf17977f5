"""One mechanism for every registry: losses, miners, methods, datasets, batch samplers, backbones.

A registry scans its package folder once, so that a new loss is one file, and it reads the Python entry points of its
group, so that another distribution can add names without being imported first. A registered name is a frozen `Record`;
help texts, tables of the docs, presets and searches are derived from it.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import sys
import threading
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from dataclasses import replace as changed
from importlib.metadata import entry_points
from types import MappingProxyType
from typing import Any

from oodml._errors import OodmlError, unknown_name


@dataclass(frozen=True)
class Record:
    """A registered name: what makes it, and what help and docs print."""

    name: str
    factory: Callable[..., Any]
    summary: str
    paper: str = ""
    aliases: tuple[str, ...] = ()
    default_miner: str | None = None  # losses: the miner unless another is given; None: no miner
    has_parameters: bool = False  # losses: proxies, boundaries or centres to train
    search: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)  # hyperparameter -> sensible range
    revision: int = 1  # raised when the same settings compute something else; part of a run's identity
    context: frozenset[str] = frozenset()  # arguments the package supplies, not hyperparameters

    def __post_init__(self) -> None:
        if "miner" in self.context and self.default_miner is None:  # a loss: its default miner is that of its signature
            miner = inspect.signature(self.factory).parameters.get("miner")
            default = miner.default if miner is not None else None
            object.__setattr__(self, "default_miner", default if isinstance(default, str) else None)
        object.__setattr__(self, "search", MappingProxyType(dict(self.search)))

    @property
    def defaults(self) -> Mapping[str, Any]:
        """Hyperparameters and their default values, read from the factory's signature."""
        parameters = inspect.signature(self.factory).parameters.values()
        return MappingProxyType(
            {
                p.name: p.default
                for p in parameters
                if p.name not in self.context and p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)
            }
        )

    @property
    def takes_any_keyword(self) -> bool:
        parameters = inspect.signature(self.factory).parameters.values()
        return any(p.kind is p.VAR_KEYWORD for p in parameters)


class Registry:
    """Names of one kind. `package` is scanned for modules that register themselves; `group` names the entry points."""

    def __init__(self, kind: str, package: str, group: str, context: tuple[str, ...] = ()) -> None:
        self.kind = kind
        self._package = package
        self._group = group
        self._context = frozenset(context)
        self._records: dict[str, Record] = {}
        self._aliases: dict[str, str] = {}
        self._classes: dict[str, type] = {}  # of the package itself, by their own names
        self._lock = threading.RLock()  # a second thread waits until a scan has found all names
        self._scanning = False
        self._done: set[str] = set()  # finished steps of the scan

    def register(
        self,
        name: str,
        factory: Callable[..., Any] | None = None,
        *,
        summary: str = "",
        replace: bool = False,
        **facts: Any,
    ) -> Any:
        """Add `factory` under `name`; without `factory` it is a decorator.

        `summary` defaults to the first line of the factory's docstring; `facts` are the other fields of `Record`.
        """
        # The package's own names must be registered before a user can replace one. Its own modules call this too, while
        # they are imported: they must not start a scan.
        if not sys._getframe(1).f_globals.get("__name__", "").startswith(f"{self._package}."):
            self._once(self._import_modules)

        def add(given: Callable[..., Any]) -> Callable[..., Any]:
            self._add(name, given, summary, replace, facts)
            return given

        return add if factory is None else add(factory)

    def _add(
        self, name: str, factory: Callable[..., Any], summary: str, replace: bool, facts: Mapping[str, Any]
    ) -> None:
        aliases = self._check(name, factory, facts)
        taken = self._records.keys() | self._aliases.keys()
        for each in (name, *aliases):
            if each in taken and not replace:
                raise OodmlError(
                    f"The {self.kind} {each!r} is registered already. Choose another name, or pass replace=True."
                )
        first_line = (inspect.getdoc(getattr(factory, "func", factory)) or "").partition("\n")[0]  # also of a partial
        record = Record(name, factory, summary or first_line, context=self._context, **{**facts, "aliases": aliases})
        inherited = [alias for each in (name, *aliases) for alias in self._free(each)]
        aliases = tuple(dict.fromkeys(alias for alias in (*aliases, *inherited) if alias != name))
        self._records[name] = changed(record, aliases=aliases)
        self._aliases.update(dict.fromkeys(aliases, name))
        if isinstance(factory, type) and factory.__module__.startswith(f"{self._package}."):
            self._classes[factory.__name__] = factory

    def _check(self, name: str, factory: Any, facts: Mapping[str, Any]) -> tuple[str, ...]:
        """Raise for what would fail later, when the name is used; returns the aliases."""
        given = facts.get("aliases", ())
        aliases = (given,) if isinstance(given, str) else tuple(given)
        for each in (name, *aliases):
            if not isinstance(each, str) or not each or each.split() != [each]:
                raise OodmlError(f"A name to register ({self.kind}) is one word, got {each!r}.")
        known = {each.name for each in fields(Record)} - {"name", "factory", "summary", "context"}
        for key in facts:
            if key not in known:
                raise unknown_name(f"fact about {self.kind} {name!r}:", key, known | {"summary", "replace"})
        made = hasattr(factory, "parameters") and hasattr(factory, "forward") and not isinstance(factory, type)
        if made:
            raise OodmlError(
                f"The {self.kind} {name!r} needs a class or function, and got an instance: "
                f"register {type(factory).__name__}, or lambda: {type(factory).__name__}(...)."
            )
        if not callable(factory):
            raise OodmlError(f"The {self.kind} {name!r} needs a class or function to register, got {factory!r}.")
        return aliases

    def _free(self, name: str) -> tuple[str, ...]:
        """Remove `name`, a record or an alias; returns the aliases of a removed record."""
        owner = self._aliases.pop(name, None)
        if owner is not None:
            record = self._records[owner]
            self._records[owner] = changed(record, aliases=tuple(a for a in record.aliases if a != name))
        left = self._records.pop(name).aliases if name in self._records else ()
        for alias in left:
            del self._aliases[alias]
        return left

    def names(self) -> list[str]:
        self._scan()
        return sorted(self._records)

    def records(self) -> list[Record]:
        self._scan()
        return [self._records[name] for name in sorted(self._records)]

    def classes(self) -> list[str]:
        """The names of the classes that modules of the package register."""
        self._once(self._import_modules)
        return sorted(self._classes)

    def class_named(self, name: str) -> type:
        """`__getattr__` of the package: the class of that name, e.g. `oodml.losses.Margin`."""
        if name[:1].isupper():  # other attributes must not import all modules
            self._once(self._import_modules)
            if name in self._classes:
                return self._classes[name]
        raise AttributeError(f"module {self._package!r} has no attribute {name!r}")

    def __contains__(self, name: object) -> bool:
        self._scan()
        return name in self._records or name in self._aliases

    def __getitem__(self, name: str) -> Record:
        self._scan()
        try:
            return self._records[self._aliases.get(name, name)]
        except (KeyError, TypeError):
            raise unknown_name(self.kind, name, self._records.keys() | self._aliases.keys()) from None

    def make(self, name: str, /, *args: Any, context: Mapping[str, Any] | None = None, **hyperparameters: Any) -> Any:
        """Build what `name` stands for.

        `context` has what the package supplies (number of classes, embedding size, generator); the factory gets those
        that are in its signature. `hyperparameters` come from the user and must all be in it.
        """
        record = self[name]
        self.check_hyperparameters(name, hyperparameters)
        wanted = inspect.signature(record.factory).parameters
        supplied = {k: v for k, v in (context or {}).items() if k in wanted or record.takes_any_keyword}
        self._refuse_without(record, [*list(wanted)[: len(args)], *supplied, *hyperparameters])
        return record.factory(*args, **supplied, **hyperparameters)

    def check_hyperparameters(self, name: str, hyperparameters: Mapping[str, Any]) -> None:
        """Raise for a keyword that the factory of `name` does not take."""
        record = self[name]
        if record.takes_any_keyword:
            return
        for key, value in hyperparameters.items():
            if key not in record.defaults:
                raise unknown_name(f"option of {self.kind} {record.name!r}:", key, record.defaults)
            if isinstance(record.defaults[key], bool) and not isinstance(value, bool):
                raise OodmlError(f"The option {key} of {self.kind} {record.name!r} is True or False, got {value!r}.")

    def _refuse_without(self, record: Record, given: list[str]) -> None:
        """Raise for arguments that are missing."""
        missing = [k for k, v in record.defaults.items() if v is inspect.Parameter.empty and k not in given]
        if missing:
            raise OodmlError(
                f"The {self.kind} {record.name!r} needs {', '.join(missing)}: give it as an option. (Register "
                f"a function that returns the {self.kind}, not the {self.kind} itself.)"
            )

    def _scan(self) -> None:
        self._once(self._import_modules)
        self._once(self._load_entry_points)

    def _once(self, step: Callable[[], None]) -> None:
        """Run a step of the scan, unless it is finished or a scan is running."""
        if step.__name__ in self._done:
            return
        with self._lock:
            if self._scanning or step.__name__ in self._done:
                return
            self._scanning = True
            try:
                step()
            finally:
                self._scanning = False
            self._done.add(step.__name__)

    def _import_modules(self) -> None:
        package = importlib.import_module(self._package)
        for module in pkgutil.iter_modules(package.__path__):
            if not module.name.startswith("_"):
                importlib.import_module(f"{self._package}.{module.name}")

    def _load_entry_points(self) -> None:
        """Load entry points; one that fails, or whose name is taken, is left out with a warning."""
        for entry in entry_points(group=self._group):
            if entry.name in self:
                continue
            try:
                # An entry point names a factory; a module-level decorator may have registered it on import already.
                factory = entry.load()
                if entry.name not in self:
                    self.register(entry.name, factory)
            except Exception as error:
                where = f" of {entry.dist.name}" if entry.dist else ""
                warnings.warn(
                    f"The {self.kind} {entry.name!r}{where} cannot be loaded from {entry.value} "
                    f"({type(error).__name__}: {error}) and is left out.",
                    stacklevel=2,
                )
