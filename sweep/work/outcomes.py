"""outcomes.parquet: one row per input, which all paired statistics and every later question live on."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd


def write(folder: Path, columns: Mapping[str, np.ndarray]) -> None:
    """Write columns of equal length (`metrics.outcome_columns`)."""
    pd.DataFrame(dict(columns)).to_parquet(folder / "outcomes.parquet", index=False)
