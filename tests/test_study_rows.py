"""Rows of studies from files: what counts once, what is refused, and what `hardsight study` says of bad input."""

import csv
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from hardsight.cli import main
from hardsight.errors import InputError
from hardsight.studies import read_results
from hardsight.studies.claims import JUDGES, Claim
from hardsight.studies.rowfiles import read_rows

GAINS = [0.01, 0.012, 0.008, 0.011]
CE = [0.90, 0.92, 0.91, 0.93]


def lines_of(**columns):
    """Rows of el-mnist: the accuracy by loss, one per seed."""
    rows = [(loss, seed, value) for loss, values in columns.items() for seed, value in enumerate(values)]
    return [f"{loss.replace('_', ':')},{seed},{value}" for loss, seed, value in rows]


ROWS = lines_of(ce=CE, mirror=[a + b for a, b in zip(CE, GAINS, strict=True)])


def write(path, lines, titles="loss,seed,accuracy"):
    path.write_text("\n".join([titles, *lines]) + "\n", encoding="utf-8")
    return path


def read(path, lines, **titles):
    return read_results("el-mnist", write(path, lines, **titles))


def mirror(results):
    return next(line for line in results.lines("accuracy") if line.levels == ("mirror",))


def test_rows_that_are_there_twice_count_once(tmp_path):
    once, twice = read(tmp_path / "a.csv", ROWS), read(tmp_path / "b.csv", [*ROWS, *reversed(ROWS)])
    assert mirror(twice) == mirror(once)
    assert (mirror(twice).n, mirror(twice).pairs, twice.finished, len(twice.rows)) == (4, 4, 8, 8)
    assert mirror(twice).p == pytest.approx(stats.ttest_1samp(GAINS, 0).pvalue)
    claim = Claim("EL", "", "", "el-mnist", "difference", "accuracy", "loss=mirror", expected="higher")
    ((_, finding),) = JUDGES["difference"].function(claim, twice)
    assert (finding.n, finding.verdict) == (4, "yes")


def test_a_file_twice_is_no_more_than_once(tmp_path):
    file = write(tmp_path / "a.csv", ROWS)
    assert mirror(read_results("el-mnist", [file, file])) == mirror(read_results("el-mnist", file))


def test_seeds_as_other_programs_write_them_are_the_same_seeds(tmp_path):
    floats = [line.replace(f",{k},", f",{k}.0,") for line in ROWS for k in range(4) if f",{k}," in line]
    assert mirror(read(tmp_path / "a.csv", [*ROWS, *floats])).n == 4


def test_over_networks_a_repeated_seed_does_not_weigh_more(tmp_path):
    path = write(
        tmp_path / "a.csv",
        ["resnet50-32,0,0.2,avh,all", "resnet50-32,0,0.2,avh,all", "resnet50-32,1,0.5,avh,all"],
        "network,seed,agreement,score,bin",
    )
    values = read_results("people-bins", path).values("agreement", "network")
    assert [*values.values()] == [{"resnet50-32": pytest.approx(0.35)}]


def test_a_cell_in_parts_is_one_row(tmp_path):
    results = read(tmp_path / "a.csv", ["ce,0,0.9,", "ce,0,,0.95"], titles="loss,seed,accuracy,best")
    assert [(row["accuracy"], row["best"]) for row in results.rows] == [("0.9", "0.95")]


def test_what_is_not_finite_is_no_measurement_and_pairs_say_so(tmp_path):
    lines = [line.replace(f",{CE[1]}", ",nan") for line in ROWS]
    results = read(tmp_path / "a.csv", [*lines, "ce,1,nan"])
    assert (mirror(results).n, mirror(results).pairs) == (4, 3)
    kept = [gain for k, gain in enumerate(GAINS) if k != 1]
    assert mirror(results).difference == pytest.approx(np.mean(kept))
    (_, rows), *_ = results.tables(["accuracy"])
    assert [(row["n"], row["pairs"]) for row in rows] == [(3, None), (4, 3)]
    (_, rows), *_ = read(tmp_path / "b.csv", ROWS).tables(["accuracy"])
    assert "pairs" not in rows[0]  # n says it


def test_rows_say_their_scale(tmp_path):
    quick = [f"{line},hardsight study run el-mnist --scale quick --where x" for line in ROWS]
    titles = "loss,seed,accuracy,rerun"
    results = read(tmp_path / "a.csv", quick, titles=titles)
    assert results.scale == "quick"
    assert all(np.isnan(line.paper) for line in results.lines("accuracy"))  # the paper's numbers are not beside these
    with pytest.raises(InputError, match="quick, not paper"):
        read_results("el-mnist", tmp_path / "a.csv", "paper")
    assert read(tmp_path / "b.csv", ROWS).scale == "paper"


def test_a_byte_order_mark_and_a_blank_line_change_nothing(tmp_path):
    path = write(tmp_path / "a.csv", [*ROWS[:4], "", *ROWS[4:]])
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert mirror(read_results("el-mnist", path)).n == 4


@pytest.mark.parametrize(
    ("lines", "titles", "words"),
    [
        ([*ROWS, "ce,0,0.5"], None, "accuracy.*loss=ce.*seed=0"),
        ([], None, "holds no rows"),
        (["ce,0,x"], None, "'x' for accuracy"),
        (["ce,,0.5"], None, "seed ''"),
        (["ce,mean,0.5"], None, "seed 'mean'"),
        (["ce,0.5,0.5"], None, "seed '0.5'"),
        (["ce,-1,0.5"], None, "seed '-1'"),
        (["ce,0"], None, "row 1 .* 2 cells"),
        (["ce,0,0.5,7"], None, "4 cells"),
        (['"ce,0,0.5'], None, "not a CSV"),
        (["ce,0,0.5"], "loss,seed,seed", "two columns 'seed'"),
        (["ce,0.5"], "loss,accuracy", "column seed"),
        (["0,0.5"], "seed,accuracy", "no column loss"),
        (["ce,0,0.5"], "loss,seed,other", "number.*el-mnist"),
        (["unheard of,0,0.5"], None, "rows.*study el-mnist"),
        (["pacs,ce,0,0.5"], "study,loss,seed,accuracy", "rows.*study el-mnist"),
        (["ce,0,accuracy,0.5", "ce,0,accuracy,0.6"], "loss,seed,quantity,value", "numbers of accuracy"),
    ],
)
def test_rows_that_cannot_be_counted_on_are_refused(lines, titles, words, tmp_path):
    with pytest.raises(InputError, match=words):
        read(tmp_path / "rows.csv", lines, **({"titles": titles} if titles else {}))


def test_rows_without_what_a_study_derives_from_are_refused(tmp_path):
    path = write(tmp_path / "a.csv", ["mnist-usps,cbst,0,0.5"], "pair,method,seed,test_accuracy")
    with pytest.raises(InputError, match="round"):
        read_results("adaptation", path)


def test_bytes_that_are_no_text_are_refused(tmp_path):
    (tmp_path / "a.csv").write_bytes(bytes(range(256)))
    with pytest.raises(InputError, match="not a CSV"):
        read_rows(tmp_path / "a.csv")


def test_a_page_says_first_how_many_lines_differ(tmp_path):
    more = [a + b for a, b in zip(CE, GAINS, strict=True)]
    less, same = ([a - b for a, b in zip(CE, of, strict=True)] for of in (GAINS, [0.01, -0.01, 0.02, -0.02]))
    results = read(tmp_path / "a.csv", [*lines_of(ce=CE, mirror=more, mse=less), *lines_of(el_exact=same)])
    page = results.page(["accuracy"])
    sentence = "of 3 lines compared with ce: 1 above it, 1 below, 1 not shown to differ"
    assert sentence in page
    assert page.index(sentence) < page.index("<table>")
    assert "16 cells" in page  # how many there should be is not known of a file
    above = read(tmp_path / "b.csv", lines_of(ce=CE, mirror=more))
    assert above.sentence("accuracy").endswith("1 above it, 0 below, 0 not shown to differ.")
    weak = [a + b for a, b in zip(CE, [0.005, 0.02, 0.012, 0.022], strict=True)]
    assert stats.ttest_rel(weak, CE).pvalue < 0.05 < 2 * stats.ttest_rel(weak, CE).pvalue
    corrected = read(tmp_path / "c.csv", lines_of(ce=CE, mirror=weak, mse=weak))
    assert corrected.sentence("accuracy").endswith("0 above it, 0 below, 2 not shown to differ.")


def test_lines_of_a_figure_are_named_once_and_numbers_with_their_column(tmp_path):
    lines = [
        f"{r},{m},{s},{a},{b}" for r in (10, 100) for m, a, b in (("ce", 0.5, ""), ("crt", 0.6, 0.7)) for s in (0, 1)
    ]
    path = write(tmp_path / "a.csv", lines, "ratio,method,seed,all,medium")
    first, second = read_results("cifar10-lt", path).figure(["all", "medium"]).axes
    names = {tick.get_text(): place for tick, place in zip(first.get_yticklabels(), first.get_yticks(), strict=True)}
    assert [*names] == ["ratio 10, ce", "ratio 10, crt", "ratio 100, ce", "ratio 100, crt"]
    assert not any(tick.get_visible() and tick.label1.get_visible() for tick in second.yaxis.get_major_ticks())
    drawn = second.containers[0][0].get_xydata()
    assert drawn.tolist() == [[70, names["ratio 10, crt"]], [70, names["ratio 100, crt"]]]


# ---------------------------------------------------------------------------------------------------------------------
# The command.


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "rows.csv", ROWS)
    (tmp_path / "empty").mkdir()
    (tmp_path / "notes.md").write_text("My notes.")
    (tmp_path / "page.html").write_text("<p>My page.</p>")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken/dynamics-observations.csv").write_text("claim,n\nx,1\n")
    return tmp_path


SHOW = ["el-mnist", "--rows", "rows.csv"]


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["list", "el-mnist"], "NAME"),
        (["list", "--seeds", "3"], "--seeds"),
        (["table", *SHOW, "--seeds", "3"], "--seeds"),
        (["table", *SHOW, "--weights", "w.pt"], "--weights"),
        (["table", *SHOW, "--scale", "huge"], "scale"),
        (["table", *SHOW, "--where", "los=ce"], "loss"),
        (["table", *SHOW, "--where", "loss=cee"], "ce"),
        (["table", *SHOW, "--where", "loss"], "where"),
        (["table", *SHOW, "--where", "seed=9"], "seed=9"),
        (["table", *SHOW, "--measures", "margin"], "these measures"),
        (["table", *SHOW, "--measures", "Genauigkeit·🎲"], "Genauigkeit·🎲"),
        (["table", "el-mnist", "--rows", "empty"], "folder"),
        (["table", "el-mnist", "--rows", "notes.md"], "notes.md"),
        (["table", "學習", "--rows", "rows.csv"], "學習"),
        (["run", "two-gaussians", "--scale", "smoke", "--seeds", "0"], "seeds"),
        (["run", "two-gaussians", "--scale", "smoke", "--rows", "rows.csv"], "--rows"),
        (["run", "two-gaussians", "--scale", "smoke", "--weights", "w.pt"], "weights"),
        (["run", "two-gaussians", "--scale", "smoke", "--network", "timm:x"], "network"),
        (["run", "two-gaussians", "--scale", "smoke", "--to", "table.html"], ".md"),
        (["table", *SHOW, "--to", "table.csv"], ".md"),
        (["table", *SHOW, "--to", "notes.md"], "already"),
        (["table", *SHOW, "--to", "empty"], "to"),
        (["table", *SHOW, "--to", "notes.md/table.md"], "to"),
        (["page", *SHOW, "--to", "page.md"], ".html"),
        (["page", *SHOW, "--to", "page.html"], "already"),
        (["figure", *SHOW, "--to", "figure.html"], ".png"),
        (["figure", *SHOW, "--to", "nowhere/figure.png"], "nowhere"),
        (["claims", "AVHH", "--rows", "empty"], "AVH"),
        (["claims", "--rows", "rows.csv"], "folder"),
        (["claims", "--rows", "nowhere"], "nowhere"),
        (["claims", "--rows", "broken"], "column measured"),
        (["claims", "--rows", "empty", "--scale", "huge"], "scale"),
        (["claims", "--rows", "empty", "--where", "loss=ce"], "--where"),
        (["claims", "--rows", "empty", "--to", "claims.pdf"], ".html"),
        (["page", "el-table-1", "--rows", "el-mnist=rows.csv"], "table"),
    ],
)
def test_bad_input_is_one_sentence(arguments, named, folder, capsys):
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    with pytest.raises(SystemExit) as stopped:
        main(["study", *arguments])
    captured = capsys.readouterr()
    assert stopped.value.code == 2
    assert named in captured.err
    assert "Traceback" not in captured.err
    assert len(captured.err.strip().splitlines()) == 1
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def test_a_page_that_another_program_wrote_is_kept_by_default_too(folder, capsys):
    (folder / "el-mnist.html").write_text("<p>Mine.</p>")
    with pytest.raises(SystemExit):
        main(["study", "page", *SHOW])
    assert (folder / "el-mnist.html").read_text() == "<p>Mine.</p>"


@pytest.mark.parametrize(
    ("arguments", "file"),
    [
        (["table", *SHOW, "--to"], "table.md"), (["page", *SHOW, "--to"], "new.html"),
        (["figure", *SHOW, "--to"], "figure.png"), (["claims", "AMC", "--rows", "empty", "--to"], "claims.md"),
        (["claims", "AMC", "--rows", "empty", "--to"], "claims.html"),
        (["table", "el-table-1", "--rows", "el-mnist=rows.csv", "--to"], "gathered.md"),
    ],
)  # fmt: skip
def test_what_it_wrote_it_writes_again(arguments, file, folder):
    main(["study", *arguments, file])
    first = Path(file).read_bytes()
    main(["study", *arguments, file])
    assert Path(file).read_bytes() == first


def test_an_empty_folder_of_rows_has_no_verdict_but_those_of_the_papers_own_numbers(folder, capsys):
    main(["study", "claims", "AMC", "--rows", "empty"])
    printed = capsys.readouterr().out
    assert "not run" in printed
    with Path("rows.csv").open(newline="") as file:
        assert len(list(csv.DictReader(file))) == 8  # nothing was written over
