"""Where a sweep's ledger is: every URI and path made absolute once, in the driver, and tried before any work."""

from pathlib import Path

from sweep.cache import writable
from sweep.errors import StoreUnavailable
from sweep.ledger import StoreAddress
from sweep.records import local_folder
from sweep.schema import Sweep

SQLITE = "sqlite:///"


def address(sweep: Sweep, owner: str, reads_only: bool = False) -> StoreAddress:
    """The store of a sweep. Raises StoreUnavailable where its folder can't be written."""
    uri, artifacts = sweep.store.tracking_uri, sweep.store.artifacts
    if uri.startswith(SQLITE):
        database = Path(uri.removeprefix(SQLITE)).absolute()
        uri, folder = SQLITE + str(database), database.parent
        artifacts = artifacts or str(folder / "artifacts")
    elif uri.startswith(("http://", "https://")):
        folder = Path("mlruns").absolute()
    else:
        raise StoreUnavailable(f"store.tracking_uri: {uri!r} is neither a database file ({SQLITE}path) nor a server (http:// or https://)")
    writable(folder)
    if artifacts is not None and "://" not in artifacts:
        artifacts = Path(artifacts).absolute().as_uri()
    if artifacts is not None and (local := local_folder(artifacts)):
        writable(local)
    return StoreAddress(uri, artifacts, str(folder), sweep.name, owner, reads_only)
