"""Parameter groups: the learning rate and weight decay of each trained parameter."""

from torch import nn

from models.segmenter import Segmenter


def parameter_groups(
    model: Segmenter,
    *,
    weight_decay: float,
    decay_norm_bias: bool = True,
    layer_decay: float = 1.0,
    head_lr_factor: float = 1.0,
) -> list[dict]:
    """Return the trained parameters in groups for an optimizer, each with its "lr_factor" and "weight_decay".

    The learning rate of a parameter is the run's times lr_factor. The head and LoRM have head_lr_factor. The backbone's
    last part has layer_decay, the part before it layer_decay**2, and so on: layer-wise decay as in BEiT
    (arXiv:2106.08254). The backbone's depths() says which parameter is in which part. decay_norm_bias: if False, weight
    decay is 0 for norms, biases and the parameters of the backbone's no_weight_decay(), such as position embeddings.

    With the defaults there is one group, in the order of model.parameters().
    """
    factors = _backbone_factors(model, layer_decay)
    exempt = set() if decay_norm_bias else _without_decay(model)
    groups: dict[tuple[float, float], list[nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            settings = factors.get(name, head_lr_factor), 0.0 if name in exempt else weight_decay
            groups.setdefault(settings, []).append(parameter)
    return [
        {"params": parameters, "lr_factor": lr_factor, "weight_decay": decay}
        for (lr_factor, decay), parameters in groups.items()
    ]


def _backbone_factors(model: Segmenter, layer_decay: float) -> dict[str, float]:
    """Return {parameter of the backbone: factor on its learning rate}."""
    depths = model.backbone.depths()
    num_parts = 1 + max(depths.values())
    return {f"backbone.{name}": layer_decay ** (num_parts - depth) for name, depth in depths.items()}


def _without_decay(model: Segmenter) -> set[str]:
    """Return the names of norms' parameters, biases, and parameters that the backbone exempts."""
    exempt = {f"backbone.{name}" for name in model.backbone.no_weight_decay()}
    return exempt | {name for name, parameter in model.named_parameters() if parameter.ndim <= 1}
