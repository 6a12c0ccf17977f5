"""Data flows forward once: how often one process opens, builds, embeds and evaluates, with upper bounds."""

import sys
from collections import Counter
from contextlib import contextmanager

import pytest
from torch import nn

import oodml
from oodml.config import RunConfig
from oodml.data import Images, load_dataset
from oodml.evaluation import evaluate
from oodml.losses.base import Loss
from oodml.methods import Method
from oodml.models import make_backbone
from oodml.study import StudyConfig, run_study
from oodml.training.scoring import embed

SHORT = {"embedding_dim": 8, "batch_size": 16, "samples_per_class": 4, "device": "cpu"}
SHORT |= {"steps": 10, "eval_every": 10, "metrics": ("recall@1", "map@r"), "quiet": True}


@pytest.fixture
def counted():
    """`with counted() as counts:` counts what oodml does inside."""

    @contextmanager
    def count():
        counts = Counter()

        def counting(function, name, condition=lambda *args: True):
            def call(*args, **kwargs):
                counts[name] += bool(condition(*args))
                return function(*args, **kwargs)

            return call

        with pytest.MonkeyPatch.context() as patch:

            def everywhere(real, name):
                for each in [m for key, m in sys.modules.items() if key.startswith("oodml")]:
                    if vars(each).get(real.__name__) is real:
                        patch.setattr(each, real.__name__, counting(real, name))

            patch.setattr(RunConfig, "__init__", counting(RunConfig.__init__, "settings"))
            filled = vars(RunConfig)["_filled"]
            patch.setattr(filled, "func", counting(filled.func, "resolutions"))
            patch.setattr(Images, "__init__", counting(Images.__init__, "openings"))
            build = counting(nn.Module.__init__, "methods", lambda module, *_: isinstance(module, Method))
            build = counting(build, "losses", lambda module, *_: isinstance(module, Loss))
            patch.setattr(nn.Module, "__init__", build)
            everywhere(load_dataset, "datasets")
            everywhere(make_backbone, "backbones")
            everywhere(embed, "embeddings")
            everywhere(evaluate, "evaluations")
            yield counts

    return count


def within(counts: Counter, **bounds: int) -> None:
    assert {name: counts[name] for name in bounds if counts[name] > bounds[name]} == {}, dict(counts)


@pytest.mark.parametrize("selection", ["val", "test", "last"])
def test_one_run_does_everything_once(settings, counted, selection):
    with counted() as counts:
        oodml.train(settings(**SHORT, selection=selection))
    within(counts, settings=2, resolutions=1, methods=2, datasets=1, backbones=1, openings=1)
    sets = 3 if selection == "val" else 2  # test before training, test after it, val
    within(counts, embeddings=sets + 1)  # and the fit set, for its structure
    within(counts, evaluations=sets + (selection != "test"))  # the chosen model is scored with every metric


def test_a_search_and_its_full_run_share_images_and_settings(settings, counted):
    with counted() as counts:
        oodml.train(settings(**SHORT, selection="val-then-full"))
    within(counts, settings=2, resolutions=1, methods=3, datasets=1, openings=1, embeddings=7)


def test_a_finished_run_is_read_without_building_anything(settings, counted):
    oodml.train(settings(**SHORT))
    with counted() as counts:
        oodml.train(settings(**SHORT))
    within(counts, settings=2, resolutions=1, methods=1, openings=0, backbones=0, embeddings=0, evaluations=0)


def test_few_shot_adaptation_opens_and_loads_its_dataset_once(settings, counted):
    run = oodml.train(settings(**SHORT, views=1)).path
    with counted() as counts:
        oodml.few_shot(run, shots=2, episodes=2, steps=10, quiet=True, device="cpu")
    within(counts, settings=2, resolutions=0, methods=1, datasets=1, backbones=1)


def test_a_study_of_five_runs_opens_its_images_once(tmp_path, counted):
    methods = {name: name for name in ("margin", "triplet", "contrastive", "multisimilarity")}
    methods["s2sd"] = {"name": "s2sd", "base": "margin"}
    run = {key: value for key, value in SHORT.items() if key not in ("device", "quiet")} | {"device": "cpu"}
    study = StudyConfig(name="five", dataset="patterns", splits="default", methods=methods, run=run)
    with counted() as counts:
        run_study(study, tmp_path / "study", quiet=True, workers=1)
    within(counts, datasets=2, openings=2, backbones=5, embeddings=5 * 4)
    within(counts, settings=5 * 5, resolutions=5 * 2, methods=5 * 3)
    within(counts, evaluations=5 * 5)  # four per run, and matched recall where the study is read
