"""One module per member; `sweep.contracts` says what each must offer, and a module's name is its component's name."""
