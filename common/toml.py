"""`tomllib`, which Python has from 3.11 on, or the package that it was made from."""

try:
    import tomllib
except ImportError:
    import tomli as tomllib

__all__ = ["tomllib"]
