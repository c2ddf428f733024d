"""`evaluate`: ask several networks several questions, and compare the groups that they form."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import torch
from tqdm import tqdm

from hardsight.data import Samples
from hardsight.devices import evaluating, find_device
from hardsight.errors import ExistingPathError, HardsightError, InputError
from hardsight.evaluation import folder
from hardsight.evaluation.latex import latex_table
from hardsight.evaluation.maps import write_maps
from hardsight.evaluation.results import Evaluation, write_evaluation
from hardsight.evaluation.statistics import Column, compare_groups
from hardsight.evaluation.subjects import open_subjects
from hardsight.questions import QUESTIONS, Answer, Note, OODData, Question, Subject
from hardsight.questions.uncertainty import uncertainty_answer
from hardsight.registry import did_you_mean, whole_number
from hardsight.runs import content_hash, provenance
from hardsight.stores import local_path
from hardsight.untrusted import read_json

# Increases when the stored answers to all questions become invalid.
_FORMAT = 3


def evaluate(
    runs: Sequence[str | Path | Subject],
    *,
    questions: Sequence[str] = ("calibration", "margins", "clusters"),
    ood: Sequence[Any] = (),
    detectors: Sequence[str] | None = None,
    attacks: Sequence[str] = (),
    eps: Sequence[float] | None = None,
    explain: bool = False,
    dropout: int = 0,
    boxes: Any = None,
    degradations: Sequence[str] = (),
    levels: Sequence[float] | Mapping[str, Sequence[float]] | None = None,
    gray: bool = False,
    names: Sequence[str] | None = None,
    data: Any = None,
    limit: int | None = None,
    out: str | Path = "evaluation",
    device: str | torch.device | None = None,
    batch_size: int = 256,
    workers: int | None = None,
    seed: int = 0,
    overwrite: bool = False,
    progress: bool = True,
) -> Evaluation:
    """Evaluate one or more networks beyond accuracy, and compare them on the same data.

    Runs of one setting form a group, and every group is compared with the first one: over seeds where there are
    several runs of each, else over samples (see `hardsight.evaluation.statistics`), with Holm's correction over all
    tests of a question. Several runs of a group also form an ensemble, whose uncertainty is compared with AVH.

    After an interruption at any point, the same call resumes. More runs or questions are added to existing results.

    Args:
        runs: Folders that ``hardsight train`` or ``score`` wrote, or subjects; all over the same data.
        questions: Of ``calibration``, ``margins`` and ``clusters``.
        ood: OOD data, which the networks should detect; in Python also ``(name, data)``.
        detectors: OOD detectors; if not given, all that need no training data.
        attacks: Adversarial attacks; in Python names from `hardsight.questions.ATTACKS`.
        eps: Strengths of the attacks, in pixel values from 0 to 1 whatever the network's normalization.
        explain: Where do the networks look (class activation maps), and does their decision depend on it?
        dropout: MC-dropout passes, for uncertainty; 0 for none.
        boxes: Where the objects are, for `explain`: CSV with id, x0, y0, x1, y1, or masks as .npy.
        degradations: Degradations of the images, level by level; in Python names from
            `hardsight.questions.DEGRADATIONS`.
        levels: Levels of one degradation, instead of the defaults; in Python also by name.
        gray: Remove color before degrading, as Geirhos et al. did.
        names: The group of each run, in the order of the runs; if not given, trainings that differ only in the seed
            form one.
        data: Where the images are, unless the runs name a folder, tar shards or an .npz that still exists.
        limit: Samples that are attacked (200 if not given) and explained (500).
        out: Folder to write.
        device: cpu, cuda, cuda:1 or mps; the first GPU if there is one.
        batch_size: Samples per forward pass.
        workers: Loader processes, for data that are not arrays.
        seed: Seed of all random choices.
        overwrite: Delete another evaluation in the folder.
        progress: Show a bar (only ever in a terminal).

    Examples:
        >>> evaluation = evaluate(["ce-0", "ce-1", "el-0", "el-1"], ood=["fashion_mnist.npz"])  # doctest: +SKIP
        >>> evaluation.tests.select(["metric", "score", "group", "difference", "p_holm"])  # doctest: +SKIP
    """
    runs = [runs] if isinstance(runs, (str, Path, Subject)) else list(runs)
    eps = None if eps is None else [float(value) for value in eps]
    options = {"ood": ood, "detectors": detectors, "attacks": attacks, "eps": eps, "explain": explain,
               "dropout": dropout, "boxes": boxes, "degradations": degradations, "levels": levels,
               "gray": gray or None, "limit": limit}  # fmt: skip
    for name, value, least in (("dropout", dropout, 0), ("limit", limit, 1), ("batch_size", batch_size, 1)):
        if value is not None:
            whole_number(name, value, least)
    subjects, samples = open_subjects(runs, names, data)
    tasks = _tasks((questions,) if isinstance(questions, str) else questions, options | {"seed": seed}, samples)
    forward = {"device": find_device(device), "batch_size": batch_size, "workers": workers}
    subjects = [replace(subject, samples=samples, forward=forward, progress=progress) for subject in subjects]
    path, earlier = local_path(out), {}
    if not overwrite and folder.has_results(path) and (path / folder.PLAN).is_file():
        earlier = {
            run["name"]: run.get("network")
            for run in read_json(path / folder.PLAN, dict[str, Any], "out").get("runs", ())
        }
    data_sets = [task.options["ood"] for task in tasks if task.question.name == "ood"]
    plan = {
        "format": _FORMAT,
        "runs": [
            {"name": s.name, "group": s.group, "seed": s.seed, "network": earlier.get(s.name), "path": s.path}
            for s in subjects
        ],
        "data": {"origin": samples.origin, "fingerprint": samples.identity.key, "samples": len(samples)},
        "questions": list(dict.fromkeys(task.question.name for task in tasks[1:])),
        **{name: value for name, value in options.items() if name not in ("ood", "boxes")},
        "ood": [{"name": of.name, "origin": of.samples.origin, "n": len(of.samples)} for of in data_sets],
        "seed": seed,
    }
    with folder.begin(path, plan, overwrite):
        return _compared(path, plan, subjects, _answer_all(path, plan, subjects, tasks))


class _Task(NamedTuple):
    """A question with its options."""

    question: Question
    options: dict[str, Any]

    def key(self, subject: Subject, data: str) -> str:
        """The name of the stored answer: a hash of everything that determines it."""
        options = {name: value.name if isinstance(value, OODData) else value for name, value in self.options.items()}
        also = self.question.decided_by(subject, self.options) if self.question.decided_by else None
        of = [data, subject.identity, subject.data.labels, _FORMAT, self.question.version, options, also]
        return f"{self.question.name}-{content_hash(of)}"


def _tasks(names: Sequence[str], options: Mapping[str, Any], samples: Samples) -> list[_Task]:
    """What each run is asked, in order; options are checked."""
    by_name = [question.name for question in QUESTIONS.values() if not question.needs]
    tasks = [_Task(_SAMPLES, {})]
    for name in names:
        if name not in by_name:
            others = ", ".join(question.needs for question in QUESTIONS.values() if question.needs)
            raise InputError(
                f"there is no question {name!r}; {did_you_mean(name, by_name)} Other questions follow from {others}."
            )
        tasks.append(_Task(QUESTIONS[name], QUESTIONS[name].options(options)))
    unused = {name for name in ("eps", "boxes", "detectors", "levels", "gray") if options[name] is not None}
    for question in QUESTIONS.values():
        if question.needs and options[question.needs]:
            for prepared in question.prepare(options, samples):
                tasks.append(_Task(question, question.options({**options, **prepared})))
                unused -= tasks[-1].options.keys()
    for question in QUESTIONS.values():
        if lost := [name for name in question.options({}) if name in unused]:
            raise InputError(f"{lost[0]} goes with {question.needs}, which is not given.")
    if len(tasks) == 1:
        raise InputError("questions: there is nothing to ask; name a question, ood data, attacks, explain or dropout.")
    return tasks


def _samples_of(subject: Subject) -> Answer:
    """Label, prediction and AVH of every sample."""
    predicted = subject.predictions.probabilities.argmax(1)
    return Answer(samples={"label": subject.labels, "pred": predicted, "avh": subject.avh}, question="samples")


_SAMPLES = Question("samples", _samples_of, "", "")


class _RunAnswer(NamedTuple):
    """The answer of one run, or of the ensemble of a group (whose `run` is empty)."""

    run: str
    group: str
    seed: int | None
    answer: Answer

    def lines(self, lines: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Rows or points with their run."""
        return [{"run": self.run, "group": self.group, "seed": self.seed, **line} for line in lines]


def _answer_all(
    path: Path, plan: dict[str, Any], subjects: Sequence[Subject], tasks: Sequence[_Task]
) -> list[_RunAnswer]:
    """Every answer; missing ones are computed and stored.

    Each network is built once and then released, so they need not all fit into memory; only the first of each group is
    kept where maps are drawn. (If all answers of a run are stored but that of its ensemble is not, its network is built
    a second time.)
    """
    answers: dict[str, list[_RunAnswer]] = {subject.name: [] for subject in subjects}
    ensembles, first, explained = [], {}, any(task.question.name == "explanation" for task in tasks)
    progress, device, data = subjects[0].progress, subjects[0].forward["device"], plan["data"]["fingerprint"]
    with tqdm(total=len(subjects) * len(tasks), desc="evaluating", disable=None if progress else True) as steps:
        for group in dict.fromkeys(str(subject.group) for subject in subjects):
            members = [replace(subject) for subject in subjects if subject.group == group]
            for subject in members:
                _open(subject, plan["runs"])
                with evaluating(subject.network.module, device):
                    for task in tasks:
                        steps.set_postfix_str(f"{subject.name}: {task.question.name}")
                        answer = _answer(path, subject, task, data)
                        answers[subject.name].append(_RunAnswer(subject.name, group, subject.seed, answer))
                        steps.update()
                if explained:
                    first.setdefault(group, subject)
                if len(members) > 1 and "predictions" in vars(subject):
                    _ = subject.opinion
                kept = ("network",) if first.get(group) is subject else ()
                for name in {"network", "predictions", "training_output"}.difference(kept):  # large, and not needed
                    vars(subject).pop(name, None)
            if len(members) > 1:
                ensembles.append(_RunAnswer("", group, None, _ensemble(path, members, data)))
    if explained:
        write_maps(path, list(first.values()), answers[subjects[0].name][0].answer.samples)
    return [*(answer for of_run in answers.values() for answer in of_run), *ensembles]


def _open(subject: Subject, runs: Sequence[dict[str, Any]]) -> None:
    """Build a network, refuse an unsuitable one before anything is computed, and add its metadata to the plan."""
    model, [entry] = subject.network, [run for run in runs if run["name"] == subject.name]
    for run in runs:
        if run.get("classes", subject.outputs) != subject.outputs:
            raise InputError(
                f"runs must have the same classes to be compared: {subject.name} has {subject.outputs} outputs, "
                f"{run['name']} has {run['classes']}; evaluate them one by one."
            )
        if run is not entry and "classes" in run and run["network"] == subject.identity:
            raise InputError(
                f"runs must be different networks: {subject.name} is the same as {run['name']}; leave one out."
            )
    if entry["network"] not in (None, subject.identity):
        raise ExistingPathError(
            f"out: there is another evaluation (not the same: run {subject.name}); choose another folder, or overwrite "
            "it (--overwrite)."
        )
    if model.module.training:
        text = "It was in train mode; it is evaluated in eval mode, then set back to train mode."
        subject.notes += (Note("train mode", text, "warn"),)
    entry |= {"network": subject.identity, "classes": subject.outputs, "model": model.name, "weights": model.weights}
    entry |= {"preprocessing": model.preprocessing, "notes": subject.notes}


def _answer(path: Path, subject: Subject, task: _Task, data: str) -> Answer:
    try:
        key = task.key(subject, data)
        answer = folder.stored_answer(path, key, task.question.name)
        if answer is None:
            answer = task.question.ask(subject, **task.options)
            samples = {"id": np.array(subject.predictions.ids), **answer.samples}
            answer = replace(answer, samples=samples, question=task.question.name)
            folder.commit(path, key, answer)
    except HardsightError as error:  # a question's message does not name the run
        raise type(error)(f"{subject.name}, {task.question.name}: {error}") from error
    return answer


def _ensemble(path: Path, members: Sequence[Subject], data: str) -> Answer:
    """The uncertainty of a group's networks together, on the samples that all of them could read."""
    networks = sorted((member.identity, content_hash(member.data.labels)) for member in members)
    key = f"ensemble-{content_hash([data, networks, _FORMAT, QUESTIONS['uncertainty'].version])}"
    answer = folder.stored_answer(path, key, "uncertainty")
    if answer is None:
        opinions = [member.opinion for member in members]
        common = set.intersection(*(set(opinion.ids) for opinion in opinions))
        rows = [np.flatnonzero([id_ in common for id_ in opinion.ids]) for opinion in opinions]
        avh = np.mean([opinion.avh[at] for opinion, at in zip(opinions, rows, strict=True)], axis=0)
        probabilities = np.stack([opinion.probabilities[at] for opinion, at in zip(opinions, rows, strict=True)])
        answer = uncertainty_answer(probabilities, avh, opinions[0].labels[rows[0]], "ensemble")
        answer = replace(answer, samples={"id": np.array(opinions[0].ids)[rows[0]], **answer.samples})
        folder.commit(path, key, answer)
    return answer


def _compared(
    path: Path, plan: dict[str, Any], subjects: Sequence[Subject], answers: Sequence[_RunAnswer]
) -> Evaluation:
    """Put the answers together, test the groups, and write the evaluation."""
    rows = [row for of_run in answers for row in of_run.lines(of_run.answer.rows)]
    tests = compare_groups(rows, partial(_columns, answers))
    points = [point for of_run in answers for point in of_run.lines(of_run.answer.points)]
    lines = {folder.ROWS: rows, folder.TESTS: tests, folder.POINTS: points}
    tables = {name: pa.Table.from_pylist(of, folder.SCHEMAS[name]) for name, of in lines.items()}
    notes = _notes_on_tests(subjects)
    for run in plan["runs"]:
        notes += [replace(note, run=run["name"], group=run["group"]) for note in run.pop("notes")]
    for run, group, _, answer in answers:
        notes += [replace(note, question=answer.question, run=run, group=group) for note in answer.notes]
    plan = {**provenance(subjects[0].forward["device"]), **plan}  # whose seed is that of this evaluation
    evaluation = Evaluation(**tables, notes=tuple(notes), plan=plan, path=path, columns=_samples(answers))
    write_evaluation(evaluation, latex_table(rows, tests))
    return evaluation


def _columns(answers: Sequence[_RunAnswer], row: Mapping[str, Any]) -> list[Column] | None:
    """The samples that a row averages, or the scores of both data sets of an AUROC; None for any other number."""
    name = row["metric"] + (f":{row['score']}" if row["score"] else "")
    name += "" if math.isnan(row["level"]) else f"@{row['level']:g}"
    for run, group, _, answer in answers:
        if (run, group, answer.question) != (row["run"], row["group"], row["question"]):
            continue
        if not row["on"] and name in answer.samples:
            return [(answer.samples["id"], answer.samples[name].astype(np.float64))]
        if row["metric"] == "auroc" and answer.ood_samples and answer.rows[0]["on"] == row["on"]:
            return [(of["id"], of[f"score:{row['score']}"]) for of in (answer.samples, answer.ood_samples)]
    return None


def _samples(answers: Sequence[_RunAnswer]) -> dict[str, pa.Table]:
    """A table per run, with a row per sample."""
    columns: dict[str, dict[str, np.ndarray]] = {}
    for run, _, _, answer in answers:
        for name, values in answer.samples.items():
            plain = name == "id" or answer.question == "samples"
            columns.setdefault(run, {}).setdefault(name if plain else f"{answer.question}/{name}", values)
    return {run: folder.as_table(of_run) for run, of_run in columns.items() if run}


def _notes_on_tests(subjects: Sequence[Subject]) -> list[Note]:
    """What the numbers of runs mean for the tests."""
    sizes = Counter(str(subject.group) for subject in subjects)
    alone = [name for name, count in sizes.items() if count == 1]
    if len(sizes) < 2:
        return []
    if len(alone) == len(sizes):
        text = "There is one run of each: tests are over samples, and say that these networks differ, not that the "
        return [Note("one run each", f"{text}settings do; for that, give runs of several seeds.", "warn")]
    if alone:
        text = f"There is only one run of {', '.join(alone)}, so nothing is tested there; give runs of several seeds."
        return [Note("one run in a group", text, "warn")]
    if set(sizes.values()) == {2}:
        text = "With two runs of each only huge differences stand out from chance; five are a fair start."
        return [Note("two runs each", text, "warn")]
    return []
