"""Translation: vocabularies, the Transformer, search, and hardness of tokens."""

import gzip
import html
import itertools
import math
import re
from collections import Counter

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import hardsight as hs
from hardsight import translation as translation_module
from hardsight.report.tokens import write_token_page
from hardsight.translation import (
    END,
    PAD,
    START,
    UNKNOWN,
    Translation,
    Translator,
    Vocabulary,
    hardest_words,
    read_pairs,
    token_table,
    train_translation,
)

WORDS = {"ein": "a", "hund": "dog", "mann": "man", "rennt": "runs", "und": "and"}
NETWORK = {"width": 32, "layers": 1, "heads": 2, "dropout": 0.0}


def toy_pairs(count):
    words, random = list(WORDS), np.random.default_rng(0)
    rows = [[words[k] for k in random.integers(0, 5, size=random.integers(1, 5))] for _ in range(count)]
    return [(" ".join(row), " ".join(WORDS[word] for word in row)) for row in rows]


@pytest.fixture(scope="module")
def trained():
    return train_translation(
        toy_pairs(400),
        epochs=25,
        tokens=256,
        warmup=50,
        lr=5e-3,
        averaged=1,
        device="cpu",
        label_smoothing=0.0,
        **NETWORK,
    )


def test_a_word_by_word_language_is_learned(trained):
    pairs = toy_pairs(40)
    assert trained.bleu(pairs) > 90
    assert trained.translate(["ein hund rennt"]) == ["a dog runs"]
    assert trained.history[-1]["loss"] < trained.history[0]["loss"] / 3


def test_beams_find_translations_at_least_as_likely_as_greedy_ones(trained):
    sentences = [source for source, _ in toy_pairs(20)]

    def mean_log_probability(source, target):
        tokens = trained.target.encode([target])[0][None]
        with torch.no_grad():
            logits = trained.model(trained.source.encode([source])[0][None], tokens[:, :-1])
        return -F.cross_entropy(logits[0], tokens[0, 1:]).item()

    for source, one, five in zip(
        sentences, trained.translate(sentences, beams=1), trained.translate(sentences, beams=5), strict=True
    ):
        assert mean_log_probability(source, five) >= mean_log_probability(source, one) - 1e-4


def test_a_search_with_room_for_all_hypotheses_is_exhaustive():
    """Against every sequence of up to three tokens, by its mean log-probability; with several weights, beams cross."""
    words = Vocabulary(("<pad>", "<s>", "</s>", "<unk>", "a", "b"))
    for seed in range(4):
        torch.manual_seed(seed)
        model = Translator(6, 6, **NETWORK).eval()
        torch.nn.init.normal_(model.head.weight)
        translation = Translation(model, words, words, [])
        source, best = words.encode(["a b"])[0][None], (-math.inf, ())
        for length in (1, 2, 3):
            for tokens in itertools.product(range(2, 6), repeat=length):
                if END in tokens[:-1] or (length < 3 and tokens[-1] != END):
                    continue
                with torch.no_grad():
                    logits = model(source, torch.tensor([[START, *tokens[:-1]]]))[0]
                best = max(best, (-F.cross_entropy(logits, torch.tensor(tokens)).item(), tokens))
        assert translation.translate(["a b"], beams=64, most=3) == [words.decode(best[1])]


def test_order_and_batches_do_not_change_translations(trained):
    sentences = [source for source, _ in toy_pairs(15)]
    whole = trained.translate(sentences)
    assert trained.translate(sentences[::-1], batch_size=4)[::-1] == whole


def test_no_token_sees_those_after_it_or_padding():
    torch.manual_seed(0)
    model = Translator(12, 15, **NETWORK).eval()
    source, target = torch.tensor([[START, 5, 6, END]]), torch.tensor([[START, 7, 8, 9]])
    with torch.no_grad():
        logits = model(source, target)
        changed = model(source, torch.tensor([[START, 7, 8, 14]]))
        padded = model(F.pad(source, (0, 3), value=PAD), target)
    torch.testing.assert_close(logits[:, :3], changed[:, :3])
    assert not torch.allclose(logits[:, 3], changed[:, 3])
    torch.testing.assert_close(logits, padded, atol=1e-5, rtol=1e-4)


def test_padding_does_not_count_in_the_loss(monkeypatch):
    """The loss of a padded batch is the mean over real tokens, with label smoothing and a bonus."""
    logits, target = torch.randn(2, 5, 9), torch.tensor([[4, 5, END, PAD, PAD], [6, 7, 8, 4, END]])
    loss = hs.build_loss("el:0.5", label_smoothing=0.1)
    real = target != PAD
    whole = loss(logits.flatten(0, 1), target.masked_fill(~real, -100).flatten())
    torch.testing.assert_close(whole, loss(logits[real], target[real]))


def test_training_hands_over_every_real_token_once(monkeypatch):
    targets, contexts, original = [], [], translation_module.loss_of_logits

    def spy(name, **context):
        contexts.append(context)
        loss = original(name, **context)
        loss.register_forward_pre_hook(lambda _, inputs: targets.append(inputs[1]))
        return loss

    monkeypatch.setattr(translation_module, "loss_of_logits", spy)
    pairs = [("ein", "a"), ("ein hund rennt", "a dog runs")] * 10
    train_translation(pairs, epochs=1, averaged=1, label_smoothing=0.2, device="cpu", **NETWORK)
    every = torch.cat(targets)
    real = every[every != -100]
    assert len(real) < len(every)  # there was padding
    assert len(real) == 10 * (2 + 4)  # with the end, without the start
    assert torch.bincount(real, minlength=7).tolist() == contexts[0]["counts"].tolist() == [0, 0, 20, 0, 20, 10, 10]
    assert contexts[0]["label_smoothing"] == 0.2


def test_rates_rise_and_fall_with_the_root_and_batches_keep_to_their_tokens(monkeypatch):
    rates, norms, options, sizes = [], [], [], []
    adam, forward = torch.optim.AdamW, Translator.forward

    def step(optimizer, *_):
        (group,) = optimizer.param_groups
        rates.append(group["lr"])
        norms.append(math.sqrt(sum(weight.grad.pow(2).sum().item() for weight in group["params"])))

    def make(weights, **given):
        options.append(given)
        optimizer = adam(weights, **given)
        optimizer.register_step_pre_hook(step)
        return optimizer

    def spy(self, source, target):
        sizes.append(len(source) * max(source.shape[1], target.shape[1] + 1))
        return forward(self, source, target)

    monkeypatch.setattr(torch.optim, "AdamW", make)
    monkeypatch.setattr(Translator, "forward", spy)
    settings = {"epochs": 3, "averaged": 1, "tokens": 48, "warmup": 4, "lr": 0.01, "weight_decay": 0.3}
    train_translation(toy_pairs(60), device="cpu", **settings, **NETWORK)
    assert len(rates) > 12
    assert rates == pytest.approx([0.01 * min(k / 4, (4 / k) ** 0.5) for k in range(1, len(rates) + 1)])
    assert max(norms) == pytest.approx(1)  # clipped
    assert [(given["lr"], given["betas"], given["weight_decay"]) for given in options] == [(0.01, (0.9, 0.98), 0.3)]
    assert 40 <= max(sizes) <= 48


def test_dropout_is_off_in_translations_and_rows():
    """Also of a model that is being trained."""
    pairs, network = toy_pairs(40), NETWORK | {"dropout": 0.5}
    translation = train_translation(pairs, epochs=2, averaged=1, lr=0.01, device="cpu", **network)
    translations, scores = translation.translate(["ein hund rennt und"] * 3), token_table(translation, pairs)["nll"]
    translation.model.train()
    assert translation.translate(["ein hund rennt und"] * 3) == translations
    translation.model.train()
    np.testing.assert_array_equal(token_table(translation, pairs)["nll"], scores)


def test_weights_are_the_mean_of_those_after_the_last_epochs():
    options = {"warmup": 5, "lr": 0.01, "device": "cpu", "tokens": 64, **NETWORK}
    second, third, mean = (
        train_translation(toy_pairs(30), epochs=epochs, averaged=averaged, **options).model.state_dict()
        for epochs, averaged in ((2, 1), (3, 1), (3, 2))
    )
    assert not torch.allclose(second["head.weight"], third["head.weight"])
    for name, weight in mean.items():
        torch.testing.assert_close(weight, (second[name] + third[name]) / 2)


def test_a_deferred_bonus_begins_after_its_epoch():
    options = {"epochs": 2, "averaged": 1, "lr": 0.01, "warmup": 5, "device": "cpu", **NETWORK}
    plain, deferred, at_once = (
        [epoch["loss"] for epoch in train_translation(toy_pairs(30), loss=loss, **options).history]
        for loss in ("ce", "el:0.5,defer=1", "el:0.5")
    )
    assert deferred[0] == pytest.approx(plain[0], rel=1e-4) != pytest.approx(at_once[0], rel=1e-4)
    assert deferred[1] < plain[1] - 0.01


def naive_bleu(translations, references):
    """Papineni et al. (2002) on tokens that are separated by spaces, with one reference each."""
    precisions = []
    for n in range(1, 5):
        right = total = 0
        for translation, reference in zip(translations, references, strict=True):
            grams = [
                Counter(tuple(tokens[k : k + n]) for k in range(len(tokens) - n + 1))
                for tokens in (translation.split(), reference.split())
            ]
            right, total = right + (grams[0] & grams[1]).total(), total + grams[0].total()
        precisions.append(right / total)
    lengths = [sum(len(text.split()) for text in texts) for texts in (translations, references)]
    return 100 * min(1, math.exp(1 - lengths[1] / lengths[0])) * math.prod(precisions) ** 0.25


def test_bleu_is_that_of_the_tokens_as_they_are(trained, monkeypatch):
    translations = ["The dog is n't here , is it ?", "the man ( who runs and/or walks ) sleeps"]
    references = ["the dog is n't here today , or is it ?", "the man ( who runs and/or hops ) sleeps now and-then"]
    monkeypatch.setattr(Translation, "translate", lambda self, sentences, **search: translations)
    value = trained.bleu([("ein", reference) for reference in references])
    assert value == pytest.approx(naive_bleu(translations, references))
    assert value != pytest.approx(naive_bleu(references, translations))


def test_rows_of_tokens_are_the_scores_of_their_hidden_states(trained):
    pairs = [("ein hund", "a dog"), ("mann rennt", "man zebra runs")]
    table = token_table(trained, pairs, batch_size=1)
    assert table["id"].tolist() == ["0:0", "0:1", "0:2", "1:0", "1:2", "1:3"]  # zebra is not in the vocabulary
    places = {token: number for number, token in enumerate(trained.target.tokens)}
    assert table["label"].tolist() == [places[t] for t in ("a", "dog", "</s>", "man", "runs", "</s>")]
    tokens = trained.target.encode(["a dog"])[0][None]
    with torch.no_grad():
        hidden = trained.model.hidden(
            tokens[:, :-1], *trained.model.encode(trained.source.encode(["ein hund"])[0][None])
        )
    head = trained.model.head
    np.testing.assert_allclose(table["avh"][:3], hs.avh(hidden[0], head.weight, tokens[0, 1:]).detach(), atol=1e-6)
    probabilities = F.softmax(hidden[0] @ head.weight.T + head.bias, 1)[range(3), tokens[0, 1:]]
    np.testing.assert_allclose(table["confidence"][:3], probabilities.detach(), atol=1e-6)


def test_the_hardest_words_have_the_largest_means(trained):
    table = token_table(trained, toy_pairs(60))
    words = hardest_words(table, trained.target, least=5)
    frame = table.to_pandas()
    means = frame.groupby("label")["avh"].agg(["mean", "count"])
    means = means[means["count"] >= 5].sort_values("mean", ascending=False)
    assert [word for word, _, _ in words] == [trained.target.tokens[label] for label in means.index]
    assert [n for _, n, _ in words] == means["count"].tolist()
    rarest = int(frame["label"].value_counts().min())
    assert rarest in [n for _, n, _ in hardest_words(table, trained.target, least=rarest)]


def test_the_page_shows_sentences_as_text(trained, tmp_path):
    pairs = [("ein <script>alert(1)</script> \u202e", "a <b>dog</b> \u2066dog dog"), *toy_pairs(30)]
    file = write_token_page(token_table(trained, pairs), trained, pairs, tmp_path / "tokens.html")
    page = file.read_text()
    assert "<script>alert" not in page
    assert "&lt;b&gt;dog&lt;/b&gt;" in page
    assert not {"\u202e", "\u2066"} & set(page)  # which would turn round what follows
    assert "default-src 'none'" in html.unescape(page)
    for none in ([], ["ab", "abc"], None):
        with pytest.raises(hs.HardsightError, match="pairs"):
            write_token_page(token_table(trained, pairs), trained, none, tmp_path / "none.html")
    with pytest.raises(hs.HardsightError, match="most"):
        write_token_page(token_table(trained, pairs), trained, pairs, tmp_path / "none.html", most=-1)


def test_the_hardest_sentences_come_first_and_the_hardest_tokens_are_darkest(trained, tmp_path):
    pairs = [("ein hund", "a dog"), ("ein mann", "a runs"), ("mann und hund", "man and dog")]  # the second is wrong
    table = token_table(trained, pairs)
    page = write_token_page(table, trained, pairs, tmp_path / "tokens.html").read_text()
    two = write_token_page(table, trained, pairs, tmp_path / "two.html", most=2).read_text()
    sentences = re.findall(r'class="source" dir="auto">([^<]*)<', page)
    assert re.findall(r'class="source" dir="auto">([^<]*)<', two) == sentences[:2]
    hardness = dict(zip(table["id"], table["avh"], strict=True))
    means = {a: np.mean([hardness[f"{k}:{p}"] for p in range(len(b.split()))]) for k, (a, b) in enumerate(pairs)}
    assert sentences == sorted(means, key=means.get, reverse=True)
    tokens = re.findall(r'class="t(\d)" title="([^"]*)"', page)
    assert len(tokens) == 7
    shades = [int(shade) for shade, _ in sorted(tokens, key=lambda token: float(token[1]))]
    assert shades == sorted(shades)
    assert shades[0] < shades[-1]
    shown = max(hardness[f"1:{place}"] for place in (0, 1)) * len(trained.target)  # C·AVH
    assert float(tokens[1][1]) == pytest.approx(shown, rel=1e-3)


def test_a_score_that_is_small_where_it_is_hard_is_shown_as_it_is(trained, tmp_path):
    pairs = toy_pairs(60)
    table = token_table(trained, pairs)
    words = hardest_words(table, trained.target, by="confidence", least=5)
    means = [mean for _, _, mean in words]
    assert means == sorted(means)
    assert 0 < means[0] < means[-1] <= 1
    page = write_token_page(table, trained, pairs, tmp_path / "tokens.html", by="confidence").read_text()
    tokens = re.findall(r'class="t(\d)" title="([^"]*)"', page)
    by_confidence = [int(shade) for shade, _ in sorted(tokens, key=lambda token: float(token[1]))]
    assert by_confidence[0] == 9
    assert by_confidence[-1] == 0
    assert all(0 <= float(value) <= 1 for _, value in tokens)


def test_bad_input_is_refused(trained, tmp_path):
    with gzip.open(tmp_path / "a.de.gz", "wt") as file:
        file.write("ein hund\n\nmann\n")
    (tmp_path / "a.en").write_text("a dog\nempty\nman\n")
    with pytest.warns(UserWarning, match=r"1 of 3 .*line 2"):
        pairs = read_pairs(tmp_path / "a.de.gz", tmp_path / "a.en")
    assert pairs == [("ein hund", "a dog"), ("mann", "man")]
    (tmp_path / "b.en").write_text("a dog\n")
    with pytest.raises(hs.HardsightError, match="lines"):
        read_pairs(tmp_path / "a.de.gz", tmp_path / "b.en")
    with pytest.raises(hs.HardsightError, match=r"c\.en"):
        read_pairs(tmp_path / "c.en", tmp_path / "b.en")
    with pytest.raises(hs.HardsightError, match="vocabular"):
        Translation(trained.model, trained.source, Vocabulary.of(["a b c"], least=1), [])
    assert math.isfinite(trained.bleu(toy_pairs(3), beams=2))
    special = ("<pad>", "<s>", "</s>", "<unk>")
    for tokens in (("a", "b"), (*special, "a", "a"), (*special, 5), " ".join(special), None):
        with pytest.raises(hs.HardsightError, match="tokens"):
            Vocabulary(tokens)


def test_a_text_holds_neither_a_byte_order_mark_nor_special_tokens(tmp_path):
    for suffix, opened in (("", open), (".gz", gzip.open)):
        with opened(tmp_path / f"a{suffix}", "wt", encoding="utf-8-sig") as file:
            file.write("ein hund\n")
        file = tmp_path / f"a{suffix}"
        assert read_pairs(file, file) == [("ein hund", "ein hund")]
    words = Vocabulary.of(["a <pad> </s>"] * 2)
    assert words.encode(["a </s> <pad> <s> a"])[0].tolist() == [START, 4, *[UNKNOWN] * 3, 4, END]


def test_what_does_not_belong_together_is_refused(trained, tmp_path):
    pairs = toy_pairs(30)
    table = token_table(trained, pairs)
    with pytest.raises(hs.HardsightError, match="sentence 0"):  # other sentences than those of the table
        write_token_page(table, trained, [("ein", "zebra crossing"), *pairs[1:]], tmp_path / "tokens.html")
    short = Vocabulary(trained.target.tokens[:5])
    with pytest.raises(hs.HardsightError, match="vocabulary"):
        hardest_words(table, short)
    assert not (tmp_path / "tokens.html").exists()
    with pytest.raises(hs.HardsightError, match="folder"):
        write_token_page(table, trained, pairs, tmp_path)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"epochs": 0}, "epochs"),
        ({"averaged": 0}, "averaged"),
        ({"least": "2"}, "least"),
        ({"least": 1000}, "spaces"),  # no token is known, as in texts that nobody tokenized
        ({"warmup": 0}, "warmup"),
        ({"label_smoothing": 2.0}, "label_smoothing"),
        ({"width": 30, "heads": 4}, "width"),
        ({"widht": 32}, "width"),
        ({"width": 0}, "width"),
        ({"layers": 0}, "layers"),
        ({"dropout": 2.0}, "dropout"),
        ({"weight_decay": -1}, "weight_decay"),
        ({"loss": "avh:16"}, "features"),
        ({"loss": "el:0.5,defer=30"}, "defer=30"),  # with 30 epochs
        ({"seed": 2**70}, "seed"),
    ],
)
def test_bad_options_are_one_sentence(options, named):
    with pytest.raises(hs.HardsightError, match=named):
        train_translation(toy_pairs(10), device="cpu", **options)


def test_nothing_to_translate_and_unreadable_text_are_one_sentence(trained, tmp_path):
    for call in (
        lambda: train_translation([], device="cpu"),
        lambda: trained.bleu([]),
        lambda: token_table(trained, []),
        lambda: train_translation([("ein", None)], device="cpu"),
        lambda: trained.bleu(["ab"]),
        lambda: token_table(trained, [("ein",)]),
    ):
        with pytest.raises(hs.HardsightError, match="pairs"):
            call()
    for call in (trained.translate, Vocabulary.of):
        for texts in ("ein hund", [None]):
            with pytest.raises(hs.HardsightError, match="list of texts"):
                call(texts)
    for call in (trained.bleu, lambda pairs, **options: token_table(trained, pairs, **options)):
        with pytest.raises(hs.HardsightError, match="batch_size"):
            call(toy_pairs(3), batch_size=0)
    (tmp_path / "empty").write_text("\n\n")
    with pytest.raises(hs.HardsightError, match="empty"):
        read_pairs(tmp_path / "empty", tmp_path / "empty")
    (tmp_path / "latin.de").write_bytes("schläft".encode("latin-1"))
    (tmp_path / "broken.gz").write_bytes(b"no gzip")
    for name in ("latin.de", "broken.gz"):
        with pytest.raises(hs.HardsightError, match=name):
            read_pairs(tmp_path / name, tmp_path / name)
    with pytest.raises(hs.HardsightError, match="beams"):
        trained.translate(["ein"], beams=0)


@pytest.mark.parametrize(("name", "end"), [("ce", None), ("el:0.5", 0.5), ("el:0.75", 0.75)])
def test_bonus_and_smoothing_per_token_are_the_written_out_loss(name, end):
    """Each real token: (1 − ε)·(loss of the true token) + ε/V·(loss of every token), in a loop; padding left out."""
    generator, tokens, padded = torch.Generator().manual_seed(0), 11, 0
    logits = 3 * torch.randn(4, 6, tokens, generator=generator, dtype=torch.float64)
    target = torch.randint(4, tokens, (4, 6), generator=generator)
    target[0, 3:], target[2, 1:] = padded, padded
    total, count = 0.0, 0
    for sentence, position in itertools.product(range(4), range(6)):
        if target[sentence, position] == padded:
            continue
        z = logits[sentence, position].tolist()
        whole = math.log(sum(map(math.exp, z)))
        for token in range(tokens):
            p = math.exp(z[token] - whole)
            bonus = 0.0
            if end is not None:
                bonus = math.log(1 - p) if p <= end else math.log(1 - end) - (p - end) / (1 - end)
            share = 0.1 / tokens + 0.9 * (token == int(target[sentence, position]))
            total += share * (whole - z[token] + bonus)
        count += 1
    loss = hs.build_loss(name, label_smoothing=0.1)
    value = loss(logits.flatten(0, 1), target.masked_fill(target == padded, -100).flatten())
    assert value.item() == pytest.approx(total / count, rel=1e-12)
