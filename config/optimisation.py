"""The flags of train.py for the optimization."""

from dataclasses import dataclass

from config.flags import flag


@dataclass
class OptimFlags:
    """Optimization."""

    epochs: int = flag(50, "epochs of the run [recipe: steps instead]", ge=1, aliases="max_epochs")
    max_steps: int = flag(0, "optimizer steps, instead of --epochs; 0: --epochs [recipe]", ge=0, replaces="epochs")
    repeat: int = flag(
        1, "passes over the training list in an epoch, each in another order and augmented anew [recipe]", ge=1
    )
    batchsize: int = flag(
        16,
        "images per process and forward pass (of all processes: --total_batchsize) [recipe]",
        ge=1,
        aliases="batch_size",
    )
    total_batchsize: int = flag(
        0, "global batch, divided over processes; a new run keeps --lr; 0: --batchsize", ge=0, replaces="batchsize"
    )
    accum_steps: int = flag(
        1,
        "forward passes per optimizer step [recipe: 1, if the GPU has room]",
        ge=1,
        aliases="gradient_accumulation_steps",
    )
    optimizer: str = flag("sgd", "sgd (with --momentum) or adamw (with --betas) [recipe]", choices=("sgd", "adamw"))
    lr: float = flag(1e-3, "base learning rate, before --lr_scaling [recipe]", ge=0, aliases="learning_rate")
    lr_scaling: str = flag(
        "linear", "scale --lr by the world size; after --resume, by the batch ratio", choices=("linear", "sqrt", "none")
    )
    warmup_epochs: float = flag(
        -1.0,
        "epochs of linear warm-up (steps: --warmup_steps); --schedule follows [a tenth of the run]",
        ge=-1,
        aliases="warmup warmup_epoch",
    )
    warmup_steps: int = flag(-1, "optimizer steps of warm-up [--warmup_epochs]", ge=-1, replaces="warmup_epochs")
    schedule: str = flag(
        "cosine",
        "learning rate after the warm-up: cosine to 0, poly (to 0, with power 0.9) or constant",
        choices=("cosine", "poly", "constant"),
    )
    momentum: float = flag(0.9, "momentum of sgd", ge=0)
    betas: tuple[float, ...] = flag(
        (0.9, 0.999), "decay rates of adamw's averages of gradients and of their squares", ge=0, lt=1
    )
    wdecay: float = flag(5e-4, "weight decay [5e-4; recipe for adamw]", ge=0, aliases="weight_decay")
    decay_norm_bias: bool = flag(
        True, "--no_decay_norm_bias: no weight decay on norms and biases, nor on a ViT's position embeddings and tokens"
    )
    head_lr_factor: float = flag(1.0, "multiply the learning rate of the head and LoRM by this", gt=0)
    clip_grad: float = flag(
        0.0, "clip the gradient to this 2-norm over all parameters; 0: off", ge=0, aliases="max_grad_norm"
    )
    ema: float = flag(
        0.0, "decay of an exponential moving average of the weights, such as 0.999; 0: no average", ge=0, lt=1
    )
    seed: int = flag(0, "seed of initial weights, sample order and augmentation", ge=0, lt=2**63)
    deterministic: bool = flag(
        False, "use deterministic algorithms: runs repeat bit for bit on CUDA too, but are slower there"
    )
