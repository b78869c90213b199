"""Lion, which PyTorch does not have, as a few lines of it."""

import torch


class Lion(torch.optim.Optimizer):
    """Chen et al. 2023, "Symbolic discovery of optimization algorithms", algorithm 2."""

    def __init__(self, parameters, lr, betas=(0.9, 0.99), weight_decay=0.0, maximize=False,
                 foreach=False, fused=False):
        super().__init__(parameters, {"lr": lr})
        self.lr, self.betas, self.weight_decay = lr, betas, weight_decay
        self.sign = -1 if maximize else 1

    @torch.no_grad()
    def step(self):
        for parameter in self.param_groups[0]["params"]:
            gradient = self.sign * parameter.grad
            momentum = self.state[parameter].setdefault("momentum", torch.zeros_like(parameter))
            update = momentum * self.betas[0] + gradient * (1 - self.betas[0])
            parameter.mul_(1 - self.lr * self.weight_decay).add_(update.sign(), alpha=-self.lr)
            momentum.mul_(self.betas[1]).add_(gradient, alpha=1 - self.betas[1])
