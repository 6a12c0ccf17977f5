"""Two-stage distillation: the loss by hand, an unchanged teacher, and what is refused."""

import shutil

import pytest
import torch

import oodml
from oodml.methods import Batch, Context
from oodml.methods.distillation import relations, row_kl
from oodml.models.embedder import Embedder
from oodml.training.embedder import frozen_embedder


@pytest.fixture
def teacher(settings, tmp_path):
    return oodml.train(settings(out=str(tmp_path / "teacher"), embedding_dim=16)).path


def test_the_loss_is_the_base_loss_plus_the_relations_of_the_teacher():
    torch.manual_seed(0)
    method = oodml.make_method("distil", teacher="nowhere", base="contrastive", gamma=7.0, temperature=0.5)
    projection = torch.randn(6, 5)
    method.setup(Context(4, 3, 6, 10, load_teacher=lambda run: lambda inputs: inputs @ projection))
    embedder = Embedder(None, method.heads(6), 6)
    inputs, labels = torch.randn(8, 6), torch.arange(8) % 4
    batch = Batch(inputs, labels, labels.numpy(), 0, lambda: inputs)
    torch.manual_seed(1)
    value = method.loss(batch, embedder, 0)
    torch.manual_seed(1)
    embeddings = embedder(inputs).heads["embedding"]
    expected = method.objective(embeddings, labels)
    expected = expected + 7.0 * row_kl(relations(embeddings), relations(inputs @ projection), 0.5)
    assert value.item() == pytest.approx(expected.item(), rel=1e-5)


def test_a_student_trains_and_its_teacher_does_not_change(settings, teacher, tmp_path):
    before = (teacher / "embedder.safetensors").read_bytes()
    method = {"name": "distil", "teacher": str(teacher), "base": "margin", "gamma": 1.0}
    result = oodml.train(settings(method=method, out=str(tmp_path / "student")))
    assert 0 <= result.scores["recall@1"] <= 1
    assert (teacher / "embedder.safetensors").read_bytes() == before
    embed = oodml.load_embedder(result.path)
    images = torch.rand(2, 3, 16, 16)
    rows = embed(images)
    assert rows.shape == (2, 8)
    shutil.rmtree(teacher)  # no longer needed
    assert torch.equal(oodml.load_embedder(result.path)(images), rows)
    assert oodml.adaptation.evaluate_run(result.path, metrics=["recall@1"])["recall@1"] == result.scores["recall@1"]


def test_a_teacher_sees_images_in_the_size_it_was_trained_on(settings, tmp_path):
    """Features are computed on images of at least 64 pixels; a backbone in training sees them at their own size."""
    run = oodml.train(settings(train="head", views=0, selection="last", out=str(tmp_path / "teacher"))).path
    images = torch.rand(5, 3, 16, 16)
    trained = oodml.load_embedder(run)
    assert trained.input == 64
    torch.testing.assert_close(frozen_embedder(run)(images), trained.embed(images))


def test_features_of_another_backbone_are_refused(settings, teacher, tmp_path):
    method = {"name": "distil", "teacher": str(teacher)}
    with pytest.raises(oodml.OodmlError, match="another backbone"):
        oodml.train(settings(method=method, train="head", views=0, out=str(tmp_path / "student")))
    head = oodml.train(settings(train="head", views=0, out=str(tmp_path / "head"))).path
    method = {"name": "distil", "teacher": str(head)}
    assert oodml.train(settings(method=method, train="head", views=0, out=str(tmp_path / "student"))).scores


def test_a_teacher_that_is_no_run_is_refused_before_any_data_is_read(settings, tmp_path):
    with pytest.raises(oodml.OodmlError, match="is not a finished run"):
        settings(method={"name": "distil", "teacher": str(tmp_path / "nowhere")})


def test_an_unknown_distillation_is_refused():
    with pytest.raises(oodml.OodmlError, match="r-kl"):
        oodml.make_method("distil", teacher="x", distillation="rkl")


def test_a_teacher_named_by_its_run_is_looked_for_next_to_the_student(settings, tmp_path):
    method = {"name": "distil", "teacher": {"run": "teacher"}, "base": "margin", "gamma": 1.0}
    student = settings(method=method, out=str(tmp_path / "runs" / "student"))
    with pytest.raises(oodml.OodmlError, match=r"The teacher teacher is not a finished run in .*runs: train it there"):
        oodml.train(student)
    oodml.train(settings(out=str(tmp_path / "runs" / "teacher"), embedding_dim=16))
    assert oodml.train(student).scores


def test_a_label_is_refused_outside_of_a_study(settings):
    with pytest.raises(oodml.OodmlError, match=r'or in a study \{"method": LABEL\}'):
        settings(method={"name": "distil", "teacher": {"method": "wide"}})
