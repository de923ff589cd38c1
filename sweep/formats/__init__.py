"""One module per format of a user's own model file; `sweep.contracts` says what each must offer, and a module's name is its format's."""
