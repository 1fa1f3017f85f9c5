"""Muon for the matrices of the layers, AdamW for embeddings and norms.

Muon: https://kellerjordan.github.io/posts/muon (the update is the momentum's nearest orthogonal matrix, found by five Newton-Schulz steps).
"""
import torch


def orthogonal(matrix, steps=5):
    """About U V^T of matrix = U S V^T, of [n, m] or a stack of them; quintic iteration with the coefficients of the source."""
    a, b, c = 3.4445, -4.7750, 2.0315
    x = matrix.bfloat16()
    tall = x.size(-2) > x.size(-1)
    if tall:
        x = x.mT
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(steps):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return (x.mT if tall else x).to(matrix.dtype)


class Muon(torch.optim.Optimizer):
    """lr is the root mean square of an update's entries, as AdamW's is about."""

    def __init__(self, params, lr, momentum=0.95, weight_decay=0.0):
        super().__init__(params, dict(lr=lr, momentum=momentum, weight_decay=weight_decay))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            by_shape = {}
            for p in group["params"]:
                by_shape.setdefault(p.shape, []).append(p)
            for shape, params in by_shape.items():
                updates = torch.stack([self._momentum(p, group["momentum"]) for p in params])
                scale = group["lr"] * max(shape) ** 0.5
                for p, update in zip(params, orthogonal(updates)):
                    p.mul_(1 - group["lr"] * group["weight_decay"]).add_(update, alpha=-scale)

    def _momentum(self, p, momentum):
        buffer = self.state[p].setdefault("momentum", torch.zeros_like(p))
        buffer.lerp_(p.grad, 1 - momentum)
        return p.grad.lerp(buffer, momentum)  # Nesterov's


def make_optimizers(model, muon_lr, adam_lr, weight_decay):
    matrices = [p for name, p in model.named_parameters() if p.ndim == 2 and "embed" not in name]
    rest = [p for name, p in model.named_parameters() if p.ndim != 2 or "embed" in name]
    adam = torch.optim.AdamW(rest, lr=adam_lr, betas=(0.9, 0.98), eps=1e-10, weight_decay=0.0)
    return [Muon(matrices, muon_lr, weight_decay=weight_decay), adam]
