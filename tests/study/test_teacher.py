"""Students in a study: which run teaches them, in which order, under which ID, and what is refused."""

import json
import shutil

import pytest

import oodml
from oodml.shift import load_splits
from oodml.study import status as study_status
from oodml.study.engines.execute import execute
from oodml.study.grid import plan
from oodml.study.run import prepare, run_missing
from oodml.study.store import RemoteStore, Store

STUDENT = {"name": "distil", "base": "margin", "teacher": {"method": "wide"}, "gamma": 1.0}
METHODS = {"student": STUDENT, "wide": {"name": "margin", "run": {"embedding_dim": 16}}}


@pytest.fixture
def planned(noise, study, splits):
    """Plans a study; `changes` replace settings."""
    return lambda **changes: plan(study(**{"methods": METHODS} | changes), list(load_splits(splits)))


def test_the_teacher_is_the_run_of_its_label_with_all_else_equal(planned):
    runs = planned(seeds=[0, 1], settings={"short": {}, "long": {"steps": 4}})
    by_id = {run.id: run for run in runs}
    students = [run for run in runs if run.method.startswith("student")]
    assert len(students) == 8
    for run in students:
        teacher = by_id[run.teacher]
        assert teacher.method == run.method.replace("student", "wide") and teacher.teacher is None
        assert (teacher.split, teacher.seed, teacher.config.steps) == (run.split, run.seed, run.config.steps)
        assert run.config.method["teacher"] == {"run": teacher.id}
        assert (teacher.config.embedding_dim, run.config.embedding_dim) == (16, 8)


def test_a_student_is_identified_by_what_its_teacher_computes_and_not_by_its_label(planned):
    def students(**changes):
        return {run.id for run in planned(**changes) if run.teacher}

    renamed = {"student": {**STUDENT, "teacher": {"method": "other"}}, "other": METHODS["wide"]}
    wider = {**METHODS, "wide": {"name": "margin", "run": {"embedding_dim": 32}}}
    assert students(methods=renamed) == students()
    assert not students(methods=wider) & students()


def test_the_base_of_a_wrapper_may_have_a_teacher(planned):
    runs = planned(methods={**METHODS, "student": {"name": "uniform_prior", "base": STUDENT}})
    taught = [run for run in runs if run.teacher]
    assert taught and all(run.config.method["base"]["teacher"] == {"run": run.teacher} for run in taught)


def test_a_study_trains_the_teacher_first_and_the_student_from_it(noise, study, splits, tmp_path):
    table = oodml.run_study(study(methods=METHODS), tmp_path / "study", quiet=True)
    assert table.trained == ["student", "wide"] and not table.missing
    run = next(run for run in prepare(study(methods=METHODS), Store(tmp_path / "study"), quiet=True) if run.teacher)
    student = tmp_path / "study" / "runs" / run.id
    by_path = {**STUDENT, "teacher": str(student.parent / run.teacher)}
    alone = oodml.train(run.config.model_copy(update={"method": by_path, "out": str(tmp_path / "alone")}))
    assert json.loads((student / "result.json").read_text())["selected"]["scores"] == alone.scores

    shutil.move(tmp_path / "study", tmp_path / "moved")
    shutil.rmtree(tmp_path / "moved" / "runs" / run.teacher)
    assert oodml.load_embedder(tmp_path / "moved" / "runs" / run.id).dim == 8  # no longer needed


def test_a_search_for_the_epoch_has_the_same_teacher(noise, study, splits, tmp_path):
    run = {**study().run, "selection": "val-then-full"}
    assert not oodml.run_study(study(methods=METHODS, run=run), tmp_path / "study", quiet=True).missing


def test_the_teacher_of_a_student_is_fetched_from_a_url(noise, study, splits, tmp_path, monkeypatch):
    url = f"file://{tmp_path}/bucket"
    runs = prepare(study(methods=METHODS, splits=f"{splits}#easy"), RemoteStore(url), quiet=True)
    student, teacher = runs
    assert execute(teacher, RemoteStore(url)) == "done"
    monkeypatch.setenv("OODML_CACHE", str(tmp_path / "another machine"))
    assert execute(student, RemoteStore(url)) == "done"


def test_students_wait_for_their_teachers_and_for_no_other_run(planned, tmp_path):
    runs, waves, store = planned(seeds=[0, 1]), [], Store(tmp_path)
    done = next(run.teacher for run in runs if run.teacher)
    store.write_json(f"runs/{done}/result.json", {})

    def engine(given, store):
        waves.append({run.id for run in given})
        for run in given:
            store.write_json(f"runs/{run.id}/result.json", {})
            yield run, "done"

    run_missing(runs, store, engine, quiet=True)
    teachers = {run.teacher for run in runs if run.teacher} - {done}
    ready = {run.id for run in runs if run.teacher == done}
    assert waves == [teachers | ready, {run.id for run in runs} - teachers - ready - {done}]


def test_the_student_of_a_teacher_that_failed_says_so(planned, tmp_path):
    store, run = Store(tmp_path), next(run for run in planned() if run.teacher)
    assert execute(run, store) == "failed"
    assert f"The teacher, run {run.teacher}, has not finished" in store.failure(run.id)


def test_a_student_is_not_tried_without_its_teacher(planned, tmp_path, monkeypatch):
    tried = []
    monkeypatch.setattr(study_status, "calibration", lambda run: tried.append(run.method) or 2.0)
    runs = planned()
    assert study_status.measured_seconds(study_status.status(runs, Store(tmp_path)), runs) == 2.0 * len(runs)
    assert tried == ["wide"]


@pytest.mark.parametrize(
    ("teacher", "message"),
    [
        ({"method": "wid"}, "Unknown teacher of methods.student: 'wid'. Did you mean 'wide'"),
        ({"method": "student"}, "methods.student: 'student' from 'student' is circular"),
        ({"method": "wide", "seed": 1}, r'teacher is the folder .* \{"run": ID\}, or in a study \{"method": LABEL\}'),
    ],
)
def test_a_teacher_that_cannot_be_is_refused_before_anything_runs(planned, teacher, message):
    with pytest.raises(oodml.OodmlError, match=message):
        planned(methods={**METHODS, "student": {**STUDENT, "teacher": teacher}})
