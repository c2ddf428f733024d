# CPU:   docker build -t hardsight .
# CUDA:  docker build -t hardsight:cuda --build-arg TORCH_BACKEND=cu128 .    (run it with --gpus all)
# Use:   docker run --rm -v "$PWD:/data" hardsight score timm:resnet50 photos --folds 5 -o run
FROM python:3.12-slim

# Any value of `uv pip install --torch-backend`. CUDA itself comes with the wheels of PyTorch.
ARG TORCH_BACKEND=cpu
ARG EXTRAS=all

RUN pip install --no-cache-dir uv
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY src src
RUN uv pip install --system --no-cache --torch-backend "$TORCH_BACKEND" ".[$EXTRAS]"

# What is read may come from anywhere, so nothing here runs as root.
RUN useradd --create-home user
USER user
WORKDIR /data
ENTRYPOINT ["hardsight"]
CMD ["--help"]
