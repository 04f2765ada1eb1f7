#!/usr/bin/env bash
# From images and scribbles to a scored model: bash scripts/scribble_pipeline.sh DATA WORK --config FILE ...
# DATA: a data set in VOC's layout. WORK: folder for all results. The rest are flags of each training run.
# Without DATA/pascal_2012_scribble, strokes are simulated from the dense masks. Started again, it goes on where it was.
set -euo pipefail
DATA=$(realpath "$1") WORK=$(realpath -m "$2") MASKS=${MASKS:-SegmentationClass} SCRIBBLES=${SCRIBBLES:-pascal_2012_scribble}; shift 2
STROKES=$DATA/$SCRIBBLES
[ -d "$STROKES" ] || { STROKES=$WORK/strokes; python -m data.scribbles simulate "$DATA/$MASKS" "$STROKES"; }
train() { python train.py --dataset_path "$DATA" --train_path "$STROKES" --logdir "$WORK" --resume auto "$@"; }
train "$@" --dataset ScribbleOnly --name round_0
for round in $(seq "${ROUNDS:-2}"); do
  python pseudo.py --checkpoint "$WORK/round_$((round - 1))/best.pt" --output "$WORK/pseudo_$round"
  train "$@" --dataset ScribblePseudo --pseudo_path "$WORK/pseudo_$round" --name "round_$round"
done
python evaluate.py --checkpoint "$WORK/round_$round/best.pt" --compare "$WORK/round_0/best.pt" --report "$WORK/report"
