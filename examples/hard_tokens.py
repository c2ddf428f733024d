"""Machine translation: which words are hard, and where in a sentence.

python examples/hard_tokens.py [SOURCE TARGET]     # two files, line by line; without them, a tiny language
"""

import sys

import numpy as np

from hardsight.report.tokens import write_token_page
from hardsight.translation import hardest_words, read_pairs, token_table, train_translation

if len(sys.argv) > 2:
    pairs, options = read_pairs(*sys.argv[1:3]), {"epochs": 20}
else:
    words = {"ein": "a", "hund": "dog", "mann": "man", "rennt": "runs", "schläft": "sleeps", "und": "and"}
    random = np.random.default_rng(0)
    rows = [random.choice(list(words), random.integers(1, 6)).tolist() for _ in range(300)]
    pairs = [(" ".join(row), " ".join(words[word] for word in row)) for row in rows]
    options = {"epochs": 20, "tokens": 256, "warmup": 30, "lr": 5e-3, "width": 32, "layers": 1, "heads": 2}

training, held_out = pairs[: int(0.9 * len(pairs))], pairs[int(0.9 * len(pairs)) :]
translation = train_translation(training, loss="el:0.5", averaged=1, **options)
print(f"BLEU on sentences that were held out: {translation.bleu(held_out):.1f}")

table = token_table(translation, held_out)
print("hardest words, with the number of tokens and the mean AVH:")
for word, n, mean in hardest_words(table, translation.target, least=3)[:5]:
    print(f"  {word:12} {n:4} {mean:.3g}")
print("wrote", write_token_page(table, translation, held_out, "tokens.html"))
