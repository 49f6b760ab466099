"""Writes a claim of rank 1 into the store of the job at 127.0.0.1:PORT, as somebody who does not know its secret could."""

import datetime
import sys

from torch.distributed import TCPStore

store = TCPStore("127.0.0.1", int(sys.argv[1]), is_master=False, wait_for_workers=False, timeout=datetime.timedelta(seconds=30))
offer = store.get("accelerate/0/0/host").decode().split("\n")
claim = offer[:]
claim[1], claim[8] = "1", "0" * 64
store.set("accelerate/0/0/" + offer[7] + "/claim/1", "\n".join(claim))
