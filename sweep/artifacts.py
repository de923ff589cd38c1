"""The files of a stage on their way to MLflow and back."""

import contextlib
import os
import shutil
import tempfile
from pathlib import Path

from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository
from mlflow.tracking import MlflowClient

from sweep.records import Upload, local_folder


def place(folder: Path, uri: str, client: MlflowClient, run_id: str) -> None:
    """Make a stage's files a run's artifacts: by hard links where both are on one file system, by upload else."""
    target = local_folder(uri)
    if target is None:
        client.log_artifacts(run_id, str(folder))
        return
    for source in (path for path in folder.rglob("*") if path.is_file()):
        destination = target / source.relative_to(folder)
        destination.parent.mkdir(parents=True, exist_ok=True)
        destination.unlink(missing_ok=True)
        try:
            os.link(source, destination)
        except OSError:  # another file system, or one without hard links
            shutil.copyfile(source, destination)


def fetch(uri: str, folder: Path) -> None:
    """Download a run's artifacts into a folder that does not exist yet; whole or not at all."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f"{folder.name}.", suffix=".part", dir=folder.parent))
    get_artifact_repository(uri).download_artifacts("", str(temporary))
    with contextlib.suppress(OSError):  # another process was faster
        temporary.rename(folder)
    shutil.rmtree(temporary, ignore_errors=True)


def upload(to: Upload, folder: Path) -> None:
    """Make a folder's files the artifacts of a run, from a node that is not the driver's."""
    MlflowClient(to.tracking_uri).log_artifacts(to.run_id, str(folder))
