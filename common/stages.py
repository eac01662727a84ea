"""Find a stage's folder and load its engine. Folder names begin with a digit, so `import` cannot name them.

With COURSE_STAGE=my/05_paged_attention, as `course.py test my/05` sets it, that folder is stage 05: tests and
measurements that name the stage then run a learner's code.
"""

import importlib
import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType

from .errors import InvalidInput

ROOT = Path(__file__).resolve().parent.parent


def stage_folders(root: Path = ROOT) -> list[Path]:
    """Return the numbered stages in a folder, in order."""
    return sorted(engine.parent for engine in root.glob("[0-9][0-9]_*/engine.py"))


def stage_folder(name: str | Path, root: Path = ROOT) -> Path:
    """Return the folder of a stage given as "2", "02", "02_kv_cache", "my/02" or any folder with an engine.py.

    Relative paths begin at `root`. Raise InvalidInput if there is no such stage.
    """
    path, own = (root / name).resolve(), Path(os.environ.get("COURSE_STAGE", ""))
    for folder in stage_folders(path.parent):
        if path.name.zfill(2) in (folder.name, folder.name[:2]):
            return own.resolve() if own.name == folder.name else folder
    if (path / "engine.py").exists():
        return path
    known = ", ".join(folder.name for folder in stage_folders(root))
    raise InvalidInput(f"there is no stage {str(name)!r}: give one of {known}, or a folder with an engine.py")


def load_stage_module(name: str | Path, module: str) -> ModuleType:
    """Import `module` (such as "engine") of a stage as part of a package, so that its relative imports work."""
    folder = stage_folder(name)
    if str(folder.parent) not in sys.path:
        sys.path.insert(0, str(folder.parent))
    if folder.name not in sys.modules:  # Otherwise a folder of the same name earlier in sys.path would come first.
        sys.modules[folder.name] = ModuleType(folder.name)
        sys.modules[folder.name].__path__ = [str(folder)]
    loaded = importlib.import_module(f"{folder.name}.{module}")
    if Path(loaded.__file__).parent != folder:
        raise InvalidInput(
            f"two folders are named {folder.name!r}, and {Path(loaded.__file__).parent} is loaded already: rename one"
        )
    return loaded


def load_engine(name: str | Path) -> type:
    """Return the `Engine` class of a stage (`load_engine("02")`) or of any folder whose engine.py defines one.

    Where engines are workers, it is the class that deployment.py puts in front of them.
    """
    module = "deployment" if (stage_folder(name) / "deployment.py").exists() else "engine"
    return load_stage_module(name, module).Engine
