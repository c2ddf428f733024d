"""A Lightning training script in which one line is changed: the Encouraging Loss in a module.

python examples/train_lightning.py
"""

import lightning as L
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import hardsight as hs

torch.set_num_threads(1)  # a network this small gains nothing from a second one
L.seed_everything(0, verbose=False)
pixels, labels = load_digits(return_X_y=True)
x, y = torch.tensor(pixels, dtype=torch.float32) / 16, torch.tensor(labels)


class Digits(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
        # self.loss = nn.CrossEntropyLoss()
        self.loss = hs.EncouragingLoss(log_end=0.75)

    def training_step(self, batch, batch_idx):
        inputs, target = batch
        loss = self.loss(self.net(inputs), target)
        self.log("loss", loss, on_step=False, on_epoch=True)
        return loss

    def validation_step(self, batch, batch_idx):
        inputs, target = batch
        self.log("accuracy", (self.net(inputs).argmax(1) == target).float().mean())

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=3e-3)


trainer = L.Trainer(
    max_epochs=10, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
    enable_model_summary=False,
)  # fmt: skip
train_loader = DataLoader(TensorDataset(x[:1500], y[:1500]), batch_size=100, shuffle=True)
trainer.fit(Digits(), train_loader, DataLoader(TensorDataset(x[1500:], y[1500:]), batch_size=297))
found = trainer.callback_metrics
print(f"loss {found['loss']:.3f} (below 0 is as it should be), accuracy {found['accuracy']:.1%}")
