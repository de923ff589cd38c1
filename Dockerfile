# The images of a cluster, all from the pins in constraints.txt. docs/kubernetes.md has the build commands.
#   --target sweep  --build-arg EXTRA=cpu   head, CPU workers, submitter
#   --target sweep  --build-arg EXTRA=gpu   GPU workers
#   --target mlflow                         MLflow server

# A tag and no digest: it stays on Python 3.11 and Debian 12 and takes in their security fixes. Ray wants one Python, to the patch,
# on all nodes, so build the CPU and the GPU image together.
FROM python:3.11-slim-bookworm AS base
ENV PYTHONUNBUFFERED=1 PIP_NO_CACHE_DIR=1 PIP_ROOT_USER_ACTION=ignore
# KubeRay probes Ray's health with wget. Without a version: Debian's archive keeps only the newest, so a pin would soon break the build.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends wget \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --uid 1000 --create-home --shell /bin/bash sweep
WORKDIR /opt/sweep
COPY constraints.txt ./


FROM base AS mlflow
RUN pip install -c constraints.txt mlflow psycopg2-binary boto3
# By number, so that Kubernetes can see that it is not root.
USER 1000:1000
EXPOSE 5000
CMD ["mlflow", "server", "--help"]


FROM base AS sweep
# Packages go into /usr/local, not into a virtual environment: a login shell, which an operator may start Ray in, resets PATH.
# First and alone, because of its size: the default index's PyTorch brings CUDA 13. For a lean CPU image give TORCH_INDEX, the index that
# PyTorch publishes its CPU builds on.
# TensorFlow is the CPU build in both: its CUDA extra asks for the CUDA 12 builds of libraries that are there for CUDA 13.
ARG EXTRA=cpu
ARG TORCH_INDEX=
RUN case "$EXTRA" in \
        cpu) pip install --no-deps -c constraints.txt ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} torch ;; \
        gpu) pip install -c constraints.txt torch ;; \
        *) echo "EXTRA is cpu or gpu, not '$EXTRA'" >&2; exit 1 ;; \
    esac
COPY . ./
# ray[default] adds the dashboard, through which KubeRay submits and watches the job.
RUN pip install -c constraints.txt --editable . "ray[default]" \
    && pip check \
    && install --directory --owner=sweep --group=sweep mlruns
# An image has no version control in it; this is what runs record as their commit.
ARG GIT_COMMIT=unknown
ENV SWEEP_GIT_COMMIT=$GIT_COMMIT
USER 1000:1000
CMD ["python", "-m", "sweep.launch", "--help"]
