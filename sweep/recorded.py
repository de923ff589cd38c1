"""What MLflow has of a sweep that ran, to read."""

import contextlib
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pandas
from mlflow.entities import Experiment, Run, ViewType
from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository
from mlflow.tracking import MlflowClient

from sweep.axes import STAGES_EXPERIMENT
from sweep.errors import StoreUnavailable
from sweep.records import CellRecord, local_folder

PAGE = 10_000


class Recorded(NamedTuple):
    """A sweep as MLflow has it: its rows, and how many cells its last end counted by outcome (`cells_ok`, ...)."""

    rows: list[CellRecord]
    counts: dict[str, float]


def sweeps(tracking_uri: str) -> list[str]:
    """The names of a store's sweeps. Raises StoreUnavailable, also where there is no such database: to read makes none."""
    path = Path(tracking_uri.removeprefix("sqlite:///"))
    if tracking_uri.startswith("sqlite:///") and not path.is_file():
        raise StoreUnavailable(f"store.tracking_uri: {tracking_uri!r} can't be used: there is no file {path}")
    with reachable(tracking_uri):
        experiments = MlflowClient(tracking_uri).search_experiments()
        return sorted(each.name for each in experiments if each.name not in (STAGES_EXPERIMENT, "Default"))


def read_sweep(tracking_uri: str, sweep: str) -> Recorded:
    """One of `sweeps`: its rows in the order they were written, half written ones left out. Raises StoreUnavailable."""
    with reachable(tracking_uri):
        client = MlflowClient(tracking_uri)
        experiment = client.get_experiment_by_name(sweep)
        if experiment is None:
            raise StoreUnavailable(f"there is no sweep {sweep!r} in this store")
        runs = list(each_run(client, experiment))
    rows = [_row(run) for run in runs if run.data.tags.get("stage") == "cell" and run.info.status != "RUNNING"]
    counts = [dict(run.data.metrics) for run in runs if run.data.tags.get("stage") == "sweep"]
    return Recorded(rows, counts[-1] if counts else {})


def evaluations(tracking_uri: str, row: CellRecord) -> list[pandas.DataFrame]:
    """`outcomes.parquet` of each evaluation that a row rests on, the source's before its own. Raises StoreUnavailable."""
    with reachable(tracking_uri), tempfile.TemporaryDirectory() as temporary:
        client = MlflowClient(tracking_uri)
        runs = [client.get_run(run_id) for run_id in row.tags["stage_runs"].split(",")]
        places = [run.data.tags["location"] for run in runs if run.data.tags["stage"] == "evaluate"]
        return [pandas.read_parquet(_file(uri, "outcomes.parquet", temporary)) for uri in places]


def attacked(tracking_uri: str, row: CellRecord) -> pandas.DataFrame:
    """`outcomes.parquet` of the attack on a row's model. Raises StoreUnavailable."""
    with reachable(tracking_uri), tempfile.TemporaryDirectory() as temporary:
        client = MlflowClient(tracking_uri)
        runs = [client.get_run(run_id) for run_id in row.tags["stage_runs"].split(",")]
        place = [run.data.tags["location"] for run in runs if run.data.tags["stage"] == "attack"][-1]  # behind the set that it carries over
        return pandas.read_parquet(_file(place, "outcomes.parquet", temporary))


def probes(tracking_uri: str, row: CellRecord) -> list[dict[str, Any]]:
    """`probes.json` of a row of an operator. Raises StoreUnavailable."""
    with reachable(tracking_uri), tempfile.TemporaryDirectory() as temporary:
        uri = MlflowClient(tracking_uri).get_run(row.tags["stage_runs"].split(",")[-1]).data.tags["location"]
        found: list[dict[str, Any]] = json.loads(_file(uri, "probes.json", temporary).read_text())
        return found


def _file(uri: str, name: str, temporary: str) -> Path:
    """A stage's file where it lies, else downloaded into a folder of its own."""
    folder = local_folder(uri)
    return folder / name if folder else Path(get_artifact_repository(uri).download_artifacts(name, tempfile.mkdtemp(dir=temporary)))


def each_run(client: MlflowClient, experiment: Experiment) -> Iterator[Run]:
    """Every run of an experiment that is not deleted, in the order of their starts."""
    order, token = ["attributes.start_time ASC"], None
    while True:
        page = client.search_runs([experiment.experiment_id], "", ViewType.ACTIVE_ONLY, PAGE, order, token)
        yield from page
        token = page.token
        if not token:
            return


def _row(run: Run) -> CellRecord:
    tags = dict(run.data.tags)
    stages = [key for key in tags.get("stage_keys", "").split(",") if key]
    name = tags.get("mlflow.runName", "")
    return CellRecord(tags["cell_key"], name, dict(run.data.params), tags, dict(run.data.metrics), stages)


@contextlib.contextmanager
def reachable(uri: str) -> Iterator[None]:
    """Whatever goes wrong within becomes StoreUnavailable, one line."""
    try:
        yield
    except StoreUnavailable:
        raise
    except Exception as error:  # MLflow's own, the database's, the network's: whatever it is, this store can't be used
        reason = " ".join(str(error).split())
        raise StoreUnavailable(f"store.tracking_uri: {uri!r} can't be used: {reason[:300]}") from None
