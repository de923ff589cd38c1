"""The same as `sweep.runtimes._standalone` for frameworks that run what they have built: the file is what they export for themselves."""
