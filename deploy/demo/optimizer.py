"""Muon for the matrices of the layers, AdamW for embeddings and norms, over parameters that several processes share.

Muon: https://kellerjordan.github.io/posts/muon (the update is the momentum's nearest orthogonal matrix, found by five Newton-Schulz steps).
"""
import torch

MOMENTUM, BETAS, EPSILON = 0.95, (0.9, 0.98), 1e-10


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


def muon(p, gradient, momentum, lr, weight_decay):
    """lr is the root mean square of an update's entries, as AdamW's is about."""
    momentum.lerp_(gradient, 1 - MOMENTUM)
    update = orthogonal(gradient.lerp(momentum, MOMENTUM))  # Nesterov's
    p.mul_(1 - lr * weight_decay).add_(update, alpha=-lr * max(p.shape) ** 0.5)


def adam(p, gradient, mean, square, lr, step):
    mean.lerp_(gradient, 1 - BETAS[0])
    square.lerp_(gradient * gradient, 1 - BETAS[1])
    corrected = (square / (1 - BETAS[1] ** step)).sqrt_().add_(EPSILON)
    p.addcdiv_(mean, corrected, value=-lr / (1 - BETAS[0] ** step))


class Shared:
    """The parameters in float32, each process's gradients and the optimizers' state, each one flat tensor in shared memory."""

    def __init__(self, model, num_ranks):
        self.shapes = {name: p.shape for name, p in model.named_parameters()}
        size = sum(shape.numel() for shape in self.shapes.values())
        new = lambda *sizes: torch.zeros(*sizes).share_memory_()
        self.master, self.gradients, self.state = new(size), new(num_ranks, size), new(2, size)
        for name, p in model.named_parameters():
            self.views(self.master)[name].copy_(p.detach())

    def views(self, flat):
        """name -> its part of a flat tensor"""
        parts = flat.split([shape.numel() for shape in self.shapes.values()])
        return {name: part.view(shape) for part, (name, shape) in zip(parts, self.shapes.items())}

    def owned_by(self, rank):
        """The names of the parameters this process updates."""
        return list(self.shapes)[rank::len(self.gradients)]

    @torch.no_grad()
    def update(self, rank, step, muon_lr, adam_lr, weight_decay):
        masters, first, second = (self.views(t) for t in (self.master, self.state[0], self.state[1]))
        gradients = [self.views(g) for g in self.gradients]
        for name in self.owned_by(rank):
            gradient = sum(g[name] for g in gradients)
            if gradient.ndim == 2 and "embed" not in name:
                muon(masters[name], gradient, first[name], muon_lr, weight_decay)
            else:
                adam(masters[name], gradient, first[name], second[name], adam_lr, step)
