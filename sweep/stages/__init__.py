"""What each stage does inside a worker: inputs are folders and arrays, outputs are files and numbers."""
