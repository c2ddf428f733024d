"""A timm training script in which one line is changed: the Encouraging Loss under mixup.

python examples/train_timm.py
"""

import timm
import torch
from sklearn.datasets import load_digits
from timm.data import Mixup
from timm.optim import create_optimizer_v2
from timm.utils import AverageMeter, accuracy

import hardsight as hs

torch.set_num_threads(1)  # a network this small gains nothing from a second one
torch.manual_seed(0)
pixels, labels = load_digits(return_X_y=True)
x, y = torch.tensor(pixels, dtype=torch.float32).view(-1, 1, 8, 8) / 16, torch.tensor(labels)
x = torch.nn.functional.interpolate(x, size=16, mode="bilinear")

model = timm.create_model("test_resnet", num_classes=10, in_chans=1)
optimizer = create_optimizer_v2(model, opt="adamw", lr=3e-3, weight_decay=0.05)
mixup_fn = Mixup(mixup_alpha=0.2, label_smoothing=0.1, num_classes=10)
# train_loss_fn = timm.loss.SoftTargetCrossEntropy()
train_loss_fn = hs.EncouragingLoss(log_end=0.75)

for epoch in range(4):
    model.train()
    losses = AverageMeter()
    for batch in torch.randperm(1500).split(50):
        inputs, target = mixup_fn(x[batch], y[batch])
        loss = train_loss_fn(model(inputs), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.update(loss.item(), len(batch))
    model.eval()
    with torch.no_grad():
        (top1,) = accuracy(model(x[1500:]), y[1500:])
    print(f"epoch {epoch}: loss {losses.avg:.3f} (below 0 is as it should be), accuracy {top1.item():.1f} %")
