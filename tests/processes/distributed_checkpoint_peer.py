"""The peer of distributed_checkpoint_test.cpp: torch.distributed.checkpoint itself, on two processes over gloo.

distributed_checkpoint_peer.py save FOLDER      trains a sharded model, saves it as FSDP does, and whole beside it
distributed_checkpoint_peer.py load FOLDER...   loads what the test has written, in every way that PyTorch and Accelerate have
"""

import pickle
import sys
import tempfile
import warnings

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
from torch.distributed.checkpoint.metadata import _MEM_FORMAT_ENCODING
from torch.distributed.checkpoint.state_dict import get_model_state_dict, get_optimizer_state_dict, set_model_state_dict, set_optimizer_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, StateDictType, fully_shard

warnings.filterwarnings("ignore")
RANKS = 2


class Net(torch.nn.Module):
    """Rows that no number of ranks divides, and fewer rows than ranks."""

    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(11, 5)
        self.conv = torch.nn.Conv1d(5, 3, 3)
        self.head = torch.nn.Linear(3, 1)

    def forward(self, x):
        return self.head(self.conv(self.embed(x).transpose(1, 2)).mean(2))


def sharded():
    torch.manual_seed(0)
    net = Net()
    fully_shard(net, mesh=init_device_mesh("cpu", (RANKS,)))
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    net(torch.arange(16).reshape(2, 8) % 11).sum().backward()
    optimizer.step()
    return net, optimizer


def older_sharded():
    """FSDP as it was first: its chunks are ShardedTensors."""
    torch.manual_seed(1)
    return FullyShardedDataParallel(Net(), device_id=torch.device("cpu"), use_orig_params=True)


def odd_tensors():
    """Replicated, in other dtypes, strided, without elements, below a list."""
    return {"transposed": torch.arange(6.0).reshape(2, 3).t(), "half": torch.arange(5).to(torch.bfloat16), "mask": torch.tensor([True, False]),
            "scalar": torch.tensor(3), "empty": torch.zeros(3, 0), "list": [torch.ones(2), {"inner": torch.zeros(1, 2)}, "text"]}


def full(state):
    return {name: (value.full_tensor() if hasattr(value, "full_tensor") else value) for name, value in state.items()}


def save(folder):
    net, optimizer = sharded()
    model, state = get_model_state_dict(net), get_optimizer_state_dict(net, optimizer)
    dcp.save({"model": model}, checkpoint_id=f"{folder}/pytorch_model_fsdp_0")
    dcp.save({"optimizer": state}, checkpoint_id=f"{folder}/optimizer_0")
    whole = {f"model.{name}": value for name, value in full(model).items()}
    for parameter, values in state["state"].items():
        whole |= {f"optimizer.state.{parameter}.{name}": value for name, value in full(values).items()}
    older = older_sharded()
    with FullyShardedDataParallel.summon_full_params(older):
        whole |= {f"older.{name}": value.detach().clone() for name, value in older.module.state_dict().items()}
    with FullyShardedDataParallel.state_dict_type(older, StateDictType.SHARDED_STATE_DICT):
        dcp.save({"older": older.state_dict()}, checkpoint_id=f"{folder}/older")
    odd = odd_tensors()
    # As Python 3.11.0 to 3.11.3 pickle members of enumerations.
    _MEM_FORMAT_ENCODING.__reduce_ex__ = lambda member, protocol: (getattr, (member.__class__, member.name))
    dcp.save({"odd": odd}, checkpoint_id=f"{folder}/odd")
    first, second, _ = odd.pop("list")
    whole |= {f"odd.{name}": value for name, value in {**odd, "list.0": first, "list.1.inner": second["inner"]}.items()}
    if dist.get_rank() == 0:
        from safetensors.torch import save_file

        save_file({name: value.contiguous() for name, value in whole.items()}, f"{folder}/whole.safetensors")


def numbers(shape, first):
    return (torch.arange(torch.Size(shape).numel(), dtype=torch.float32) + first).reshape(shape)


def expected():
    """What the test has written: the parameters' elements count from 0, 1000, ..., those of exp_avg from a half on."""
    return {name: numbers(value.shape, 1000.0 * i) for i, (name, value) in enumerate(Net().state_dict().items())}


def require_equal(found, wanted, what):
    assert set(found) == set(wanted), (what, set(found) ^ set(wanted))
    for name, value in wanted.items():
        assert torch.equal(found[name], value), (what, name, found[name], value)


def load_sharded(folder):
    net, optimizer = sharded()
    state = {"model": get_model_state_dict(net)}
    dcp.load(state, checkpoint_id=f"{folder}/pytorch_model_fsdp_0")
    set_model_state_dict(net, state["model"])
    require_equal(full(get_model_state_dict(net)), expected(), "fully_shard")
    older = older_sharded()
    with FullyShardedDataParallel.state_dict_type(older, StateDictType.SHARDED_STATE_DICT):
        state = {"model": older.state_dict()}
        dcp.load(state, checkpoint_id=f"{folder}/pytorch_model_fsdp_0")
        older.load_state_dict(state["model"])
    with FullyShardedDataParallel.summon_full_params(older):
        require_equal(older.module.state_dict(), expected(), "FullyShardedDataParallel")
    state = {"optimizer": get_optimizer_state_dict(net, optimizer)}
    dcp.load(state, checkpoint_id=f"{folder}/optimizer_0")
    set_optimizer_state_dict(net, optimizer, state["optimizer"])
    loaded = get_optimizer_state_dict(net, optimizer)
    require_equal(full({name: values["exp_avg"] for name, values in loaded["state"].items()}),
                  {name: value + 0.5 for name, value in expected().items()}, "optimizer")
    assert all(values["step"].item() == 7 for values in loaded["state"].values())
    group = loaded["param_groups"][0]
    assert group["lr"] == 0.125 and tuple(group["betas"]) == (0.5, 0.75) and group["amsgrad"] is False, group


def load_whole(folder):
    for name in ("pytorch_model_fsdp_0", "optimizer_0"):
        with open(f"{folder}/{name}/.metadata", "rb") as file:
            written = file.read()
        again = pickle.dumps(pickle.loads(written), protocol=2)
        assert again == written or (3, 11, 0) <= sys.version_info < (3, 11, 4)  # as Python's own pickler has it, but for enumerations there
    state = {"model": {name: torch.zeros_like(value) for name, value in expected().items()}}
    dcp.load(state, checkpoint_id=f"{folder}/pytorch_model_fsdp_0", no_dist=True)
    require_equal(state["model"], expected(), "plain tensors")
    dcp_to_torch_save(f"{folder}/pytorch_model_fsdp_0", f"{folder}/model.pt")
    require_equal(torch.load(f"{folder}/model.pt", weights_only=True)["model"], expected(), "dcp_to_torch_save")
    dcp_to_torch_save(f"{folder}/optimizer_0", f"{folder}/optimizer.pt")
    optimizer = torch.load(f"{folder}/optimizer.pt", weights_only=True)["optimizer"]
    assert optimizer["param_groups"][0]["params"] == list(expected()) and optimizer["param_groups"][0]["foreach"] is None
    from accelerate.utils import merge_fsdp_weights
    from safetensors.torch import load_file

    merge_fsdp_weights(f"{folder}/pytorch_model_fsdp_0", f"{folder}/merged")
    require_equal(load_file(f"{folder}/merged/model.safetensors"), expected(), "merge_fsdp_weights")


def run(rank, store, act, folder):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}/store", rank=rank, world_size=RANKS)
    act(folder)
    dist.destroy_process_group()


def together(act, folder):
    context = torch.multiprocessing.get_context("fork")  # torch is imported once
    with tempfile.TemporaryDirectory() as store:
        ranks = [context.Process(target=run, args=(rank, store, act, folder)) for rank in range(RANKS)]
        for rank in ranks:
            rank.start()
        for rank in ranks:
            rank.join()
    assert all(rank.exitcode == 0 for rank in ranks)


if __name__ == "__main__":
    if sys.argv[1] == "save":
        together(save, sys.argv[2])
    else:
        for folder in sys.argv[2:]:
            together(load_sharded, folder)  # before this process starts threads
        for folder in sys.argv[2:]:
            load_whole(folder)
