"""Which method to use, and what recall to expect of it, as numbers."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from safetensors.numpy import load_file

from oodml.data import Dataset
from oodml.evaluation import evaluate
from oodml.shift import Split
from oodml.study.leaderboard import METRIC, ranking
from oodml.study.statistics import Comparison
from oodml.study.table import TRAINED, StudyTable

FEWEST_CLASSES = 5  # for a bootstrap over classes


@dataclass(frozen=True)
class Advice:
    """Which method to use.

    use         the best trained method, or the untrained backbone where training does not pay or chance may explain it
    best        the best trained method; None where none was trained on every split
    untrained   the label of the untrained backbone
    lead        of `best` over the untrained backbone: of AGS, or of the mean score with a single level of shift
    comparison  the same with its interval over seeds; None with a single level of shift
    runner_up   the two best trained methods compared; None with one method or a single level of shift
    """

    use: str
    best: str | None
    untrained: str
    lead: float | None = None
    comparison: Comparison | None = None
    runner_up: Comparison | None = None

    @property
    def decided(self) -> bool:
        """Whether to act on the lead. Of one seed the sign of the lead counts; of two, whether both have one sign,
        because their interval is too wide for any decision."""
        found = self.comparison
        if found is None or math.isnan(found.low):
            return True
        return found.distinguishable or (len(found.by_seed) == 2 and found.unanimous)


def advise(table: StudyTable, untrained: str) -> Advice:
    """Compare the best trained method with the untrained backbone, by the metric that studies are ranked by."""
    trained = [name for name in ranking(table, METRIC) if table.kinds[name] == TRAINED]
    if not trained:
        return Advice(untrained, None, untrained)
    best = trained[0]
    comparison = runner_up = None
    if table.shifts > 1:
        comparison = table.compare(METRIC, best, untrained)
        runner_up = table.compare(METRIC, *trained[:2]) if len(trained) > 1 else None
        lead = comparison.difference
    else:
        ahead, behind = (table.means(METRIC)[table.methods.index(name)].mean() for name in (best, untrained))
        lead = float(ahead - behind)
    found = Advice(untrained, best, untrained, lead, comparison, runner_up)
    return Advice(best, best, untrained, lead, comparison, runner_up) if lead > 0 and found.decided else found


@dataclass(frozen=True)
class Expectation:
    """Recall@1 of one method on the unseen classes of a split.

    low, high  the 95 % interval over classes; None where a bootstrap means nothing, over a handful of classes or over
               classes that score alike
    matched    recall@1 with every split's test set reduced to one size
    """

    split: str
    fid: float
    train_classes: int
    test_classes: int
    recall: float
    low: float | None
    high: float | None
    matched: float


def expectation(table: StudyTable, method: str, split: Split, dataset: Dataset, features: np.ndarray) -> Expectation:
    """What `method` scored on a split. The interval over classes is that of the first seed, around the mean over seeds.

    `features` of all images of the dataset are the embeddings of a method that was not trained.
    """
    run = next(row for row in table.rows if (row.method, row.split) == (method, split.name))
    if run.path is None:
        rows = dataset.indices_of(split.test)
        embeddings, labels = features[rows], dataset.labels[rows]
    else:
        stored = load_file(run.path / "embeddings.safetensors")
        embeddings, labels = stored["embeddings"].astype(np.float32), stored["labels"]
    scores = evaluate(embeddings, labels, ["recall@1"], normalise=run.path is None)
    place = table.methods.index(method), table.splits.index(split.name)
    recall, matched = float(table.means("recall@1")[place]), float(table.means(METRIC)[place])
    low, high = (float(np.clip(end + recall - scores["recall@1"], 0, 1)) for end in scores.interval("recall@1"))
    meaningful = len(split.test) >= FEWEST_CLASSES and f"{100 * low:.1f}" != f"{100 * high:.1f}"
    return Expectation(
        split=split.name,
        fid=float(split.fid or 0),  # the splits of an audit are always measured
        train_classes=len(split.train),
        test_classes=len(split.test),
        recall=recall,
        low=low if meaningful else None,
        high=high if meaningful else None,
        matched=matched,
    )
