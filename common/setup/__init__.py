"""What has to work before anything is installed, with the standard library alone: .venv, kits of wheels, `doctor`."""
