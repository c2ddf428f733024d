"""`evaluate`: several questions to several networks, and what the answers say about the groups they form."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from tqdm import tqdm

from hardsight.answers import Answer
from hardsight.data import Samples
from hardsight.devices import evaluating, find_device
from hardsight.errors import HardsightError, InputError
from hardsight.evaluation import folder
from hardsight.evaluation.gathering import RunPart, gather
from hardsight.evaluation.maps import write_maps
from hardsight.evaluation.questions import Job, Options, Seen, check_asked, jobs, open_ood, said_by
from hardsight.evaluation.results import Evaluation
from hardsight.evaluation.subjects import Case, Subject, open_cases
from hardsight.explanation.boxes import read_boxes
from hardsight.heads import uncompiled
from hardsight.runs import content_hash

# Goes up when a question's numbers change their meaning: parts of before are then made again.
_FORMAT = 2


def evaluate(
    runs: Sequence[str | Path | Subject],
    *,
    questions: Sequence[str] = ("calibration", "margins", "clusters"),
    ood: Sequence[Any] = (),
    attacks: Sequence[str] = (),
    eps: Sequence[float] | None = None,
    explain: bool = False,
    dropout: int = 0,
    boxes: Any = None,
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
    """Ask one network or several what they are worth beyond accuracy, and compare them on the same data.

    Runs of one setting form a group, and every group is compared with the first one: over seeds where there are
    several runs of each, else over samples (see `hardsight.evaluation.statistics`), with Holm's correction over all
    tests of a question. Several runs of a group are also one ensemble: what it does not know, against AVH.

    Killed at any point, the same call resumes. More runs or other questions join what is there.

    Args:
        runs: Folders that ``hardsight train`` or ``score`` wrote, or subjects; all over the same data.
        questions: Of ``calibration``, ``margins`` and ``clusters``.
        ood: OOD data, which the networks should tell from their own; in Python also ``(name, data)``.
        attacks: Adversarial attacks; in Python names from `hardsight.robustness.ATTACKS`.
        eps: Strengths of the attacks, in pixel values from 0 to 1 whatever the network's normalization.
        explain: Where do the networks look (class activation maps), and does their answer rest on it?
        dropout: MC-dropout passes, for uncertainty; 0 for none.
        boxes: Where the objects are, for `explain`: CSV with id, x0, y0, x1, y1, or masks as .npy.
        names: The group of each run, in their order; if not given, trainings that differ only in the seed form one.
        data: Where the images are, unless the runs name a folder or an .npz that is still there.
        limit: Samples that are attacked (200 if not given) and explained (500).
        out: Folder to write.
        device: cpu, cuda, cuda:1 or mps; the first GPU if there is one.
        batch_size: Samples per forward pass.
        workers: Loader processes, for data that are not arrays.
        seed: Seed of everything that is drawn.
        overwrite: Delete another evaluation in the folder.
        progress: Show a bar (only ever in a terminal).

    Examples:
        >>> evaluation = evaluate(["ce-0", "ce-1", "el-0", "el-1"], ood=["fashion_mnist.npz"])  # doctest: +SKIP
        >>> evaluation.tests.select(["metric", "score", "group", "difference", "p_holm"])  # doctest: +SKIP
    """
    runs = [runs] if isinstance(runs, (str, Path, Subject)) else list(runs)
    asked = (questions,) if isinstance(questions, str) else tuple(questions)
    attacks = (attacks,) if isinstance(attacks, str) else tuple(attacks)
    check_asked(asked, attacks, eps, dropout, limit, batch_size)
    cases, samples = open_cases(runs, names, data)
    if boxes is not None:
        read_boxes(boxes, samples)  # a mistake in them should not wait for the attacks
    options = Options(
        questions=asked,
        strangers=open_ood([ood] if isinstance(ood, (str, Path)) else ood, samples),
        attacks=attacks,
        eps=None if eps is None else tuple(float(value) for value in eps),
        explain=explain,
        dropout=dropout,
        boxes=boxes,
        limit=limit,
        device=find_device(device),
        batch_size=batch_size,
        workers=workers,
        seed=seed,
        progress=progress,
    )
    asking = jobs(options)
    if len(asking) == 1:
        raise InputError("questions: there is nothing to ask; name a question, ood data, attacks, explain or dropout.")
    path, plan = Path(out), _plan(cases, samples, options)
    with folder.begin(path, plan, overwrite):
        return _evaluated(path, plan, cases, samples, options, asking)


def _evaluated(
    path: Path, plan: Mapping[str, Any], cases: Sequence[Case], data: Samples, options: Options, asking: Sequence[Job]
) -> Evaluation:
    _ask_all(path, plan, cases, data, options, asking)
    parts = [
        RunPart(case.name, case.group, case.seed, job.question, folder.read_part(path, _key(case, plan, job)))
        for case in cases
        for job in asking
    ]
    parts += [
        RunPart("", group, None, "uncertainty", folder.read_part(path, key)) for group, key in _ensembles(cases, plan)
    ]
    if options.explain:
        write_maps(path, cases, data, parts[0].part.samples, options.device)
    return gather(path, plan, cases, options, parts)


def _plan(cases: Sequence[Case], data: Samples, options: Options) -> dict[str, Any]:
    told = {name: getattr(options, name) for name in ("questions", "attacks", "eps", "explain", "dropout", "limit")}
    return {
        "format": _FORMAT,
        "runs": [
            {"name": case.name, "group": case.group, "seed": case.seed, "network": case.network, **case.told}
            for case in cases
        ],
        "data": {"origin": data.origin, "fingerprint": data.identity.key, "samples": len(data)},
        "ood": [{"name": one.name, "origin": one.samples.origin, "n": len(one.samples)} for one in options.strangers],
        **told,
        "seed": options.seed,
    }  # fmt: skip


def _key(case: Case, plan: Mapping[str, Any], job: Job) -> str:
    """The name of a part: what it is made of."""
    made_of = json.dumps([*_made_of(plan), case.network, content_hash(case.labels), job.made_of], default=str)
    return f"{job.question}-{content_hash(made_of)}"


def _made_of(plan: Mapping[str, Any]) -> list[Any]:
    """What decides every part."""
    return [plan["format"], plan["data"]["fingerprint"]]


def _ensembles(cases: Sequence[Case], plan: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Groups of several runs, and the names of their parts."""
    for group in dict.fromkeys(case.group for case in cases):
        members = sorted((case.network, content_hash(case.labels)) for case in cases if case.group == group)
        if len(members) > 1:
            yield group, f"ensemble-{content_hash(json.dumps([*_made_of(plan), members]))}"


def _ask_all(
    path: Path, plan: Mapping[str, Any], cases: Sequence[Case], data: Samples, options: Options, asking: Sequence[Job]
) -> None:
    """Compute and commit every part that is not there."""
    ensembles = {group: key for group, key in _ensembles(cases, plan) if not folder.committed(path, key)}
    steps = tqdm(total=len(cases) * len(asking), desc="evaluating", disable=None if options.progress else True)
    with steps:
        for group in dict.fromkeys(case.group for case in cases):
            together: list[_Member] = []
            for case in (one for one in cases if one.group == group):
                missing = [job for job in asking if not folder.committed(path, _key(case, plan, job))]
                steps.update(len(asking) - len(missing))
                if not missing and group not in ensembles:
                    continue
                model = case.opened()
                network = uncompiled(model.module)
                seen = Seen(replace(model, module=network), case.counted(data), options)
                with evaluating(network, options.device):
                    for job in missing:
                        steps.set_postfix_str(f"{case.name}: {job.question}")
                        folder.commit(path, _key(case, plan, job), _asked(case, job, seen), seen.predictions.ids)
                        steps.update()
                    if group in ensembles:
                        said = seen.predictions
                        together.append(_Member(said.ids, said.probabilities, seen.avh, seen.labels))
            if group in ensembles:
                folder.commit(path, ensembles[group], *_ensemble(together))


class _Member(NamedTuple):
    """What an ensemble needs of each of its networks."""

    ids: list[str]
    probabilities: np.ndarray
    avh: np.ndarray
    labels: np.ndarray


def _asked(case: Case, job: Job, seen: Seen) -> Answer:
    try:
        return job.ask(seen)
    except HardsightError as error:  # sentences of a question that knows nothing of runs
        raise type(error)(f"{case.name}, {job.question}: {error}") from error


def _ensemble(members: Sequence[_Member]) -> tuple[Answer, list[str]]:
    """What a group's networks do not know together, on the samples that all of them could read."""
    from hardsight.uncertainty import uncertainty_answer

    common = set.intersection(*(set(member.ids) for member in members))
    rows = [np.flatnonzero([id_ in common for id_ in member.ids]) for member in members]
    probabilities = np.stack([member.probabilities[at] for member, at in zip(members, rows, strict=True)])
    avh = np.mean([member.avh[at] for member, at in zip(members, rows, strict=True)], axis=0)
    answer = uncertainty_answer(probabilities, avh, members[0].labels[rows[0]])
    return said_by("ensemble", answer), [members[0].ids[row] for row in rows[0]]
