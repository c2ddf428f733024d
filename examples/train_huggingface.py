"""A Hugging Face training script with one line more: the Encouraging Loss in the Trainer.

python examples/train_huggingface.py
"""

import tempfile

import datasets
import numpy as np
import torch
from sklearn.datasets import load_digits
from transformers import Trainer, TrainingArguments, ViTConfig, ViTForImageClassification, set_seed

import hardsight as hs
from hardsight.integrations.huggingface import compute_loss

torch.set_num_threads(1)  # a network this small gains nothing from a second one
set_seed(0)
pixels, labels = load_digits(return_X_y=True)
columns = {"pixel_values": (pixels.reshape(-1, 1, 8, 8) / 16).astype(np.float32), "labels": labels}
data = datasets.Dataset.from_dict(columns).with_format("torch").train_test_split(300, seed=0)
model = ViTForImageClassification(
    ViTConfig(
        image_size=8, patch_size=2, num_channels=1, num_labels=10,
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64, initializer_range=0.1,
    )
)  # fmt: skip

with tempfile.TemporaryDirectory() as folder:
    trainer = Trainer(
        model,
        TrainingArguments(
            folder, num_train_epochs=4, per_device_train_batch_size=16, gradient_accumulation_steps=2,
            learning_rate=5e-3, eval_strategy="epoch", per_device_eval_batch_size=300, logging_strategy="epoch",
            save_strategy="no", report_to="none", use_cpu=True, dataloader_pin_memory=False, disable_tqdm=True,
        ),
        train_dataset=data["train"],
        eval_dataset=data["test"],
        compute_loss_func=compute_loss(hs.EncouragingLoss(log_end=0.75)),  # the line; without it: cross-entropy
        compute_metrics=lambda p: {"accuracy": (p.predictions.argmax(-1) == p.label_ids).mean()},
    )  # fmt: skip
    trainer.train()
    print(f"accuracy {trainer.evaluate()['eval_accuracy']:.1%}")
