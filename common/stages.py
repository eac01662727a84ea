"""Find a stage's folder and load its engine. Folder names begin with a digit, so `import` cannot name them.

With COURSE_STAGE=my/05_paged_attention, as `course.py bench my/05` sets it, that folder stands for 05_paged_attention.
"""

import importlib
import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parent.parent


def stage_folders() -> list[Path]:
    """Return the folders of all numbered stages, in order."""
    return sorted(folder for folder in ROOT.glob("[0-9][0-9]_*") if (folder / "engine.py").exists())


def stage_folder(name: str | Path) -> Path:
    """Return the folder of a stage given as "2", "02", "02_kv_cache" or a path. Raise ValueError if there is none."""
    own = Path(os.environ.get("COURSE_STAGE", ""))
    path = own if own.name == str(name) else Path(name)
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
    if folder.name not in sys.modules:  # or a folder of the same name that stands earlier in sys.path would come first
        sys.modules[folder.name] = ModuleType(folder.name)
        sys.modules[folder.name].__path__ = [str(folder)]
    loaded = importlib.import_module(f"{folder.name}.{module}")
    if Path(loaded.__file__).parent != folder:
        raise ValueError(
            f"two folders are named {folder.name!r}, and {Path(loaded.__file__).parent} is loaded already: rename one"
        )
    return loaded


def load_engine(name: str | Path) -> type:
    """Return the `Engine` class of a stage (`load_engine("02")`) or of any folder whose engine.py defines one."""
    return load_stage_module(name, "engine").Engine
