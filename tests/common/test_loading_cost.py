"""The cost of loading: memory for the weights once, no heavy import before it is needed, progress for large models."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors.torch import save_file

from common.loader import load_model, weights
from common.loader.weights import checkpoint_names

ROOT = Path(__file__).resolve().parents[2]
CONFIG = {
    "model_type": "llama",
    "vocab_size": 30_000,
    "hidden_size": 1024,
    "intermediate_size": 5120,
    "num_hidden_layers": 4,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "max_position_embeddings": 128,
}
# The peak of memory while loading in one type, above what there was before, in multiples of the weights.
MEASURE = """
import sys, threading, time
from pathlib import Path
import torch
from common.loader.config import read_config
from common.loader import load_model

def anonymous_bytes():  # not RSS, which counts pages of mapped files that the system can drop at any time
    with open("/proc/self/status") as status:
        return 1024 * next(int(line.split()[1]) for line in status if line.startswith("RssAnon"))

class Peak(threading.Thread):
    value, stop = 0, False

    def run(self):
        while not self.stop:
            self.value = max(self.value, anonymous_bytes())
            time.sleep(0.0005)

folder = Path(sys.argv[1])
read_config(folder)  # imports transformers, which would count otherwise, as would a compiler
dtype = sys.argv[3]
load_model(device="cpu", dtype=dtype).model.kernels.compiled(getattr(torch, dtype))
before, peak = anonymous_bytes(), Peak()
peak.start()
model = load_model(folder, device="cpu", dtype=dtype).model
peak.stop = True
peak.join()
print((peak.value - before) / int(sys.argv[2]) / model.embedding.weight.itemsize)
"""


def run_python(program: str, *arguments: str) -> str:
    command = [sys.executable, "-c", program, *arguments]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.mark.skipif(
    not Path("/proc/self/status").exists(), reason="NOT MEASURED: peak memory is read from /proc, which is not here"
)
def test_the_weights_are_in_memory_once(tmp_path):
    """About 300 MB in bfloat16, loaded as they are and converted to float32.

    A loader that reads everything before it copies would take 2 and 1.5 times the weights.
    """
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    loaded = load_model(tmp_path, device="cpu", dtype="bfloat16", load_format="dummy", fused=False)
    parameters = dict(loaded.model.named_parameters())
    numbers = sum(parameter.numel() for parameter in parameters.values())
    assert 2.5e8 < 2 * numbers < 3.5e8
    tensors = {tensor: parameters[name][rows].clone() for name, tensor, rows in checkpoint_names(loaded.config)}
    save_file(tensors, tmp_path / "model.safetensors")

    # Each in a process of its own: the second would take memory that the first has left.
    peaks = [float(run_python(MEASURE, str(tmp_path), str(numbers), dtype)) for dtype in ("bfloat16", "float32")]
    assert all(0.9 < peak <= 1.3 for peak in peaks), peaks


def test_a_process_imports_what_takes_long_only_when_it_is_needed():
    """transformers for a model, and never its class for Llama: that imports a compiler, as initialisation on meta does,
    which would take 2 to 4 s."""
    program = """
import sys
from common.loader import load_model

print([m for m in ("transformers", "huggingface_hub") if m in sys.modules])
from common.stages import load_engine

load_engine("07")(load_model(), kv_memory="8M").generate(["Once upon a time"])
print([m for m in ("torch._dynamo", "transformers.models.llama", "sympy") if m in sys.modules])
"""
    assert run_python(program) == "[]\n[]\n"


def test_progress_is_shown_for_large_models_only(monkeypatch, capsys, tmp_path):
    small = {"vocab_size": 100, "hidden_size": 64, "intermediate_size": 80}
    (tmp_path / "config.json").write_text(json.dumps(CONFIG | small))
    load_model(tmp_path, device="cpu", load_format="dummy")
    assert capsys.readouterr() == ("", "")
    monkeypatch.setattr(weights, "PROGRESS_BYTES", 1000)
    load_model(tmp_path, device="cpu", load_format="dummy")
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and "GB" in err
