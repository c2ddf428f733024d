"""Machine translation with a small Transformer: one class per token of a vocabulary, so any loss of logits fits.

Sentences are texts with their tokens separated by spaces. Hardness is then per token: `token_table` scores each one
from the hidden state and the output layer, as `hardsight.score_features` does.
"""

from __future__ import annotations

import gzip
import inspect
import math
import warnings
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from hardsight.devices import find_device
from hardsight.directions import hardness_sign
from hardsight.errors import InputError, InputTypeError, MissingPathError
from hardsight.extras import need
from hardsight.registry import Range, did_you_mean, whole_number
from hardsight.scoring.score import score_features
from hardsight.table import SampleTable
from hardsight.training.losses import loss_of_logits

PAD, START, END, UNKNOWN = range(4)
_SPECIAL = ("<pad>", "<s>", "</s>", "<unk>")
Pair = tuple[str, str]  # a sentence and its translation


def read_sentences(file: str | Path) -> list[str]:
    """The lines of a text file, or of one compressed with gzip, without a byte order mark."""
    file = Path(file)
    if not file.is_file():
        raise MissingPathError(f"data: there is no file {file}.")
    try:
        opened = gzip.open if file.suffix == ".gz" else open
        with opened(file, "rt", encoding="utf-8-sig") as lines:
            return [line.strip() for line in lines]
    except (UnicodeDecodeError, gzip.BadGzipFile, EOFError, zlib.error):
        raise InputError(f"data: {file} must be text in UTF-8, plain or compressed with gzip (.gz).") from None


def read_pairs(source: str | Path, target: str | Path) -> list[Pair]:
    """Sentences of two files, line by line; pairs with an empty side are left out, with a warning."""
    sides = [read_sentences(file) for file in (source, target)]
    if len(sides[0]) != len(sides[1]):
        raise InputError(
            f"data: {source} has {len(sides[0]):,} lines and {target} {len(sides[1]):,}; each line must be a "
            "translation of the same line of the other."
        )
    pairs = [(a, b) for a, b in zip(*sides, strict=True) if a and b]
    if not pairs:
        raise InputError(f"data: {source} and {target} must hold a sentence and its translation, got none.")
    if empty := [number for number, pair in enumerate(zip(*sides, strict=True), 1) if not all(pair)]:
        left_out = f"{len(empty):,} of {len(sides[0]):,} pairs left out because a side is empty; first: line {empty[0]}"
        warnings.warn(f"data: {left_out}.", UserWarning, stacklevel=2)
    return pairs


def checked_pairs(pairs: Iterable[Pair]) -> list[Pair]:
    """Sentences with their translations; anything else is refused."""
    if isinstance(pairs, str) or not hasattr(pairs, "__iter__"):
        raise InputTypeError(f"pairs must be a list of (sentence, translation), got {pairs!r:.80}.")
    pairs = list(pairs)
    for row, pair in enumerate(pairs):
        if not (isinstance(pair, (tuple, list)) and len(pair) == 2 and all(isinstance(text, str) for text in pair)):
            raise InputError(f"pairs must hold (sentence, translation), two texts, got {pair!r:.80} in row {row}.")
    if not pairs:
        raise InputError("pairs must hold at least one sentence and its translation, got none.")
    return pairs


def _checked_texts(sentences: Iterable[str]) -> list[str]:
    texts = [] if isinstance(sentences, str) else list(sentences)
    if isinstance(sentences, str) or not all(isinstance(text, str) for text in texts):
        raise InputError("sentences must be a list of texts.")
    return texts


@dataclass(frozen=True)
class Vocabulary:
    """The tokens of a language; the first four are padding, start, end and unknown."""

    tokens: tuple[str, ...]

    def __post_init__(self) -> None:
        tokens = self.tokens if isinstance(self.tokens, (tuple, list)) else ()
        texts = all(isinstance(token, str) for token in tokens)
        if tuple(tokens[: len(_SPECIAL)]) != _SPECIAL or not texts or len(set(tokens)) < len(tokens):
            raise InputError(f"tokens must be texts that begin with {', '.join(_SPECIAL)}, each of them once.")

    @classmethod
    def of(cls, sentences: Iterable[str], least: int = 2) -> Vocabulary:
        """All tokens with a minimum number of occurrences, the most frequent first.

        Examples:
            >>> Vocabulary.of(["a dog", "a cat"]).tokens
            ('<pad>', '<s>', '</s>', '<unk>', 'a')
        """
        counts = Counter(token for sentence in _checked_texts(sentences) for token in sentence.split())
        kept = sorted((token for token, n in counts.items() if n >= least), key=lambda token: (-counts[token], token))
        return cls((*_SPECIAL, *(token for token in kept if token not in _SPECIAL)))

    def __len__(self) -> int:
        return len(self.tokens)

    def encode(self, sentences: Sequence[str]) -> list[Tensor]:
        """Each sentence as token numbers, with start and end; in a text, ``</s>`` and the like are unknown tokens."""
        places = {token: number for number, token in enumerate(self.tokens) if number >= len(_SPECIAL)}
        return [
            torch.tensor([START, *(places.get(token, UNKNOWN) for token in sentence.split()), END])
            for sentence in _checked_texts(sentences)
        ]

    def decode(self, numbers: Iterable[int]) -> str:
        """Token numbers as a sentence, up to the end."""
        tokens = []
        for number in numbers:
            if number == END:
                break
            if number not in (PAD, START):
                tokens.append(self.tokens[number])
        return " ".join(tokens)


class Translator(nn.Module):
    """A Transformer (Vaswani et al., 2017) with layer normalization before each block, which is easier to train.

    Its last linear layer, ``head``, has one output per token of the target language and weights of its own.

    Args:
        source: Tokens of the source language.
        target: Tokens of the target language.
        width: Width of embeddings and layers.
        heads: Attention heads.
        layers: Layers of encoder and decoder each.
        dropout: Dropout rate of all layers.
    """

    def __init__(
        self,
        source: int,
        target: int,
        *,
        width: int = 256,
        heads: int = 4,
        layers: int = 3,
        dropout: float = 0.3,
    ) -> None:
        super().__init__()
        width, heads, layers = (whole_number(*o, 1) for o in (("width", width), ("heads", heads), ("layers", layers)))
        Range(0, 1, "[)").check(dropout, "dropout")
        if width % heads or width % 2:
            raise InputError(f"width must be even and a multiple of heads, {heads}, got {width}.")
        self.source, self.target = (nn.Embedding(n, width, PAD) for n in (source, target))
        for embedding in (self.source, self.target):
            nn.init.normal_(embedding.weight, std=width**-0.5)
        options: dict[str, Any] = {"dropout": dropout, "batch_first": True, "norm_first": True}
        encoder = nn.TransformerEncoderLayer(width, heads, 4 * width, **options)
        decoder = nn.TransformerDecoderLayer(width, heads, 4 * width, **options)
        self.encoder = nn.TransformerEncoder(encoder, layers, nn.LayerNorm(width), enable_nested_tensor=False)
        self.decoder = nn.TransformerDecoder(decoder, layers, nn.LayerNorm(width))
        self.dropout, self.width = nn.Dropout(dropout), width
        self.head = nn.Linear(width, target)

    def _embedded(self, embedding: nn.Embedding, tokens: Tensor) -> Tensor:
        place = torch.arange(tokens.shape[1], device=tokens.device)[:, None]
        rate = torch.exp(torch.arange(0, self.width, 2, device=tokens.device) * (-math.log(10_000.0) / self.width))
        positions = torch.stack([torch.sin(place * rate), torch.cos(place * rate)], 2).flatten(1)
        return self.dropout(embedding(tokens) * math.sqrt(self.width) + positions)

    def encode(self, source: Tensor) -> tuple[Tensor, Tensor]:
        """States of the source tokens ``(N, S, width)``, and the padding mask."""
        padding = source == PAD
        return self.encoder(self._embedded(self.source, source), src_key_padding_mask=padding), padding

    def hidden(self, target: Tensor, memory: Tensor, padding: Tensor) -> Tensor:
        """Input of the head at each target token ``(N, T, width)``; each sees those before it."""
        mask = nn.Transformer.generate_square_subsequent_mask(target.shape[1], target.device).isinf()
        return self.decoder(
            self._embedded(self.target, target), memory, mask, memory_key_padding_mask=padding, tgt_is_causal=True
        )

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """Logits of each next token ``(N, T, tokens)``."""
        return self.head(self.hidden(target, *self.encode(source)))


@dataclass(frozen=True)
class Translation:
    """A trained translator with its vocabularies."""

    model: Translator
    source: Vocabulary
    target: Vocabulary
    history: list[dict[str, float]]

    def __post_init__(self) -> None:
        sizes = self.model.source.num_embeddings, self.model.head.out_features
        if sizes != (len(self.source), len(self.target)):
            raise InputError(
                f"vocabularies must be those of the model, of {sizes[0]:,} and {sizes[1]:,} tokens, got "
                f"{len(self.source):,} and {len(self.target):,}."
            )

    @property
    def device(self) -> torch.device:
        return self.model.head.weight.device

    @torch.no_grad()
    def translate(
        self, sentences: Sequence[str], *, beams: int = 5, most: int = 60, batch_size: int = 256
    ) -> list[str]:
        """Translations by beam search; hypotheses are compared by their mean log-probability per token.

        Args:
            sentences: In the source language.
            beams: Number of hypotheses; 1 is greedy search.
            most: Maximum number of tokens of a translation.
            batch_size: Sentences at a time.
        """
        beams, most = whole_number("beams", beams, 1), whole_number("most", most, 1)
        batch_size = whole_number("batch_size", batch_size, 1)
        self.model.eval()
        encoded = self.source.encode(sentences)
        order = sorted(range(len(encoded)), key=lambda k: len(encoded[k]))
        result = [""] * len(encoded)
        for start in range(0, len(order), batch_size):
            rows = order[start : start + batch_size]
            source = pad_sequence([encoded[k] for k in rows], batch_first=True, padding_value=PAD).to(self.device)
            for k, tokens in zip(rows, self._search(source, beams, most).tolist(), strict=True):
                result[k] = self.target.decode(tokens)
        return result

    def _search(self, source: Tensor, beams: int, most: int) -> Tensor:
        memory, padding = (x.repeat_interleave(beams, 0) for x in self.model.encode(source))
        n = len(source)
        tokens = torch.full((n * beams, 1), START, device=self.device)
        scores = torch.full((n, beams), -math.inf, device=self.device)
        scores[:, 0] = 0.0  # the first step must not choose the same token in every beam
        ended, lengths = (torch.zeros(n, beams, dtype=kind, device=self.device) for kind in (torch.bool, torch.long))
        for step in range(1, most + 1):
            logits = self.model.head(self.model.hidden(tokens, memory, padding)[:, -1]).float()
            steps = logits.log_softmax(1).view(n, beams, -1)
            steps[..., (PAD, START)] = -math.inf
            steps = torch.where(ended[..., None], -math.inf, steps)
            steps[..., PAD] = torch.where(ended, 0.0, -math.inf)  # a finished hypothesis stays unchanged
            total = scores[..., None] + steps
            length = torch.where(ended, lengths, step)
            ranked = (total / length[..., None].clamp_min(1)).flatten(1).topk(beams).indices
            beam, token = ranked // steps.shape[2], ranked % steps.shape[2]
            scores = total.flatten(1).gather(1, ranked)
            ended, lengths = ended.gather(1, beam) | (token == END), length.gather(1, beam)
            rows = (torch.arange(n, device=self.device)[:, None] * beams + beam).flatten()
            tokens = torch.cat([tokens[rows], token.flatten()[:, None]], 1)
            if ended.all():
                break
        return tokens.view(n, beams, -1)[:, 0, 1:]

    def bleu(self, pairs: Sequence[Pair], **search: Any) -> float:
        """BLEU of the translations, by sacrebleu, on the given tokens."""
        pairs, metric = checked_pairs(pairs), need("sacrebleu")
        translated = self.translate([source for source, _ in pairs], **search)
        return metric.corpus_bleu(translated, [[target for _, target in pairs]], tokenize="none", force=True).score


def train_translation(
    pairs: Sequence[Pair],
    *,
    loss: str = "ce",
    label_smoothing: float = 0.1,
    epochs: int = 30,
    tokens: int = 4096,
    lr: float = 1e-3,
    warmup: int = 800,
    weight_decay: float = 1e-4,
    averaged: int = 5,
    least: int = 2,
    seed: int = 0,
    device: str | torch.device | None = None,
    progress: bool = False,
    **network: Any,
) -> Translation:
    """Train a `Translator` with AdamW: the rate rises, then falls with the root of the step; late weights are averaged.

    Args:
        pairs: Sentences and their translations.
        loss: The name of a loss of logits, as for `hardsight.train`; padding does not count.
        label_smoothing: Share of the target that is spread over all tokens; the bonus of the Encouraging Loss goes with
            it, as in the released code.
        epochs: Passes over the pairs.
        tokens: Target tokens per batch, padding included.
        lr: Peak learning rate.
        warmup: Steps during which the rate rises.
        weight_decay: Weight decay of AdamW.
        averaged: Number of last epochs whose weights are averaged.
        least: Tokens that occur less often count as unknown.
        seed: Random seed of weights, order and dropout.
        device: cpu, cuda, cuda:1 or mps; the first GPU if there is one.
        progress: Print a line per epoch.
        network: Options of `Translator`.
    """
    place, pairs = find_device(device), checked_pairs(pairs)
    limits = {"epochs": epochs, "averaged": averaged, "warmup": warmup, "tokens": tokens, "least": least}
    epochs, averaged, warmup, tokens, least = (whole_number(name, value, 1) for name, value in limits.items())
    Range(0, ends="()").check(lr, "lr")
    Range(0, 1, "[)").check(label_smoothing, "label_smoothing")
    Range(0).check(weight_decay, "weight_decay")
    options = inspect.signature(Translator).parameters.keys() - {"source", "target"}
    if unknown := network.keys() - options:
        name = min(unknown)
        raise InputError(f"there is no option {name!r} of a Translator; {did_you_mean(name, sorted(options))}")
    vocabularies = [Vocabulary.of((pair[side] for pair in pairs), least) for side in (0, 1)]
    for side, vocabulary in zip(("source", "target"), vocabularies, strict=True):
        if len(vocabulary) == len(_SPECIAL):
            raise InputError(
                f"pairs: no token of the {side} sentences occurs {least} times or more, so there is nothing to learn; "
                "separate tokens by spaces."
            )
    sides = [vocabulary.encode([pair[side] for pair in pairs]) for side, vocabulary in enumerate(vocabularies)]
    generator = torch.Generator().manual_seed(whole_number("seed", seed, 0, 2**63 - 1))
    with torch.random.fork_rng(devices=[place] if place.type == "cuda" else []):
        torch.manual_seed(seed)
        model = Translator(len(vocabularies[0]), len(vocabularies[1]), **network).to(place)
        counts = torch.bincount(torch.cat([row[1:] for row in sides[1]]), minlength=len(vocabularies[1]))
        objective = loss_of_logits(loss, counts=counts, label_smoothing=label_smoothing, epochs=epochs).to(place)
        optimizer = torch.optim.AdamW(
            model.parameters(), lr=lr, betas=(0.9, 0.98), weight_decay=weight_decay, fused=place.type == "cuda"
        )
        schedule = torch.optim.lr_scheduler.LambdaLR(
            optimizer, lambda step: min((step + 1) / warmup, math.sqrt(warmup / (step + 1)))
        )
        history, mean, count = [], {}, 0
        for epoch in range(1, epochs + 1):
            objective.at(epoch - 1)
            model.train()
            total = torch.zeros((), device=place)
            batches = list(_batches(sides, tokens, generator))
            for source, target in batches:
                source, target = source.to(place), target.to(place)
                with torch.autocast(place.type, torch.bfloat16, enabled=place.type == "cuda"):
                    logits = model(source, target[:, :-1])
                following = target[:, 1:].masked_fill(target[:, 1:] == PAD, -100)  # which every loss ignores
                value = objective(logits.flatten(0, 1).float(), following.flatten())
                optimizer.zero_grad()
                value.backward()
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                schedule.step()
                total += value.detach()
            if epoch > epochs - averaged:
                count += 1
                for name, weight in model.state_dict().items():
                    mean[name] = weight.clone() if count == 1 else mean[name] + (weight - mean[name]) / count
            history.append({"epoch": epoch, "loss": total.item() / len(batches)})
            if progress:
                print(f"epoch {epoch}/{epochs}  loss {history[-1]['loss']:.4f}", flush=True)
    model.load_state_dict(mean)
    return Translation(model.eval(), vocabularies[0], vocabularies[1], history)


def _batches(sides: Sequence[list[Tensor]], tokens: int, generator: torch.Generator) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches of sentences of similar lengths, in random order."""
    order = torch.randperm(len(sides[0]), generator=generator).tolist()
    order.sort(key=lambda k: (len(sides[1][k]), len(sides[0][k])))
    groups: list[list[int]] = []
    longest = 0
    for k in order:
        longest = max(longest, len(sides[0][k]), len(sides[1][k]))
        if not groups or longest * (len(groups[-1]) + 1) > tokens:
            groups.append([])
            longest = max(len(sides[0][k]), len(sides[1][k]))
        groups[-1].append(k)
    for place in torch.randperm(len(groups), generator=generator).tolist():
        source, target = (
            pad_sequence([side[k] for k in groups[place]], batch_first=True, padding_value=PAD) for side in sides
        )
        yield source, target


@torch.no_grad()
def token_table(translation: Translation, pairs: Sequence[Pair], *, batch_size: int = 256) -> SampleTable:
    """One row per token of the reference translations, with its scores; ids are ``SENTENCE:POSITION``.

    Each token is scored with the true tokens before it, at its own class. Unknown tokens are left out, because the
    model has no class for each of them.

    Args:
        translation: The trained model.
        pairs: Sentences and their translations.
        batch_size: Sentences at a time.
    """
    pairs, batch_size = checked_pairs(pairs), whole_number("batch_size", batch_size, 1)
    model, device = translation.model.eval(), translation.device
    sources, targets = (
        translation.source.encode([a for a, _ in pairs]),
        translation.target.encode([b for _, b in pairs]),
    )
    ids, features, labels = [], [], []
    for start in range(0, len(pairs), batch_size):
        rows = range(start, min(start + batch_size, len(pairs)))
        source, target = (
            pad_sequence([side[k] for k in rows], batch_first=True, padding_value=PAD).to(device)
            for side in (sources, targets)
        )
        hidden, following = model.hidden(target[:, :-1], *model.encode(source)), target[:, 1:]
        kept = (following != PAD) & (following != UNKNOWN)
        sentence, position = (x.tolist() for x in kept.nonzero(as_tuple=True))
        ids += [f"{start + s}:{p}" for s, p in zip(sentence, position, strict=True)]
        features.append(hidden[kept].float().cpu())
        labels.append(following[kept].cpu())
    head = model.head
    return score_features(
        torch.cat(features), head.weight.float().cpu(), torch.cat(labels), head.bias.float().cpu(), ids=ids
    )


def hardest_words(
    table: SampleTable, target: Vocabulary, by: str = "avh", least: int = 20
) -> list[tuple[str, int, float]]:
    """Words of the target language, the hardest on average first: word, number of tokens, mean of the score.

    Args:
        table: As returned by `token_table`.
        target: Vocabulary of the target language.
        by: The score.
        least: Words with fewer tokens are left out.
    """
    labels, hardness, least = table["label"], table.hardness(by), whole_number("least", least, 1)
    if len(labels) and labels.max() >= len(target):
        raise InputError(
            f"target must be the vocabulary of the tokens in table, of {labels.max() + 1:,} tokens or more, got one of "
            f"{len(target):,}."
        )
    count = np.bincount(labels, minlength=len(target))
    mean, sign = np.bincount(labels, hardness, minlength=len(target)) / np.maximum(count, 1), hardness_sign(by)
    return [(target.tokens[k], int(count[k]), sign * float(mean[k])) for k in np.argsort(-mean) if count[k] >= least]
