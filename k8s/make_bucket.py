"""Make the bucket that MLflow keeps artifacts in. The MLflow pod runs this before its server starts, so it must be repeatable."""

import os
from typing import Any


def make_bucket(client: Any, name: str) -> bool:
    """Create the bucket unless the account has it; true when it was created. `client` is a boto3 S3 client."""
    if name in [bucket["Name"] for bucket in client.list_buckets()["Buckets"]]:
        return False
    client.create_bucket(Bucket=name)
    return True


if __name__ == "__main__":
    import boto3

    bucket_name = os.environ["ARTIFACT_BUCKET"]
    created = make_bucket(boto3.client("s3", endpoint_url=os.environ["MLFLOW_S3_ENDPOINT_URL"]), bucket_name)
    print(f"bucket {bucket_name}: {'created' if created else 'was there'}")
