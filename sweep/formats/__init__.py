"""One module per format of a user's own model file, whose name is the module's; docs/components.md says what each must offer."""
