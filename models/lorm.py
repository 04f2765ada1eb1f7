"""The localization rectification module of CDSP ("Scribble Hides Class", AAAI 2024)."""

import contextlib
from collections.abc import Iterator
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from support.batch import Foreground
from support.labels import is_foreground

BLOCK_SCORES = 2**22  # scores of the attention held at a time; fewer would leave a GPU idle
GROUP_POSITIONS = 4096  # small images are computed together up to this many positions; more would need more memory
ALIGNMENT = 16  # an image's keys are padded to a multiple of this: cuBLAS is slow at other sizes
NO_KEY = -1e4  # the score of a column that is not a key: its exponential is 0


class LoRM(nn.Module):
    """Pull the features at foreground positions towards the features at similar positions.

    With features x (B, C, H, W): q and k are 1x1 convolutions of x, A = softmax over keys of cosine(q_i, k_j), and
    y = gamma * A x, where gamma is learned. The loss is the sum of (x - y)^2 divided by its number of terms.

    scope: "foreground" sums over the foreground's positions; a batch without foreground has loss 0. "all" is the
    release's loss: it sums over all positions, with y = 0 outside the foreground, which pulls background features to
    0. It counts the non-zero terms, so the count depends on the features.
    """

    def __init__(self, channels: int, scope: str = "foreground"):
        super().__init__()
        assert scope in ("foreground", "all"), scope
        self.scope = scope
        self.query_conv = nn.Conv2d(channels, channels, 1)
        self.key_conv = nn.Conv2d(channels, channels, 1)
        self.gamma = nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor, foreground: Foreground) -> dict[str, Tensor]:
        """Return {"lorm": sum of (x - y)^2, a scalar, float32 or float64}, not divided by the number of terms.

        The number is C per position of the foreground; scope "all" adds {"lorm_count": the number, int64}.
        x: (B, C, H, W); channels-last order needs no copy. The products have x's type or autocast's, but float32
        instead of fp16, in which they overflow. The rest is float32, or float64 if x is. The backward pass can run
        once; there is no double backward.
        """
        device, dtype = x.device.type, x.dtype
        if torch.is_autocast_enabled(device) and dtype != torch.float64:
            dtype = torch.get_autocast_dtype(device)
        rows = x.flatten(2).transpose(1, 2)  # (B, C, H, W) -> (B, H*W, C)
        # Off, because autocast would choose a type per operation, and here gradients and sums must stay exact.
        with torch.autocast(device, enabled=False):
            total, num_terms = _SumOfSquares.apply(
                rows.to(torch.float32 if dtype == torch.float16 else dtype),
                self.gamma,
                *self.query_conv.parameters(),
                *self.key_conv.parameters(),
                foreground,
                self.scope == "all",
            )
        return {"lorm": total} | ({"lorm_count": num_terms} if self.scope == "all" else {})


class _Layers(NamedTuple):
    """gamma (1,) and the two 1x1 convolutions, weights (C, C) and biases (C,); or the gradients of these."""

    gamma: Tensor
    query_weight: Tensor
    query_bias: Tensor
    key_weight: Tensor
    key_bias: Tensor


class _SumOfSquares(torch.autograd.Function):
    """LoRM's sum of squares for x (B, H*W, C), and its number of non-zero terms.

    The loss is a sum, so the upstream gradient only scales its gradients. The forward pass computes them while it
    holds a block of the attention. So it keeps no attention, q, k or y, and the backward pass computes nothing twice.
    """

    @staticmethod
    def forward(ctx, x, gamma, query_weight, query_bias, key_weight, key_bias, foreground, everywhere):
        exact = torch.float64 if x.dtype == torch.float64 else torch.float32
        parameters = (query_weight, query_bias, key_weight, key_bias)
        layers = _Layers(gamma.to(exact), *(_as_matrix(value).to(x.dtype) for value in parameters))
        # Contiguous, because x may be a transposed view, of which no view joins images and positions.
        grad_x = torch.zeros_like(x, memory_format=torch.contiguous_format)
        # zeros_like keeps the parameters' strides: DDP copies gradients with other strides.
        param_grads = [torch.zeros_like(value, dtype=exact) for value in (gamma, *parameters)]
        grads = _Layers(*map(_as_matrix, param_grads))
        total, num_terms = layers.gamma.new_zeros(()), gamma.new_zeros((), dtype=torch.int64)
        # q and k are convolutions that this class computes as products, so they follow the convolutions' setting.
        with precision_of_convolutions() if x.is_cuda else contextlib.nullcontext():
            for images, group in _groups(foreground, *x.shape[:2]):
                if any(group.counts):  # without queries, the products would be of size 0
                    squares = _Images(x[images], group, layers).squares(grad_x[images], grads)
                    total, num_terms = total + squares.sum(), num_terms + torch.count_nonzero(squares)
                if everywhere:
                    # y is 0 in the background, so (x - y)^2 is x^2, with the gradient 2 x.
                    background = x[images].flatten(0, 1).index_fill(0, group.positions, 0.0)
                    grad_x[images].view_as(background).add_(background, alpha=2)
                    squares = background.to(exact).square_()
                    total, num_terms = total + squares.sum(), num_terms + torch.count_nonzero(squares)
        ctx.save_for_backward(grad_x, *param_grads)
        ctx.mark_non_differentiable(num_terms)
        return total, num_terms

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_total, _):
        # In place, because memory is at its peak here. By a tensor of one element: a 0-d one would be rounded to bf16.
        scale = grad_total.view(1)
        return *(grad.mul_(scale) for grad in ctx.saved_tensors), None, None


def _as_matrix(parameter: Tensor) -> Tensor:
    """Return a view (C, C) of a 1x1 convolution's weight (C, C, 1, 1), and others as they are."""
    return parameter.flatten(1) if parameter.ndim > 1 else parameter


class _Images:
    """LoRM of the features x (B, H*W, C) of some images. The positions of `queries` are those of _groups()."""

    def __init__(self, x: Tensor, queries: Foreground, layers: _Layers):
        self.x, self.positions, self.counts, self.layers = x.flatten(0, 1), *queries, layers
        self.exact = layers.gamma.dtype
        self.rows = self.x.index_select(0, self.positions)  # only queries need q: usually a small part of x
        self.query, self.query_norm = self._normalize(torch.addmm(layers.query_bias, self.rows, layers.query_weight.T))
        key, self.key_norm = self._normalize(torch.addmm(layers.key_bias, self.x, layers.key_weight.T))
        # A row of A sums to 1, so A (x - mean) = A x - mean. Products of the smaller values lose less by rounding.
        self.means = x.mean(1)
        self.num_keys = x.shape[1]
        padding = 0, 0, 0, -self.num_keys % ALIGNMENT
        self.keys, self.values = F.pad(key.view_as(x), padding), F.pad(x - self.means.unsqueeze(1), padding)
        self.residual = torch.empty_like(self.rows, dtype=self.exact)  # x - y at the positions
        # Every query is written once, but all blocks of queries add to the keys.
        self.grad_query, self.grad_keys = torch.empty_like(self.query), torch.zeros_like(self.keys)
        self.key_dots = self.key_norm.new_zeros(*self.keys.shape[:2], 1)

    def squares(self, grad_x: Tensor, grads: _Layers) -> Tensor:
        """Return (x - y)^2 at the positions, (N, C). Write the gradient of its sum to grad_x; add the layers' to grads.

        grad_x: (B, H*W, C), contiguous.
        """
        first, grad_values = 0, torch.zeros_like(self.values)
        for image, count in enumerate(self.counts):
            for queries in _blocks(count, self.keys.shape[1], first):
                self._attend(image, queries, grad_values[image], grads)
            first += count
        grad_x.copy_(grad_values[:, : self.num_keys])
        self._add_gradients(grad_x.flatten(0, 1), grads)
        return self.residual.square_()

    def _attend(self, image: int, queries: slice, grad_values: Tensor, grads: _Layers) -> None:
        """Compute the residual of some queries of an image, and the gradients that need their scores."""
        query, key, values = self.query[queries], self.keys[image], self.values[image]
        # Cosines are at most 1, so their exponentials need no shift.
        scores = query @ key.T
        scores[:, self.num_keys :] = NO_KEY  # the padding's keys are 0: their exponential would be 1
        exponentials = scores.exp()
        sums = exponentials.sum(1, keepdim=True, dtype=self.exact)
        shifted = (exponentials @ values) / sums  # divide after the product, because A in bf16 would be rounded
        rectified = shifted + self.means[image]
        residual = torch.sub(self.rows[queries], self.layers.gamma * rectified, out=self.residual[queries])
        grads.gamma.sub_(2 * (residual * rectified).sum())
        # A x = E x / s with E = exp(S). The gradients of E x, and of the scores S:
        grad_product = (residual * (-2 * self.layers.gamma) / sums).to(values.dtype)
        torch.addmm(grad_values, exponentials.T, grad_product, out=grad_values)
        grad_scores = grad_product @ values.T
        grad_scores = (grad_scores - (grad_product * shifted).sum(1, keepdim=True)).mul_(exponentials)
        dots = scores.mul_(grad_scores)  # in place, which saves one more block of scores
        grad_scores = grad_scores.to(values.dtype)
        # The gradient of q / |q| is orthogonal to q, and that of k / |k| to k.
        query_dots = dots.sum(1, keepdim=True, dtype=self.exact)
        self.grad_query[queries] = (grad_scores @ key - query * query_dots) / self.query_norm[queries]
        torch.addmm(self.grad_keys[image], grad_scores.T, query, out=self.grad_keys[image])
        self.key_dots[image] += dots.sum(0, dtype=self.exact).unsqueeze(1)

    def _add_gradients(self, grad_x: Tensor, grads: _Layers) -> None:
        """Add the gradients of the convolutions' inputs, weights and biases, and of x in x - y."""
        grad_query, padded = self.grad_query, (self.keys, self.grad_keys, self.key_dots)
        key, grad_key, dots = (values[:, : self.num_keys].flatten(0, 1) for values in padded)
        grad_key.addcmul_(key, dots, value=-1).div_(self.key_norm)
        grads.query_weight.add_(grad_query.T @ self.rows)
        grads.query_bias.add_(grad_query.sum(0, dtype=self.exact))
        grads.key_weight.add_(grad_key.T @ self.x)
        grads.key_bias.add_(grad_key.sum(0, dtype=self.exact))
        torch.addmm(grad_x, grad_key, self.layers.key_weight, out=grad_x)
        # x reaches the loss in three ways: through keys and values, through the queries, and as x in x - y.
        grad_rows = torch.add(grad_query @ self.layers.query_weight, self.residual, alpha=2)
        grad_x.index_add_(0, self.positions, grad_rows.to(grad_x.dtype))

    def _normalize(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Divide rows by their norm in place; return them and the norms (N, 1)."""
        norm = torch.linalg.vector_norm(x, dim=1, keepdim=True, dtype=self.exact).clamp_min(1e-12)  # as F.normalize
        return x.div_(norm), norm


def foreground_mask(pseudo_label: Tensor, size: tuple[int, int], background: int | None = 0) -> Tensor:
    """Return where the foreground, resized bilinearly to `size`, is above 0: (B, *size) bool.

    pseudo_label: (B, H, W), classes, 255 = unlabelled. Every class but `background` is foreground; None: every class.
    """
    foreground = is_foreground(pseudo_label, background)
    return F.interpolate(foreground.unsqueeze(1).float(), size=size, mode="bilinear", align_corners=True).squeeze(1) > 0


def find_foreground(pseudo_label: Tensor, *, size: tuple[int, int], background: int | None = 0) -> Foreground:
    """Return the Foreground of a pseudo-label (B, H, W) uint8 in CPU memory, at feature maps of this size.

    The loader's workers call this: the number of positions depends on the values, for which a GPU makes the CPU wait.
    """
    mask = foreground_mask(pseudo_label, size, background).flatten(1)  # (B, H, W) -> (B, H*W)
    return Foreground(mask.nonzero()[:, 1].contiguous(), mask.sum(1).tolist())


def _groups(foreground: Foreground, num_images: int, num_positions: int) -> Iterator[tuple[slice, Foreground]]:
    """Split a batch into images whose queries and keys are computed together: one large image, or several small ones.

    The positions of a group are indices into its images' joined positions, 0..num_images*H*W-1.
    """
    size = max(1, GROUP_POSITIONS // num_positions)
    by_image = foreground.positions.split(list(foreground.counts))  # counts are numbers: the CPU need not wait
    for first in range(0, num_images, size):
        images = slice(first, first + size)
        positions = [values + number * num_positions for number, values in enumerate(by_image[images])]
        yield images, Foreground(torch.cat(positions), foreground.counts[images])


def _blocks(num_queries: int, num_keys: int, first: int) -> Iterator[slice]:
    """Split the queries from `first` on into equal slices of at most BLOCK_SCORES scores."""
    num_blocks = max(1, -(-num_queries * num_keys // BLOCK_SCORES))
    # Equal slices: a small last one would take almost the time of a full one.
    size = max(1, -(-num_queries // num_blocks))
    for start in range(0, num_queries, size):
        yield slice(first + start, first + min(start + size, num_queries))


@contextlib.contextmanager
def precision_of_convolutions() -> Iterator[None]:
    """Let float32 products on CUDA use TF32 where convolutions do, as torch's default is for them."""
    products = torch.backends.cuda.matmul
    before = products.fp32_precision
    products.fp32_precision = torch.backends.cudnn.conv.fp32_precision  # type: ignore[attr-defined]
    try:
        yield
    finally:
        products.fp32_precision = before
