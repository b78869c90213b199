"""Lion, which PyTorch does not have, as a few lines of it."""

import torch


class Lion(torch.optim.Optimizer):
    """Chen et al. 2023, "Symbolic discovery of optimization algorithms", algorithm 2."""

    def __init__(self, parameters, lr=1e-4, betas=(0.9, 0.99), weight_decay=0.0, maximize=False,
                 foreach=False, fused=False):
        super().__init__(parameters, {"lr": lr, "betas": betas, "weight_decay": weight_decay,
                                      "maximize": maximize})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for parameter in group["params"]:
                self.step_one(parameter, **group)

    def step_one(self, parameter, lr, betas, weight_decay, maximize, **_):
        gradient = -parameter.grad if maximize else parameter.grad
        momentum = self.state[parameter].setdefault("momentum", torch.zeros_like(parameter))
        update = momentum * betas[0] + gradient * (1 - betas[0])
        parameter.mul_(1 - lr * weight_decay).add_(update.sign(), alpha=-lr)
        momentum.mul_(betas[1]).add_(gradient, alpha=1 - betas[1])
