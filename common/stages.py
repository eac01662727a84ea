"""Find a stage's folder and load its engine. Folder names begin with a digit, so `import` cannot name them."""

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parent.parent


def stage_folders() -> list[Path]:
    """Return the folders of all numbered stages, in order."""
    return sorted(folder for folder in ROOT.glob("[0-9][0-9]_*") if (folder / "engine.py").exists())


def stage_folder(name: str | Path) -> Path:
    """Return the folder of a stage given as "2", "02", "02_kv_cache" or a path. Raise ValueError if there is none."""
    path = Path(name)
    if (path / "engine.py").exists():
        return path.resolve()
    stages = stage_folders()
    number = str(name).zfill(2)
    for folder in stages:
        if folder.name == str(name) or folder.name.split("_")[0] == number:
            return folder
    known = ", ".join(folder.name for folder in stages)
    raise ValueError(f"there is no stage {str(name)!r}: give one of {known}, or a folder with an engine.py")


def load_stage_module(name: str | Path, module: str) -> ModuleType:
    """Import `module` (such as "engine") of a stage as part of a package, so that its relative imports work."""
    folder = stage_folder(name)
    if str(folder.parent) not in sys.path:
        sys.path.insert(0, str(folder.parent))
    loaded = importlib.import_module(f"{folder.name}.{module}")
    if Path(loaded.__file__).parent != folder:
        raise ValueError(
            f"two folders are named {folder.name!r}, and {Path(loaded.__file__).parent} is loaded already: rename one"
        )
    return loaded


def load_engine(name: str | Path) -> type:
    """Return the `Engine` class of a stage (`load_engine("02")`) or of any folder whose engine.py defines one."""
    return load_stage_module(name, "engine").Engine
