"""The Ray engine: the same results as on one machine, also when a node dies in the middle."""

import threading
import time

import numpy as np
import pytest

import oodml
from oodml.data import load_dataset
from oodml.shift import Split, save_splits
from oodml.study import StudyConfig, load_study
from oodml.study.store import RemoteStore

ray = pytest.importorskip("ray", reason="Ray is an extra: pip install 'oodml[ray]'")


@pytest.fixture
def glyph_study(tmp_path):
    names = sorted(load_dataset("glyphs").classes)[::8]
    splits = [
        Split(names[:30], names[30:50], name="one", fid=1.0, dataset="glyphs"),
        Split(names[30:60], names[:20], name="two", fid=2.0, dataset="glyphs"),
    ]
    save_splits(tmp_path / "splits.json", splits)
    run = {"backbone": "tiny", "embedding_dim": 16, "steps": 60, "eval_every": 20, "selection": "last"}
    return StudyConfig(
        dataset="glyphs",
        splits=str(tmp_path / "splits.json"),
        methods=["margin", "contrastive"],
        seeds=[0, 1],
        run=run | {"batch_size": 32, "device": "cpu"},
    )


@pytest.fixture
def two_nodes():
    from ray.cluster_utils import Cluster

    small = {"num_cpus": 1, "object_store_memory": 80 << 20}
    cluster = Cluster(initialize_head=True, head_node_args=small)
    second = cluster.add_node(**small)
    ray.init(address=cluster.address, log_to_driver=False)
    yield cluster, second
    ray.shutdown()
    cluster.shutdown()


@pytest.mark.long
def test_a_node_that_dies_loses_nothing_and_changes_nothing(glyph_study, two_nodes, tmp_path):
    cluster, second = two_nodes
    store = RemoteStore(f"file://{tmp_path}/bucket", heartbeat=1.0)  # reached through fsspec: no common disk is assumed
    killed = threading.Event()

    def kill_once_under_way():
        deadline = time.monotonic() + 240
        while len(store.names("claims")) < 2 and time.monotonic() < deadline:
            time.sleep(0.05)  # both nodes work now
        cluster.remove_node(second, allow_graceful=False)
        killed.set()

    threading.Thread(target=kill_once_under_way, daemon=True).start()
    table = oodml.run_study(glyph_study, store, engine="ray", quiet=True)
    assert killed.is_set(), "the study was done before the node died"
    assert len(table.rows) == 8 + 2  # the untrained backbone on both splits

    undisturbed = oodml.run_study(glyph_study, tmp_path / "local", quiet=True, workers=2)
    for metric in ("recall@1", "nmi", "recall@1:matched"):
        np.testing.assert_array_equal(table.scores(metric), undisturbed.scores(metric))
    assert sorted(store.names("runs")) == sorted(path.name for path in (tmp_path / "local" / "runs").iterdir())
    assert len(load_study(store).rows) == 8 + 2
