"""What every stage of the course shares and no stage teaches: model, loader, sampling, contract, tools."""
