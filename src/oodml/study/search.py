"""Hyperparameter search (extra `search`): ranges from the registries' records, scored on validation classes.

The test classes are never used: a trial trains on the split's train classes without its validation classes, and is
tested on those. The search returns a method to put into a study.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from oodml._errors import OodmlError
from oodml._progress import stage
from oodml.config import RunConfig
from oodml.data import load_dataset
from oodml.evaluation import check_metrics
from oodml.losses import list_losses, loss_record
from oodml.methods import list_methods, method_record, method_spec
from oodml.shift import Split
from oodml.training import train
from oodml.training.data import choose_split, validation_classes

IDENTITY = "search"  # the attribute of Optuna's study that says what is searched


@dataclass(frozen=True)
class SearchResult:
    """The best method of a search, its score on the validation classes, and every trial (options, score)."""

    method: dict[str, Any]
    score: float
    trials: tuple[tuple[dict[str, Any], float], ...]


def search_ranges(method: str | Mapping[str, Any]) -> dict[str, tuple[Any, ...]]:
    """The ranges of a method's own options and of its loss's, `base.margin` for the option `margin` of its base."""
    spec = method_spec(method)
    ranges = dict(method_record(spec["name"]).search)
    for key in ("loss", "base"):
        if key in spec:
            inner = spec[key]["name"] if isinstance(spec[key], Mapping) else spec[key]
            found = loss_record(inner).search if _is_loss(inner) else search_ranges(inner)
            ranges |= {f"{key}.{name}": values for name, values in found.items()}
    return ranges


def _is_loss(name: str) -> bool:
    return name not in list_methods() and any(name in (each, *loss_record(each).aliases) for each in list_losses())


def without_test_classes(split: Split) -> Split:
    """The split that a search uses: fit classes against validation classes."""
    val = validation_classes(split)
    fit = [name for name in split.train if name not in set(val)]
    return replace(split, train=fit, test=val, val=[], name=f"{split.name}-search", episodes={})


def search(
    config: RunConfig | Mapping[str, Any],
    out: str | Path,
    trials: int = 20,
    metric: str = "recall@1",
    options: Mapping[str, tuple[Any, ...]] | None = None,
    quiet: bool = False,
) -> SearchResult:
    """Search the options of a run's method; started again in the same folder, it resumes.

    A folder that holds another search (of another method, metric, ranges or settings) is refused, because their trials
    would mix.

    Args:
        config: a run; its split's test classes are not used. Trials are scored at their last epoch.
        options: {option: (low, high)} in place of the ranges of the records; a range from a positive number to ten
            times it or more is searched by its logarithm.
    """
    try:
        import optuna
    except ImportError as error:
        raise OodmlError("The search needs Optuna: pip install 'oodml[search]'.") from error
    given = (config if isinstance(config, RunConfig) else RunConfig(**config)).resolved()
    check_metrics([metric])
    ranges = dict(options or search_ranges(given.method or {}))
    _check_ranges(given, ranges)
    dataset = load_dataset(given.dataset)
    split = without_test_classes(choose_split(dataset, given.split))
    metrics = tuple(dict.fromkeys((*(given.metrics or ()), metric)))  # the default ones do not include all
    root = Path(out)
    root.mkdir(parents=True, exist_ok=True)

    def objective(trial: Any) -> float:
        chosen = {name: _suggest(trial, name, values) for name, values in ranges.items()}
        settings = {"method": with_options(given.method, chosen), "split": split, "selection": "last"}
        settings["metrics"] = metrics
        run = RunConfig(**{**given.as_dict(), **settings, "out": None, "quiet": True})
        return train(run.model_copy(update={"out": str(root / "runs" / run.hash())}), dataset).scores[metric]

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(
        study_name="search",
        storage=f"sqlite:///{root / 'search.db'}",
        direction="maximize",
        load_if_exists=True,
    )
    _refuse_another(study, root, _identity(given, metric, ranges))
    done = sum(each.state.is_finished() for each in study.trials)
    study.sampler = optuna.samplers.TPESampler(seed=given.seed + done)  # else it draws as before
    with stage("Searching", trials, quiet) as advance:
        advance(done)
        study.optimize(objective, max(0, trials - done), callbacks=[lambda *_: advance(1)], catch=(OodmlError,))
    finished = [(dict(each.params), float(each.value)) for each in study.trials if each.value is not None]
    if not finished:
        raise OodmlError("No trial of the search has finished; look at its errors above.")
    options_of_best, score = max(finished, key=lambda trial: trial[1])
    return SearchResult(with_options(given.method, options_of_best), score, tuple(finished))


def search_name(method: str | Mapping[str, Any]) -> str:
    """A method in a word, to name a folder by: `margin`, `rho-triplet`."""
    spec = {"name": method} if isinstance(method, str) else method
    inner = [search_name(spec[key]) for key in ("loss", "base") if key in spec]
    return "-".join(inner if spec["name"] == "plain" and inner else [spec["name"], *inner])


def _identity(config: RunConfig, metric: str, ranges: Mapping[str, tuple[Any, ...]]) -> dict[str, Any]:
    """What all trials of a search have in common."""
    return {
        "method": config.as_dict()["method"],
        "metric": metric,
        "ranges": {name: list(values) for name, values in ranges.items()},
        "run": config.hash(),
    }


def _refuse_another(study: Any, root: Path, own: dict[str, Any]) -> None:
    held = study.user_attrs.get(IDENTITY)
    if held is None and not study.trials:
        study.set_user_attr(IDENTITY, own)
    elif held != own:
        raise OodmlError(f"{root} holds {_difference(held, own)}. Give --out another folder.")


def _difference(held: dict[str, Any] | None, own: dict[str, Any]) -> str:
    """Where another search differs from ours, in words."""
    if held is None:
        return "a search without a description"
    name = search_name(held["method"])
    if name != search_name(own["method"]):
        return f"a search of {name}"
    if held["metric"] != own["metric"]:
        return f"a search of {name} by {held['metric']}"
    if held["ranges"] != own["ranges"]:
        return f"a search of {name} over {held['ranges']}"
    return f"a search of {name} with other settings of the run"


def _check_ranges(config: RunConfig, ranges: Mapping[str, tuple[Any, ...]]) -> None:
    """Make the method with the first value of every range: an unknown option is reported before any training."""
    if not ranges:
        raise OodmlError("The method has no options with a range to search in; give `options`.")
    first = {name: values[0] for name, values in ranges.items()}
    RunConfig(**{**config.as_dict(), "split": "default", "method": with_options(config.method, first)})


def _suggest(trial: Any, name: str, values: tuple[Any, ...]) -> Any:
    if len(values) != 2 or not all(isinstance(value, int | float) for value in values):
        return trial.suggest_categorical(name, list(values))
    low, high = values
    if isinstance(low, int) and isinstance(high, int):
        return trial.suggest_int(name, low, high, log=low > 0 and high >= 10 * low)
    return trial.suggest_float(name, low, high, log=low > 0 and high >= 10 * low)


def with_options(method: Any, chosen: Mapping[str, Any]) -> dict[str, Any]:
    """The method with these options put in their places (`base.beta` into its base)."""
    spec = {"name": method} if isinstance(method, str) else dict(method)
    for name, value in chosen.items():
        key, dot, rest = name.partition(".")
        if dot and key not in spec:
            raise OodmlError(f"The option {name!r} cannot be set: the method {spec['name']!r} has no option {key!r}.")
        spec[key] = with_options(spec[key], {rest: value}) if dot else value
    return spec
