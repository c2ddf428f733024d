"""Every claim of the three papers with its verdict, from rows of studies: the page ``docs/results/claims.md``.

A claim is judged line by line (`hardsight.studies.claims`); here the lines become a verdict, and the verdicts a page.
"""

from __future__ import annotations

import html
import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from hardsight.errors import InputError, MissingPathError
from hardsight.printing import Result, cell, html_table, interval, text_table
from hardsight.registry import did_you_mean
from hardsight.stats import FEW, holm
from hardsight.studies.claims import JUDGES, NO, NOT_SHOWN, PARTLY, UNMEASURED, YES, Claim, Finding, all_claims
from hardsight.studies.rowfiles import read_results, read_rows
from hardsight.studies.study import STUDIES
from hardsight.studies.tables import html_page, markdown_table

HOLDS, IN_PART, FAILS, OPEN, NOT_RUN, NOT_TESTABLE = VERDICTS = (
    "holds", "partly", "does not hold", "not shown", "not run", "not testable"
)  # fmt: skip
PAPERS = {
    "AVH": "Angular Visual Hardness (ICML 2020)",
    "EL": "Encouraging Loss (AAAI 2022)",
    "AMC": "AMC-Loss (CVPR workshops 2020)",
}
_TITLE = "Do the papers' claims hold?"
_COMMAND = "hardsight study claims --rows docs/results --to docs/results/claims.md"
_LEAD = (
    "Every claim that the three papers make about data, in their abstracts, captions and text, judged by fixed rules "
    "from measurements that are committed beside this page. Trainings here are shorter than in the papers and often "
    "use other networks or data: a verdict is about what was run here."
)
_LEVEL = 0.05
_MOST_LINES = 2  # that the summary shows one by one
_RECORDED = ("claim", "n", "measured", "verdict")  # columns of verdicts on recorded runs
# What a row should say about itself, and the columns that say it.
_PROVENANCE = {
    "seed": ("seed",), "versions": ("versions", "torch"), "hardware": ("hardware",), "seconds": ("seconds",),
    "revision": ("revision",), "command": ("rerun",),
}  # fmt: skip
_MEANING = f"""
- **{HOLDS}**: on every line that the claim is about (a loss, a network, an experiment) the 95% interval lies on
  the claimed side.
- **{IN_PART}**: on some lines; or a rule with several parts is met in part.
- **{FAILS}**: on no line, and on at least one the interval lies on the other side, or short of the effect that the
  paper reports.
- **{OPEN}**: no line decides. The interval contains 0 and does not exclude the paper's effect, or there are fewer than
  three seeds. More seeds could tell.
- **{NOT_RUN}**: it could be tested with the data at hand, but nothing has been run.
- **{NOT_TESTABLE}**: data or pretrained weights are missing.

The last three say nothing about the claim; they differ in what would help.

Intervals are Student's over seeds, paired by seed, unless stated otherwise. p-values are corrected by Holm's method
over the lines of a claim, and a line counts only if its corrected p-value is below 0.05 as well. † marks a verdict that
changes if the correction is over **all** {{tests}} lines of the page with a test. Recorded trainings are judged network
by network, by the rules at the end: intervals are over images, and nothing is corrected.
"""


class Entry(NamedTuple):
    """A claim with its verdict.

    Attributes:
        claim: The claim.
        verdict: One of `VERDICTS`.
        lines: What it rests on: the levels of a line, or the name of a network, and what was measured.
        stands: Whether the verdict is the same after Holm's correction over the lines of all claims.
    """

    claim: Claim
    verdict: str
    lines: tuple[tuple[str, Finding], ...]
    stands: bool = True

    @property
    def n(self) -> str:
        """Units that the lines rest on: from the fewest to the most; of recorded runs, how many there are."""
        judge = JUDGES[self.claim.judge] if self.lines else None
        measured = [finding for _, finding in self.lines if finding.verdict != UNMEASURED]
        if judge is not None and judge.of == "run" and not judge.over_nets:
            return f"{len(measured)} nets"
        numbers = sorted({finding.n for finding in measured})
        return "–" if not numbers else cell(numbers[0]) + (f" to {cell(numbers[-1])}" if len(numbers) > 1 else "")

    @property
    def measured(self) -> str:
        """The lines in words, or why there are none."""
        if not self.lines:
            return self.claim.not_run or self.claim.not_testable
        judge = JUDGES[self.claim.judge]
        if judge.of == "run":
            return f"{judge.number}: " + "; ".join(f"{name} {_short(finding)}".strip() for name, finding in self.lines)
        return "; ".join(f"{on}: {finding.measured}" if on else finding.measured for on, finding in self.lines)

    @property
    def brief(self) -> str:
        """The lines in short: how many of several say what, and how far their numbers reach."""
        measured = [finding for _, finding in self.lines if finding.verdict != UNMEASURED]
        if len(measured) <= _MOST_LINES:
            return self.measured
        counts = Counter(supports(measured))
        texts = ", ".join(f"{counts[verdict]} {verdict}" for verdict in (YES, PARTLY, NO, NOT_SHOWN) if counts[verdict])
        if JUDGES[self.claim.judge].of == "run":
            return f"of {len(measured)} nets: {texts}"
        first, last = (pick(measured, key=lambda finding: finding.value or 0).measured for pick in (min, max))
        number, _, units = re.sub(r" \[.*?\]", "", last).rpartition(", ")  # intervals are in the tables
        units = units.partition(" ")[2]
        return f"of {len(measured)} comparisons: {texts}; from {first.partition(' [')[0]} to {number}, {self.n} {units}"

    @property
    def caveat(self) -> str:
        """Why a verdict rests on few seeds; empty where it does not."""
        few = [f.n for _, f in self.lines if f.verdict != UNMEASURED and f.n < FEW]
        return self.claim.few if few else ""

    @property
    def studies(self) -> str:
        """The studies that feed it."""
        return ", ".join(dict.fromkeys(filter(None, (part.study for part in self.claim.experiments)))) or "–"


def verdict_of(lines: Sequence[Finding], p: Sequence[float] = (), p_effect: Sequence[float] = ()) -> str:
    """The verdict on a claim from its lines; the rule is at the head of the page.

    Args:
        lines: The findings.
        p, p_effect: Their corrected p-values; those of the lines, corrected within the claim, if not given.
    """
    answers = set(supports(lines, p, p_effect)) - {UNMEASURED}
    if not answers:
        return NOT_RUN
    if answers == {YES}:
        return HOLDS
    if answers & {YES, PARTLY}:
        return IN_PART
    return FAILS if NO in answers else OPEN


def supports(lines: Sequence[Finding], p: Sequence[float] = (), p_effect: Sequence[float] = ()) -> list[str]:
    """What each line says if it stands after the correction; a rule without a p-value does."""
    p = p or corrected([line.p for line in lines])
    p_effect = p_effect or corrected([line.p_effect for line in lines])
    answers = []
    for line, tested, short in zip(lines, p, p_effect, strict=True):
        decided = line.p is None or tested < _LEVEL or (line.verdict == NO and short < _LEVEL)
        answers.append(line.verdict if decided or line.verdict not in (YES, NO) else NOT_SHOWN)
    return answers


def corrected(p: Sequence[float | None]) -> list[float]:
    """Holm's correction; NaN where there is no test."""
    return holm(np.array([math.nan if value is None else value for value in p])).tolist()


def judge_claim(claim: Claim, folder: Path, scale: str = "paper") -> tuple[tuple[str, Finding], ...]:
    """The lines of a claim from the rows in a folder, experiment by experiment; none if it says why it has none.

    Rows that `hardsight.studies.study` wrote into the folder take the place of all committed ones of that study.
    """
    if claim.also:
        parts = {}
        for part in claim.experiments:
            name = part.study if _written(part, folder, scale).is_file() else part.on
            parts.setdefault(name, judge_claim(part, folder, scale))
        return tuple((", ".join(filter(None, (name, on))), line) for name, lines in parts.items() for on, line in lines)
    if claim.not_testable or not claim.judge:
        return ()
    judge = JUDGES[claim.judge]
    if judge.of == "nothing":
        return tuple(judge.function(claim))
    new = _written(claim, folder, scale)
    if claim.not_run and not new.is_file():
        return ()
    files = [new] if new.is_file() else [folder / name for name in claim.rows]
    missing = [file.name for file in files if not file.is_file()]
    if missing:
        return (("", Finding(UNMEASURED, f"there is no {' and no '.join(missing)}", 0)),)
    if judge.of == "study":
        return tuple(judge.function(claim, read_results(claim.study, files)))
    rows = [row for file in files for row in read_rows(file, _RECORDED) if row["claim"] == claim.claim]
    return tuple(_recorded(row, files[0]) for row in rows) or (("", Finding(UNMEASURED, "no such rows", 0)),)


def _written(claim: Claim, folder: Path, scale: str) -> Path:
    """Where the study of a claim writes its rows."""
    return folder / f"{claim.study}-{scale}" / "rows.csv"


def _recorded(row: dict[str, Any], file: Path) -> tuple[str, Finding]:
    """A row of `hardsight.studies.observations` as it was judged."""
    name = row.get("net") or f"{row.get('network', '')}-{row.get('seed', '')}"
    try:
        numbers = [float(row[name]) if row.get(name) else None for name in ("value", "low", "high")]
        finding = Finding(row["verdict"], row["measured"], int(row["n"]), *numbers)
    except ValueError as error:
        raise InputError(f"rows: {file} has a row of {name} without its numbers: {error}.") from None
    if finding.verdict not in (YES, PARTLY, NO, NOT_SHOWN, UNMEASURED):
        raise InputError(f"rows: {file} has the verdict {finding.verdict!r} for {name}, which no rule gives.")
    return name, finding


def ledger(rows: str | Path, papers: Sequence[str] = (), scale: str = "paper") -> Ledger:
    """Judge every claim of the three papers.

    Args:
        rows: Folder with rows of studies: files named as in ``published/claims.toml``, as in ``docs/results``, or what
            `hardsight.studies.study` wrote there.
        papers: Only these: AVH, EL, AMC.
        scale: The scale of rows that a study wrote.

    Examples:
        >>> ledger("docs/results", ["AMC"]).entries[0].claim.paper  # doctest: +SKIP
        'AMC'
    """
    folder = Path(rows)
    if not folder.is_dir():
        raise MissingPathError(f"rows: there is no folder {folder}.")
    if scale not in (scales := dict.fromkeys(name for kind in STUDIES.values() for name in kind.scales)):
        raise InputError(f"scale: no study has the scale {scale!r}; {did_you_mean(scale, scales)}")
    for name in papers:
        if name not in PAPERS:
            raise InputError(f"papers: there is no paper {name!r}; {did_you_mean(name, PAPERS)}")
    asked = [claim for claim in all_claims() if not papers or claim.paper in papers]
    lines = [judge_claim(claim, folder, scale) for claim in asked]
    flat = [finding for part in lines for _, finding in part]
    p, p_effect = (iter(corrected([getattr(finding, name) for finding in flat])) for name in ("p", "p_effect"))
    entries = []
    for claim, part in zip(asked, lines, strict=True):
        findings = [finding for _, finding in part]
        everywhere = [[next(values) for _ in findings] for values in (p, p_effect)]
        verdict = NOT_TESTABLE if claim.not_testable else verdict_of(findings)
        stands = verdict == NOT_TESTABLE or verdict == verdict_of(findings, *everywhere)
        entries.append(Entry(claim, verdict, part, stands))
    return Ledger(tuple(entries), folder)


@dataclass(frozen=True)
class Ledger(Result):
    """The claims of the papers with their verdicts.

    Attributes:
        entries: In the order of the papers.
        path: The folder of rows that they are judged on.
    """

    entries: tuple[Entry, ...]
    path: Path

    def __repr__(self) -> str:
        counts = Counter(entry.verdict for entry in self.entries)
        return self._line(self.path, *(f"{counts[verdict]} {verdict}" for verdict in VERDICTS if counts[verdict]))

    @cached_property
    def papers(self) -> dict[str, list[Entry]]:
        """Entries by paper."""
        groups: dict[str, list[Entry]] = {}
        for entry in self.entries:
            groups.setdefault(entry.claim.paper, []).append(entry)
        return groups

    def summary(self) -> list[dict[str, Any]]:
        """How many claims of each paper have which verdict."""
        rows = []
        groups = self.papers | ({"all": list(self.entries)} if len(self.papers) > 1 else {})
        for paper, entries in groups.items():
            counts = Counter(entry.verdict for entry in entries)
            rows.append({"paper": PAPERS.get(paper, paper), "claims": len(entries)} | {v: counts[v] for v in VERDICTS})
        return rows

    def sentence(self) -> str:
        """How many claims were decided, and how."""
        counts = Counter(entry.verdict for entry in self.entries)
        return (
            f"Of {len(self.entries)} claims, {counts[HOLDS] + counts[IN_PART] + counts[FAILS]} are decided here: "
            f"**{counts[HOLDS]} hold, {counts[IN_PART]} hold in part, {counts[FAILS]} do not hold**. {counts[OPEN]} "
            f"were measured without a clear answer, {counts[NOT_RUN]} have not been run, and {counts[NOT_TESTABLE]} "
            "need data or weights that are not here. "
            f"† marks a verdict that changes if p-values are corrected over all {self.tests} tests of the page."
        )

    def headlines(self) -> list[str]:
        """The most important claims in short, by verdict: what was measured, and on what."""
        lines = []
        for entry in sorted(self.entries, key=lambda entry: VERDICTS.index(entry.verdict)):
            if entry.claim.headline:
                data = _data(entry.claim, ours=True)
                measured = f"{entry.brief}; {entry.caveat}" if entry.caveat else entry.brief
                lines.append(f"**{entry.verdict}**{_mark(entry)} – {_titled(entry.claim)}: {measured} ({data})")
        return lines

    def rows(self, paper: str) -> list[dict[str, Any]]:
        """A paper's claims, one row each."""
        return [
            {
                "verdict": _marked(entry), "claim": entry.claim.claim, "where": entry.claim.source,
                "measured": entry.measured, "n": _few(entry), "data": _data(entry.claim), "study": entry.studies,
            }
            for entry in self.papers.get(paper, ())
        ]  # fmt: skip

    def doubts(self) -> list[dict[str, Any]]:
        """What was checked where a paper is contradicted, and other caveats."""
        return [
            {"verdict": entry.verdict, "claim": f"{entry.claim.claim} ({entry.claim.paper}, {entry.claim.source})",
             "checked": entry.claim.checked}
            for entry in sorted(self.entries, key=lambda entry: entry.verdict != FAILS)
            if entry.claim.checked
        ]  # fmt: skip

    def rules(self) -> list[dict[str, Any]]:
        """The rule of every judge, and how many claims it decides."""
        used = Counter(entry.claim.judge for entry in self.entries if entry.claim.judge)
        return [{"judge": name, "claims": count, "rule": JUDGES[name].rule} for name, count in used.items()]

    def provenance(self) -> list[dict[str, Any]]:
        """Which rows there are, and what they say about themselves."""
        listed = []
        parts = (part for entry in self.entries for part in entry.claim.experiments)
        for name in dict.fromkeys(name for part in parts for name in part.rows):
            rows = read_rows(self.path / name) if (self.path / name).is_file() else []
            entry: dict[str, Any] = {"rows": name, "number": len(rows)}
            for fact, columns in _PROVENANCE.items():
                given = sum(any(row.get(column) for column in columns) for row in rows)
                entry[fact] = "yes" if rows and given == len(rows) else f"{given:,} of them" if given else "–"
            listed.append(entry)
        return listed

    @property
    def tests(self) -> int:
        """Lines with a p-value."""
        return sum(finding.p is not None for entry in self.entries for _, finding in entry.lines)

    def sections(self) -> Iterator[tuple[str, str, list[dict[str, Any]]]]:
        """Title, text and table of every part of the page."""
        if headlines := self.headlines():
            yield "In short", "\n\n".join([self.sentence(), "\n".join(f"- {line}" for line in headlines)]), []
        yield "By paper", "" if headlines else self.sentence(), self.summary()
        yield "How to read a verdict", _MEANING.format(tests=self.tests).strip(), []
        for paper in self.papers:
            yield PAPERS[paper], "", self.rows(paper)
        if doubts := self.doubts():
            text = "Where we contradict a paper, we suspect ourselves first. Contradictions come first, then caveats."
            yield "What was checked", text, doubts
        yield "The rules", "Each rule is a function of the rows; this is its docstring.", self.rules()
        if listed := self.provenance():
            text = (
                "Every new row of a study carries its seed, versions, hardware, seconds, the revision of the source, "
                "and the command that computes it again. Older rows lack what is marked –, which cannot be recovered; "
                "the other pages of the results name their commands."
            )
            yield "The rows", text, listed

    def text(self) -> str:
        """The verdicts for a terminal."""
        parts = ["\n".join(text_table(self.summary()))]
        for paper, entries in self.papers.items():
            rows = [
                {"verdict": _marked(entry), "n": entry.n, "where": entry.claim.source, "claim": entry.claim.claim}
                for entry in entries
            ]
            parts.append("\n".join([PAPERS[paper], *text_table(rows)]))
        return "\n\n".join(parts)

    def markdown(self) -> str:
        """The page as Markdown."""
        parts = [f"# {_TITLE}", f"% Made by `{_COMMAND}`; do not edit.", _LEAD]
        for title, text, rows in self.sections():
            parts += [f"## {title}", *filter(None, [text, markdown_table(rows) if rows else ""])]
        return "\n\n".join(parts) + "\n"

    def page(self) -> str:
        """The page as one HTML file that loads nothing from elsewhere."""
        body = [f"<h1>{html.escape(_TITLE)}</h1>", f"<p>{html.escape(_LEAD)}</p>"]
        for title, text, rows in self.sections():
            body.append(f"<h2>{html.escape(title)}</h2>")
            body += map(_html, filter(None, text.split("\n\n")))
            if rows:
                kind = "long" if "measured" in rows[0] else "short"
                body.append(f'<div class="{kind}">{html_table(rows)}</div>')
        return html_page(_TITLE, body, wrap=True)


def _html(text: str) -> str:
    """A paragraph or a list of the page's Markdown."""
    text = re.sub(r"\*\*(.+?)\*\*", r"<strong>\1</strong>", html.escape(text))
    if text.startswith("- "):
        return f"<ul><li>{'</li><li>'.join(text[2:].split(chr(10) + '- '))}</li></ul>"
    return f"<p>{text}</p>"


def _short(finding: Finding) -> str:
    """The number of a recorded run with its interval and verdict."""
    number = interval(finding.value, finding.low, finding.high, ".3g")
    return finding.verdict if number == "–" else f"{number} ({finding.verdict})"


def _titled(claim: Claim) -> str:
    """The short form of a claim, with its paper where that does not say it."""
    return claim.headline if claim.paper in claim.headline else f"{claim.paper}: {claim.headline}"


def _data(claim: Claim, ours: bool = False) -> str:
    """What the rows of each experiment are of, with or without what the paper's were."""
    texts = [(part.on, part.data.partition(" (paper")[0] if ours else part.data) for part in claim.experiments]
    return "; ".join(f"{on}: {text}" if on else text for on, text in texts)


def _mark(entry: Entry) -> str:
    return "" if entry.stands else " †"


def _marked(entry: Entry) -> str:
    return entry.verdict + _mark(entry)


def _few(entry: Entry) -> str:
    return f"{entry.n} ({entry.caveat})" if entry.caveat else entry.n
