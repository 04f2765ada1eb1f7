# docker build -t segtrain .
# docker run --rm --gpus all --shm-size 8g -v "$PWD/dataset:/segtrain/dataset" -v "$PWD/log:/segtrain/log" segtrain --config configs/camvid.yaml
# On every GPU: the same with --entrypoint torchrun before the image's name, and --standalone --nproc_per_node gpu train.py after it.
# pip's torch for Linux brings CUDA with it; the host needs the driver and nvidia-container-toolkit. Another index, such as
# PyTorch's for CPUs: --build-arg PIP_INDEX_URL=URL --build-arg PIP_EXTRA_INDEX_URL=URL
FROM python:3.12-slim
ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL
WORKDIR /segtrain
COPY requirements.txt .
# OpenCV's headless build needs no system libraries.
RUN sed -i 's/^opencv-python/opencv-python-headless/' requirements.txt \
    && pip install --no-cache-dir -r requirements.txt
COPY . .
# The user needs to own what is mounted at log/; docker run --user "$(id -u)" makes it yours.
RUN useradd --create-home --uid 1000 segtrain && mkdir -p dataset log && chown segtrain dataset log
USER segtrain
ENTRYPOINT ["python", "train.py"]
