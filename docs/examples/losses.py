"""Losses for --loss ce+0.5*docs/examples/losses.py:NAME, divided by their count over the global batch."""

import torch.nn.functional as F

IGNORE = 255  # the label of pixels without a class


class Focal:
    """Focal loss of gamma 2 (arXiv:1708.02002): well-classified pixels count less."""

    def count(self, labels):
        return (labels != IGNORE).sum()

    def sum(self, logits, labels):
        cross_entropy = F.cross_entropy(logits, labels.long(), ignore_index=IGNORE, reduction="none")  # 0 if ignored
        return ((1 - (-cross_entropy).exp()) ** 2 * cross_entropy).sum()


class Tversky:
    """1 - Tversky index (arXiv:1706.05721) per image and class: a missed pixel counts 0.7, a false one 0.3."""

    def count(self, labels):
        return sum(len(label[label != IGNORE].unique()) for label in labels)

    def sum(self, logits, labels):
        total = logits.sum() * 0  # a scalar with a gradient, even if no pixel is labelled
        for probs, label in zip(logits.softmax(1), labels, strict=True):
            labelled = label != IGNORE
            for number in label[labelled].unique().tolist():
                p, inside = probs[number][labelled], label[labelled] == number
                hit, missed, false = p[inside].sum(), (1 - p[inside]).sum(), p[~inside].sum()
                total = total + 1 - hit / (hit + 0.7 * missed + 0.3 * false)
        return total
