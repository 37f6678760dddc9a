"""What one worker keeps: memory and the kernels of one spec."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.func import functional_call

from server_kit.simulation.training.direct import DirectKernel
from server_kit.simulation.training.kernel import Kernel
from server_kit.simulation.training.module_kernel import ModuleKernel
from server_kit.simulation.training.module_spec import ModuleSpec, cross_entropy
from server_kit.simulation.training.network import Network
from server_kit.simulation.training.noise import NoiseScratch
from server_kit.simulation.training.row_space import RowSpaceKernel
from server_kit.simulation.training.specs import Cnn, StackedSpec
from server_kit.simulation.training.workspace import Workspace

Spec = StackedSpec | ModuleSpec


class Bench:
    """Trains and evaluates chunks, one at a time."""

    def __init__(self, spec: Spec, where: torch.device | None = None) -> None:
        self.spec = spec
        self.where = where or torch.device("cpu")
        self.workspace = Workspace(self.where)
        self.noise_scratch = NoiseScratch()
        self._kernels: dict[bool, Kernel] = {}
        if isinstance(spec, ModuleSpec):
            self._module = spec.module().eval().to(self.where)
            self._kernels[False] = ModuleKernel(spec, self.workspace, self.where)
        else:
            self._network = Network(spec, self.workspace)
            self._kernels[False] = DirectKernel(spec, self.workspace)
            if not isinstance(spec, Cnn):
                self._kernels[True] = RowSpaceKernel(spec, self.workspace)

    def kernel(self, *, row_space: bool) -> Kernel:
        return self._kernels[row_space]

    def outputs(self, models: Tensor, inputs: Tensor) -> Tensor:
        """What models [k, size] answer to records [k, rows, features], each to its own."""
        if isinstance(self.spec, ModuleSpec):
            inputs = inputs.view(*inputs.shape[:2], *self.spec.input_shape)
            with torch.no_grad():
                answers = [
                    functional_call(self._module, self.spec.layout.views(model), (own,))
                    for model, own in zip(models, inputs, strict=True)
                ]
            return torch.stack(answers)
        self._network.begin(*inputs.shape[:2])
        return self._network.forward(self._network.bind(models), inputs)

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The loss of each record, flat."""
        loss = self.spec.loss if isinstance(self.spec, ModuleSpec) else cross_entropy
        return loss(outputs.flatten(0, 1), targets.flatten(0, 1))
