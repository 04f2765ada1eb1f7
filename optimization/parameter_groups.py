"""Parameter groups: the learning rate and weight decay of each trained parameter."""

from torch import nn

from models.segmenter import Segmenter


def parameter_groups(
    model: Segmenter, *, weight_decay: float, decay_norm_bias: bool = True, head_lr_factor: float = 1.0
) -> list[dict]:
    """Return the trained parameters in groups for an optimizer, each with its "lr_factor" and "weight_decay".

    The learning rate of a parameter is the run's times lr_factor: head_lr_factor for the head and LoRM, 1 for the
    backbone. decay_norm_bias: if False, weight decay is 0 for norms, biases and the parameters of the backbone's
    no_weight_decay(), such as position embeddings. With the defaults there is one group, in the order of
    model.parameters().
    """
    exempt = {f"backbone.{name}" for name in model.backbone.no_weight_decay()}
    groups: dict[tuple[float, float], list[nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            lr_factor = 1.0 if name.startswith("backbone.") else head_lr_factor
            is_exempt = not decay_norm_bias and (parameter.ndim <= 1 or name in exempt)
            settings = lr_factor, 0.0 if is_exempt else weight_decay
            groups.setdefault(settings, []).append(parameter)
    return [
        {"params": parameters, "lr_factor": lr_factor, "weight_decay": decay}
        for (lr_factor, decay), parameters in groups.items()
    ]
