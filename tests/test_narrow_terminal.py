"""What the commands print, on 80 columns too: no number and no sentence is torn apart, no name is changed."""

import importlib
import io
import pkgutil
import re

import pytest
from rich.console import Console
from typer.testing import CliRunner

import oodml.cli
from oodml._progress import progress_bar, tell
from oodml.adaptation import FewShot
from oodml.adaptation.result import over_episodes
from oodml.cli._app import app, out, print_table
from oodml.cli.methods import reflow
from oodml.encoders import EncoderScore

for module in pkgutil.iter_modules(oodml.cli.__path__):
    importlib.import_module(f"oodml.cli.{module.name}")  # they add their commands


@pytest.fixture
def narrow(monkeypatch):
    monkeypatch.setattr(out, "_width", 80)


def lines_of(*command: str) -> list[str]:
    shown = CliRunner().invoke(app, list(command))
    assert shown.exit_code == 0, shown.output
    assert max(map(len, shown.stdout.splitlines())) <= 80
    return shown.stdout.splitlines()  # progress bars go to stderr


@pytest.mark.usefixtures("narrow")
def test_means_and_their_intervals_stay_on_one_line(monkeypatch):
    zero, few = {"recall@1000": over_episodes([0.1, 0.9])}, {"recall@1000": over_episodes([0.9, 0.1])}
    about = {"dataset": "glyphs", "split": "default", "episodes": 2, "seconds": 3.0, "notes": []}
    found = [FewShot(zero, few, about | {"shots": n, "lr": 1e-5, "steps": steps}) for n, steps in ((2, 1000), (10, 0))]
    monkeypatch.setattr("oodml.adaptation.few_shots", lambda *_, **__: found)
    lines = lines_of("fewshot", "runs/some", "--shots", "2", "--shots", "10")
    rows = [line for line in lines if line.strip().startswith("recall@1000")]
    assert len(rows) == 2 and all(row.count("50.00 [0.00–100.00]") == 2 for row in rows)
    assert all(re.search(r"0\.00 ± \d+\.\d\d *$", row) for row in rows)  # the gain has no bounds
    assert "2 shots: 1000 steps at rate 1e-05, 3.0 s" in lines and "10 shots: nothing adapted, 3.0 s" in lines


@pytest.mark.usefixtures("narrow")
def test_what_all_rows_have_in_common_is_said_once(monkeypatch):
    scores = {"recall@1": 0.5, "map@1000": 0.25, "nmi": 1.0}
    found = [
        EncoderScore(name, "default", None, "normalised", 8, scores)
        for name in ("vit_base_patch32_clip_224.openai", "tiny")
    ]
    monkeypatch.setattr("oodml.encoders.evaluate_pretrained", lambda *_, **__: found)
    lines = lines_of("pretrained", "glyphs")
    assert lines[0].strip() == "test classes, %, no training · form normalised · split default"
    assert any(re.fullmatch(r" *vit_base_patch32_clip_224.openai +50.0 +25.0 +100.0 *", line) for line in lines)


@pytest.mark.usefixtures("narrow")
def test_two_long_paths_are_folded_and_the_number_beside_them_is_whole(capsys):
    first, second = "class/" + "a" * 70 + ".png", "class/" + "b" * 70 + ".png"
    print_table("Shared pictures", ["training picture", "target picture", "likeness"], [(first, second, "0.987")])
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert any(re.search(r" 0\.987 *$", line) for line in lines)
    assert "".join(lines).count("b") == 70  # nothing of the name is lost


@pytest.mark.usefixtures("narrow")
def test_numbers_are_whole_however_many_columns_there_are(capsys):
    scores = [f"{50 + i / 10:.1f} ±1.25" for i in range(12)]
    print_table("By FID", ["method", *(f"split number {i}" for i in range(12)), "AGS"], [("margin", *scores, "–")] * 2)
    shown = capsys.readouterr().out
    assert all(shown.count(score) == 2 for score in scores) and shown.count("margin") == 2


@pytest.mark.usefixtures("narrow")
def test_a_leaderboard_of_eight_splits_and_long_names_fits(monkeypatch, tmp_path):
    from oodml.study.table import Row, StudyTable

    rows = [
        Row(method, f"shift-{i}", 12.3 * i, seed, {"recall@1": 0.96 - 0.01 * i + 0.02 * seed}, kind=kind)
        for method, kind, seeds in (("R-margin", "trained", 2), ("untrained tf_efficientnet_lite0", "untrained", 1))
        for i in range(8)
        for seed in range(seeds)
    ]
    monkeypatch.setattr("oodml.study.load_study", lambda _: StudyTable(rows))
    shown = CliRunner().invoke(app, ["study", "leaderboard", str(tmp_path)], catch_exceptions=False).stdout
    table, sentences = shown.split("Not trained here: ")
    assert max(map(len, table.splitlines())) <= 80
    (row,) = [line for line in table.splitlines() if "R-margin" in line]
    assert re.search(r"\[\d\d\.\d–100\.0\]", row) and len(re.findall(r" \d\d\.\d(?= |$)", row)) == 9
    assert sentences.startswith("untrained tf_efficientnet_lite0.") and "points of AGS" in sentences


@pytest.mark.usefixtures("narrow")
def test_words_of_headings_stay_whole_where_they_can(capsys):
    columns = ["method", *("alignment", "pi_inter", "pi_intra", "pi_ratio", "rho", "rho:drop10", "uniformity")]
    print_table("Structure", columns, [("R-margin", *["0.5595"] * 7)])
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80 and any(all(name in line for name in columns) for line in lines)


@pytest.mark.parametrize("group", [(), ("study",), ("splits",)])
def test_help_cuts_no_summary(group):
    shown = CliRunner(env={"COLUMNS": "80"}).invoke(app, [*group, "--help"]).stdout
    assert not [line for line in shown.splitlines() if line.startswith("  ") and line.endswith(("...", "…"))]


@pytest.mark.usefixtures("narrow")
def test_a_missing_number_does_not_let_the_others_be_broken(capsys):
    rows = [("x" * 60, "1,234.56 ± 1.23", "99.99"), ("y", "–", "1.00")]
    print_table("Scores", ["a", "b", "c"], rows)
    shown = capsys.readouterr().out
    assert "1,234.56 ± 1.23" in shown and "99.99" in shown and "x" * 60 in shown


@pytest.mark.usefixtures("narrow")
def test_every_method_is_described_within_the_width_one_line_an_option():
    from oodml.losses import loss_records
    from oodml.methods import method_records
    from oodml.miners import miner_records

    for record in (*method_records(), *loss_records(), *miner_records()):
        lines = lines_of("methods", record.name)
        for option in record.defaults:
            assert any(re.match(rf" {option} ", line) for line in lines), (record.name, option)
    lines = lines_of("methods", "sharing")
    assert "    even batches: L(T; φ) − γ r(R(φ), R(φ*))" in lines
    assert "    odd batches: L(T*; φ*) − γ r(R(φ), R(φ*))" in lines


def test_reflow_fills_paragraphs_and_keeps_what_is_set_apart():
    text = "one two three\nfour\n\n    a = b    c = d\n\nArgs:\n    x: first\n        second\n    y: third"
    assert reflow(text, 40) == ("one two three four\n\n    a = b    c = d\n\nArgs:\n    x: first second\n    y: third")
    assert reflow(text, 14) == (
        "one two three\nfour\n\n    a = b\n    c = d\n\nArgs:\n    x: first\n        second\n    y: third"
    )


def test_a_name_that_is_a_loss_and_a_miner_is_offered_once():
    told = str(CliRunner().invoke(app, ["methods", "margn"]).exception)
    assert "Did you mean 'margin'" in told and told.count(" npair,") == 1


@pytest.mark.parametrize("width", [60, 80, 120])
def test_a_progress_bar_keeps_its_count_and_times_whole(width: int):
    bar = progress_bar()
    bar.add_task("epoch 12 · recall@1 val 51.2, test 48.1 · loss 0.312 · 5,231 img/s", total=1500, completed=450)
    shown = Console(width=width, file=io.StringIO())
    shown.print(bar.get_renderable())
    (line,) = shown.file.getvalue().splitlines()
    assert line.startswith("epoch 12 ·") and line.rstrip().endswith("450/1500 0:00:00 eta -:--:--")


NAMES = ("photo [edited].jpg", "x[/y].jpg", "[red]:cat:[/red]")  # what rich would read as markup or as an emoji


@pytest.mark.parametrize("name", NAMES)
def test_names_are_printed_as_they_are(name: str, capsys):
    print_table(f"title {name}", ["what", f"head {name}"], [(name, 1)])
    out.print(name, highlight=False)
    tell("note", name)
    printed = capsys.readouterr()
    assert printed.out.count(name) == 4 and printed.err == f"note {name}\n"


@pytest.mark.parametrize("name", NAMES)
def test_a_progress_bar_shows_names_as_they_are(name: str):
    bar = progress_bar()
    bar.add_task(name)
    shown = Console(width=120, file=io.StringIO())
    shown.print(bar.get_renderable())
    assert shown.file.getvalue().startswith(name)
