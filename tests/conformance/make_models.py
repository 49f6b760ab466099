"""Writes tests/golden/models: small checkpoints of transformers with random weights, and what transformers computes with them.

    pip install torch==2.13.0 transformers==5.17.0 tokenizers safetensors
    python3 tests/conformance/make_models.py tests/golden/models

Each folder holds what save_pretrained wrote and expected.safetensors:
  ids             token ids [2, 9]
  logits          float32, of all positions; for BERT's base model last_hidden_state and pooler_output instead
  greedy          the ids and 16 tokens that greedy generation put behind them, where the model generates
  token_types, attention_mask   further inputs of BERT
tokenizers.json has texts and their ids for the tokenizers of gpt2 and llama3; sampling.json has logits and the probabilities that
the logits processors leave; texts.json has prompts and what greedy generation put behind them.
"""

import json
import random
import shutil
import sys
from pathlib import Path

import torch
import transformers
from safetensors.torch import save_file
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers.generation import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

transformers.logging.set_verbosity_error()

# Only what the merges are learned from: ordinary words, digits, and some of what is difficult.
CORPUS = [
    "The weights of a model are read from files and copied to the device that computes with them.",
    "A token is a piece of a word, and there are tokens for every byte, so that any text can be written.",
    "There were 12 files in 2024, 345 in 2025 and 1234567 in all; they're the ones that we've kept.",
    "    indented lines, and\n\n\nempty ones\n\tor tabs\r\n  behind them   ",
    "Größe, façade, naïve, Ångström; это не слово; これは文字です; 这些是文字; هذه كلمات; שלום",
] * 4

DIFFICULT = [
    "",
    " ",
    "  ",
    "\n",
    "\r\n",
    " \n \n  x",
    "a",
    " a",
    "Hello, world! Hello,world!",
    "I'm, you're, he's, we'll, they've, she'd, don't; I'M YOU'RE HE'S WE'LL THEY'VE SHE'D DON'T",
    "'s's 'S'S 'ſ 'ſx rock 'n' roll ''s '' ' 'll'LL",
    "1 12 123 1234 12345 123456789012 1,234.56 3.14e-10 0x7f",
    "½ ² Ⅷ ٣٤٥ १२३ 〇 ①②③ 𝟘𝟙𝟚 1²3 x²",
    "trailing spaces   ",
    "   leading spaces",
    "tabs\t\tand\t spaces \t mixed",
    "line\nbreaks\n\nand\r\nmore\r\r\n\n   \n  end",
    "dots... and!!! marks??? (parens) [brackets] {braces} <tags/> #hash @at $5.00 50% a_b_c a-b-c",
    "def f(x):\n    return {'a': x**2, \"b\": [1, 2]}  # comment\n",
    "🙂 👍🏽 👩‍👩‍👧‍👦 🇩🇪 ❤️ ☃ 🏳️‍🌈",
    "e\u0301 e\u0301\u0302 a\u0308o\u0308u\u0308 \u0301alone Z\u0335\u0321a\u0337l\u0336g\u0334o\u0338",
    "你好,世界!今天是2024年。 混合mixed文字123字",
    "日本語テキスト。カタカナ・ひらがな ｶﾅ 全角ＡＢＣ１２３",
    "한국어 텍스트 \u1112\u1161\u11ab",
    "مرحبا بالعالم ١٢٣ السَّلامُ",
    "שָׁלוֹם עולם",
    "नमस्ते दुनिया क्षत्रिय",
    "ภาษาไทย ไม่มีช่องว่าง",
    "Привет, мир! ЁЖИК",
    "Ǆ ǅ ǆ ﬁ ﬀ ß ẞ İ ı ﷺ",
    "no\u00a0break thin\u2009space ideographic\u3000space zero\u200bwidth bom\ufeff nel\u0085x ls\u2028ps\u2029 mong\u180ex fs\x1cus\x1f",
    "\u3000\u3000x\u2003\u2003y\u00a0\u00a0z",
    "null\x00 bell\x07 delete\x7f private\ue000 last\U0010ffff unassigned\u0378 nonchar\ufffe replacement\ufffd",
    "𝓾𝓷𝓲𝓬𝓸𝓭𝓮 𐍈 𠮷野家 𒀀 🜁",
    "younger letters \u1c89\u1c8a \ua7cb\ua7da \U000105c0 \U00010d4a\U00010d40 \U000313b0",
    "soft\u00adhyphen \u202eright to left\u202c",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    " " * 67,
    " " * 67 + "x",
    "\n" * 33 + "x" + "\t" * 5,
    "<|end|>",
    "a<|end|>b <|end|> c<|end|><|end|>",
    "<|end|",
    "<|start|>user\n\nhi<|end|>",
    "one [MASK] two[MASK]three  [MASK]  four",
    "<extra_1><extra_12><extra_1 >",
]

LLAMA3_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def random_texts(count):
    """Texts of code points from blocks in which classes change often."""
    blocks = [(0x20, 0x7E), (0x09, 0x0D), (0xA0, 0x24F), (0x300, 0x36F), (0x370, 0x52F), (0x590, 0x6FF), (0x900, 0x97F),
              (0x2000, 0x206F), (0x2150, 0x218F), (0x2460, 0x24FF), (0x3000, 0x30FF), (0x4E00, 0x4E40), (0xFF00, 0xFFEF),
              (0x1D400, 0x1D7FF), (0x1F600, 0x1F64F)]
    draw = random.Random(7)
    texts = []
    for _ in range(count):
        chosen = draw.choices(blocks, k=3)
        texts.append("".join(chr(draw.randint(*draw.choice(chosen))) if draw.random() < 0.8 else " " for _ in range(draw.randint(1, 30))))
    return texts


def byte_level(pre_tokenizer, added, vocab_size, **options):
    tokenizer = Tokenizer(models.BPE(**options))
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=vocab_size - len(added), initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
    tokenizer.train_from_iterator(CORPUS, trainer)
    for token in added:
        (tokenizer.add_special_tokens if token.special else tokenizer.add_tokens)([token])
    return tokenizer


def make_tokenizers():
    gpt2 = byte_level(
        pre_tokenizers.ByteLevel(add_prefix_space=False),
        [AddedToken("<|end|>", special=True), AddedToken("[MASK]", lstrip=True, rstrip=True, special=True)], 320)
    gpt2.post_processor = processors.ByteLevel(trim_offsets=False)
    llama3 = byte_level(
        pre_tokenizers.Sequence([
            pre_tokenizers.Split(Regex(LLAMA3_PATTERN), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]),
        [AddedToken("<|start|>", special=True), AddedToken("<|end|>", special=True), AddedToken("<extra_1>", special=False),
         AddedToken("<extra_12>", special=False)], 360, ignore_merges=True)
    llama3.post_processor = processors.Sequence([
        processors.ByteLevel(trim_offsets=False),
        processors.TemplateProcessing(single="<|start|> $A", pair="<|start|> $A <|start|> $B",
                                      special_tokens=[("<|start|>", llama3.token_to_id("<|start|>"))]),
    ])
    prefixed = byte_level(pre_tokenizers.ByteLevel(add_prefix_space=True), [AddedToken("<|end|>", special=True)], 300)
    return {"gpt2": gpt2, "llama3": llama3, "prefixed": prefixed}


def tokenizer_cases(tokenizer):
    cases = []
    for text in DIFFICULT + CORPUS[:5] + random_texts(120):
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        cut = ids[1:-1]  # often in the middle of a character
        cases.append({
            "text": text,
            "ids": ids,
            "with_special": tokenizer.encode(text).ids,
            "decoded": tokenizer.decode(ids, skip_special_tokens=False),
            "without_special": tokenizer.decode(ids),
            "cut": tokenizer.decode(cut, skip_special_tokens=False),
        })
    return cases


def randomize(model):
    """Weights under which every one of them matters: norms are not 1, biases are not 0, logits are far apart."""
    with torch.no_grad():
        for name, weight in model.named_parameters():
            spread = 0.5 if weight.dim() > 1 else 0.2
            center = 1.0 if weight.dim() == 1 and "bias" not in name else 0.0
            weight.copy_(center + spread * torch.randn(weight.shape))


def greedy_of(model, ids, **options):
    """What greedy generation gives, or None when two tokens are so close that rounding decides between them."""
    with torch.no_grad():
        greedy = model.generate(ids, max_new_tokens=16, do_sample=False, pad_token_id=0, **options)
        best = model(greedy).logits[:, ids.shape[1] - 1:-1].topk(2).values
    return greedy if (best[..., 0] - best[..., 1]).min() > 2e-2 else None


def expected_of(model, vocab_size):
    model.eval()
    while True:
        ids = torch.randint(0, vocab_size, (2, 9))
        greedy = greedy_of(model, ids, eos_token_id=None)
        if greedy is not None:
            with torch.no_grad():
                return {"ids": ids, "logits": model(ids).logits.float(), "greedy": greedy}


def texts_of(model, tokenizer):
    """Prompts and what greedy generation makes of them, to the end token or for 16 tokens."""
    cases = []
    for prompt in ["The weights of", "A token is", "There were 12 files", "они", "    indented"]:
        greedy = greedy_of(model, torch.tensor([tokenizer.encode(prompt).ids]))
        if greedy is not None:
            cases.append({"prompt": prompt, "text": tokenizer.decode(greedy[0].tolist())})
    assert cases
    return cases


def write(folder, model, expected, tokenizer=None, **options):
    shutil.rmtree(folder, ignore_errors=True)
    model.save_pretrained(folder, **options)
    save_file({name: tensor.contiguous() for name, tensor in expected.items()}, folder / "expected.safetensors")
    if tokenizer:
        tokenizer.save(str(folder / "tokenizer.json"))


def gpt2(folder, tokenizer):
    size = tokenizer.get_vocab_size()
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(
        vocab_size=size, n_positions=48, n_embd=32, n_layer=2, n_head=4, bos_token_id=tokenizer.token_to_id("<|end|>"),
        eos_token_id=tokenizer.token_to_id("<|end|>")))
    randomize(model)
    write(folder, model, expected_of(model, size), tokenizer)
    return texts_of(model, tokenizer)


def llama_config(**options):
    return transformers.LlamaConfig(**{
        "vocab_size": 256, "hidden_size": 32, "intermediate_size": 56, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "max_position_embeddings": 64, "rms_norm_eps": 1e-5} | options)


def llama(root):
    model = transformers.LlamaForCausalLM(llama_config())
    randomize(model)
    write(root / "llama", model, expected_of(model, 256))
    # The same weights in bfloat16; the logits are those of the rounded weights in float32, and in bfloat16 throughout. Read
    # again for both: converting a model in memory would round the frequencies of its positions too.
    folder = root / "llama_bf16"
    model.to(torch.bfloat16).save_pretrained(folder)
    expected = {"ids": torch.randint(0, 256, (2, 9))}
    for name, dtype in {"logits": torch.float32, "logits_bf16": torch.bfloat16}.items():
        model = transformers.LlamaForCausalLM.from_pretrained(folder, dtype=dtype).eval()
        with torch.no_grad():
            expected[name] = model(expected["ids"]).logits.float()
    save_file(expected, folder / "expected.safetensors")


def llama3(folder, tokenizer):
    """Everything that a Llama may have, in shards, and in the spelling that config.json had before transformers 5."""
    size = tokenizer.get_vocab_size()
    model = transformers.LlamaForCausalLM(llama_config(
        vocab_size=size, head_dim=16, tie_word_embeddings=True, attention_bias=True, mlp_bias=True, num_attention_heads=4, num_key_value_heads=1,
        eos_token_id=[tokenizer.token_to_id("<|end|>"), 3],
        rope_parameters={"rope_type": "llama3", "rope_theta": 5000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                         "original_max_position_embeddings": 32}))
    randomize(model)
    write(folder, model, expected_of(model, size), tokenizer, max_shard_size="60KB")
    texts = texts_of(model, tokenizer)
    config = json.loads((folder / "config.json").read_text())
    scaling = config.pop("rope_parameters")
    config["rope_theta"] = scaling.pop("rope_theta")
    config["rope_scaling"] = scaling
    config["torch_dtype"] = config.pop("dtype")
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    return texts


def mixtral(root):
    config = transformers.MixtralConfig(
        vocab_size=200, hidden_size=32, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        num_local_experts=4, num_experts_per_tok=2, max_position_embeddings=64, sliding_window=6)
    model = transformers.MixtralForCausalLM(config)
    randomize(model)
    expected = expected_of(model, 200)
    write(root / "mixtral", model, expected)
    # What saving state_dict() gives: the experts of a layer in one tensor.
    write(root / "mixtral_fused", model, expected)
    weights = {name: tensor.contiguous() for name, tensor in model.state_dict().items()}
    save_file(weights, root / "mixtral_fused" / "model.safetensors", metadata={"format": "pt"})


def bert(root):
    config = transformers.BertConfig(vocab_size=256, hidden_size=32, intermediate_size=56, num_hidden_layers=2, num_attention_heads=4,
                                     max_position_embeddings=24)
    inputs = {
        "ids": torch.randint(0, 256, (2, 9)),
        "token_types": torch.randint(0, 2, (2, 9)),
        "attention_mask": torch.tensor([[1] * 9, [1] * 6 + [0] * 3]),
    }
    call = {"input_ids": inputs["ids"], "token_type_ids": inputs["token_types"], "attention_mask": inputs["attention_mask"]}
    base = transformers.BertModel(config)
    masked = transformers.BertForMaskedLM(config)
    for model in (base, masked):
        randomize(model)
        model.eval()
    with torch.no_grad():
        result = base(**call)
        expected = {"last_hidden_state": result.last_hidden_state, "pooler_output": result.pooler_output}
        write(root / "bert", base, inputs | expected)
        write(root / "bert_masked", masked, inputs | {"logits": masked(**call).logits})


def sampling():
    cases = []
    for temperature, top_k, top_p in [(1.0, 0, 1.0), (0.5, 0, 1.0), (2.0, 5, 1.0), (1.0, 0, 0.8), (0.7, 10, 0.9), (1.0, 1, 1.0), (1.0, 0, 0.01)]:
        logits = 2 * torch.randn(2, 24)
        scores = TemperatureLogitsWarper(temperature)(None, logits) if temperature != 1 else logits
        if top_k:
            scores = TopKLogitsWarper(top_k)(None, scores)
        if top_p < 1:
            scores = TopPLogitsWarper(top_p)(None, scores)
        cases.append({"temperature": temperature, "top_k": top_k, "top_p": top_p, "logits": logits.tolist(), "probabilities": scores.softmax(-1).tolist()})
    return cases


def main(root):
    root.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    tokenizers = make_tokenizers()
    texts = {"gpt2": gpt2(root / "gpt2", tokenizers["gpt2"])}
    llama(root)
    texts["llama3"] = llama3(root / "llama3", tokenizers["llama3"])
    (root / "texts.json").write_text(json.dumps(texts, indent=1) + "\n")
    mixtral(root)
    bert(root)
    (root / "prefixed").mkdir(exist_ok=True)
    tokenizers["prefixed"].save(str(root / "prefixed" / "tokenizer.json"))
    cases = {name: tokenizer_cases(tokenizer) for name, tokenizer in tokenizers.items()}
    lines = [f'"{name}": [\n' + ",\n".join(json.dumps(case) for case in of) + "\n]" for name, of in cases.items()]
    (root / "tokenizers.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")
    (root / "sampling.json").write_text(json.dumps(sampling()) + "\n")


main(Path(sys.argv[1]))
