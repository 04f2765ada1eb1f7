#!/usr/bin/env bash
# From images and scribbles to a scored model: bash scripts/scribble_pipeline.sh DATA WORK [flags of train.py]
# DATA: a data set in VOC's layout; without its pascal_2012_scribble, strokes are simulated from the dense masks, by the
# flags in SIMULATE. WORK: folder for all results. ROUNDS: pseudo-labels and trainings on them [2]. Run it again to go on.
set -euo pipefail
[ $# -ge 2 ] || { sed -n 2,4p "$0" >&2; exit 2; }
DATA=$(realpath "$1") WORK=$(realpath -m "$2") STROKES=$(realpath "$1")/pascal_2012_scribble; shift 2
[ -d "$STROKES" ] || { STROKES=$WORK/strokes && python -m data.scribbles simulate "$(ls -d "$DATA"/SegmentationClass* | tail -1)" "$STROKES" ${SIMULATE:-}; }
train() { python train.py --dataset_path "$DATA" --train_path "$STROKES" --logdir "$WORK" --resume auto "${@:2}" --name "$1"; }
train round_0 "$@" --dataset ScribbleOnly
for round in $(seq "${ROUNDS:-2}"); do
  python pseudo.py --checkpoint "$WORK/round_$((round - 1))/best.pt" --output "$WORK/pseudo_$round"
  train "round_$round" "$@" --dataset ScribblePseudo --pseudo_path "$WORK/pseudo_$round"
done
python evaluate.py --checkpoint "$WORK/round_${ROUNDS:-2}/best.pt" --compare "$WORK/round_0/best.pt" --report "$WORK/report"
