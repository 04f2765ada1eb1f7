"""Flags of train.py that stand for others: other names, and other ways to say the same."""

# Names of earlier launch scripts and of the guides (docs/guides.md).
# {their name, or SECTION.KEY of a YAML file: our name, and after a space what to say with it}
ALIASES = {
    "pesudo_path": "pseudo_path",
    "l_pesudo": "l_pseudo",
    "l_segs": "l_seg",
    "warmup": "warmup_epochs (for a number of steps: warmup_steps)",
    "warmup_epoch": "warmup_epochs",
    "chk_interval": "save_epoch_frequency",
    "val_epoch": "val_start_epoch",
    "model_path": "pretrained",
    "ddp": "distributed",
    "use_ddp": "distributed",
    "ddp.enabled": "distributed",
    "ddp.log_level": "log_level",
    "batch_size": "batchsize (images per process; for a number that is divided over processes: total_batchsize)",
    "valid_batch_size": "val_batchsize",
    "num_workers": "workers",
    "valid_num_workers": "val_workers",
    "logs": "logdir",
    "save_dir": "logdir",
    "learning_rate": "lr",
    "wd": "wdecay",
    "max_epochs": "epochs",
    "accumulation_steps": "accum_steps",
    "grad_accumulation_steps": "accum_steps",
    "valid_step_interval": "val_step_frequency",
    "valid_epoch_interval": "val_epoch_frequency",
    "use_augment": "augment",
}

# {a flag: the one that counts instead of it, where both are given}
INSTEAD = {"batchsize": "total_batchsize", "epochs": "max_steps", "warmup_epochs": "warmup_steps"}
