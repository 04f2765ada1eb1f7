"""Freezing the first parts of a backbone, so that neither gradients nor statistics are computed for them."""

from torch import nn

from support.errors import UserError


def freeze(backbone: nn.Module, num_parts: int) -> list[nn.Module]:
    """Freeze the first `num_parts` parts of a backbone, counted from the input as in its depths().

    Their parameters no longer require gradients, so autograd keeps nothing for them. Return the modules that must stay
    in evaluation mode, so that batch norm uses its stored statistics and does not update them. Raises UserError if
    the backbone has fewer parts.
    """
    depths = backbone.depths()  # type: ignore[operator]
    total = 1 + max(depths.values())
    if num_parts > total:
        raise UserError(f"--freeze_backbone {num_parts}: the backbone has {total} parts: give 0 to {total}")
    for name, parameter in backbone.named_parameters():
        if depths[name] < num_parts:
            parameter.requires_grad_(False)
    frozen = []
    for prefix, module in backbone.named_modules():
        own = [depths[f"{prefix}.{name}".lstrip(".")] for name, _ in module.named_parameters()]
        if own and max(own) < num_parts:
            frozen.append(module)
    return frozen
