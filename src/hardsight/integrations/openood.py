"""OpenOOD: hardsight's scores as post-processors.

OpenOOD is on no package index. If it is installed, the class here inherits from its base class, which its evaluator
requires; otherwise it has the same methods.
"""

from __future__ import annotations

import importlib.util
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hardsight.extras import need
from hardsight.heads import capture, logits_of, uncompiled
from hardsight.ood import DETECTORS, ood_scores

_Base: Any = need("openood.postprocessors").BasePostprocessor if importlib.util.find_spec("openood") else object


class Postprocessor(_Base):
    """A score of `hardsight.ood.DETECTORS` as a OpenOOD post-processor; higher is more in-distribution, as there.

    ::

        evaluator = openood.evaluation_api.Evaluator(net, "cifar10", postprocessor=Postprocessor("avc"))
        evaluator.eval_ood()

    Args:
        name: ``avc``, ``avh``, ``angular_margin``, ``max_logit``, ``free_energy`` or ``msp``.
    """

    # Required by the evaluator: there are no hyperparameters to search for.
    APS_mode = False
    hyperparam_search_done = True

    def __init__(self, name: str) -> None:
        (self.name,) = DETECTORS.names(name)
        self.config = None

    def setup(self, net: nn.Module, id_loader_dict: Any, ood_loader_dict: Any) -> None:
        """Nothing to fit."""

    @torch.no_grad()
    def postprocess(self, net: nn.Module, data: Tensor) -> tuple[Tensor, Tensor]:
        """Predicted class and score of each sample of a batch, ``(N,)`` both."""
        network = uncompiled(net)
        with capture(network) as head:
            logits = logits_of(network, data)
            score = ood_scores(logits, head.features, head.weight, [self.name])[self.name]
        return logits.argmax(1), torch.from_numpy(score)

    def inference(
        self, net: nn.Module, data_loader: Any, progress: bool = True
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Predicted classes, scores and labels of all batches ``{"data": …, "label": …}``, on the network's device."""
        from tqdm import tqdm

        device = next((p.device for p in net.parameters()), torch.device("cpu"))
        batches = [
            (*self.postprocess(net, batch["data"].to(device)), batch["label"])
            for batch in tqdm(data_loader, disable=None if progress else True)
        ]
        predicted, score, label = (
            torch.cat([part.cpu() for part in parts]).numpy() for parts in zip(*batches, strict=True)
        )
        return predicted.astype(int), score, label.astype(int)
