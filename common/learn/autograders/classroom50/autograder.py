import subprocess
import sys
from pathlib import Path

door = Path(__file__).resolve().parent / "course" / "course.py"
command = [sys.executable, str(door), "grade", "STAGE", "--for", "classroom50", "--run", ".", "--out", "result.json"]
sys.exit(subprocess.call(command))
