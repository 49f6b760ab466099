"""The same measurement with Python Accelerate and transformers: offload_speed_peer.py CHECKPOINT resident|host|disk PASSES OFFLOAD_FOLDER"""

import sys
import time

import torch
from accelerate import init_empty_weights, load_checkpoint_and_dispatch
from transformers import AutoConfig, LlamaForCausalLM


def main():
    checkpoint, mode, passes, folder = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]
    config = AutoConfig.from_pretrained(checkpoint)
    with init_empty_weights():
        model = LlamaForCausalLM(config)
    model.eval()
    ids = torch.arange(16, device="cuda:0").reshape(1, 16)
    torch.zeros(1, device="cuda:0")
    place = {"resident": 0, "host": "cpu", "disk": "disk"}[mode]
    # Python computes on the GPU only where the map has it: the embedding stays there.
    device_map = {"": 0} if mode == "resident" else {"model.embed_tokens": 0, "model.layers": place, "model.norm": place, "model.rotary_emb": 0, "lm_head": place}
    torch.cuda.synchronize()
    begin = time.perf_counter()
    model = load_checkpoint_and_dispatch(model, checkpoint, device_map=device_map, dtype=torch.bfloat16, offload_folder=folder)
    torch.cuda.synchronize()
    print(f"load_s {time.perf_counter() - begin:.6f}", flush=True)
    torch.cuda.reset_peak_memory_stats()
    with torch.no_grad():
        for i in range(passes):
            torch.cuda.synchronize()
            start = time.perf_counter()
            total = model(ids, use_cache=False).logits.float().sum()
            torch.cuda.synchronize()
            print(f"forward_s {time.perf_counter() - start:.6f}", flush=True)
            if i == 0:
                print(f"sum {total.item():.9g}")
        print(f"forward_device_MB {torch.cuda.max_memory_allocated() / 1e6:.1f}")
        if mode != "disk":  # where it takes a minute
            for turn in range(2 if mode == "resident" else 1):
                torch.cuda.synchronize()
                start = time.perf_counter()
                # Without a mask, token 0 is treated as padding and ignored.
                model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=32, do_sample=False, eos_token_id=None, pad_token_id=0)
                torch.cuda.synchronize()
                seconds = time.perf_counter() - start
            print(f"generate_s {seconds:.6f}", flush=True)


main()
