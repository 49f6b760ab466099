"""Two processes that meet once: what launch_time starts with Python Accelerate."""

import os
import sys

from accelerate import Accelerator

accelerator = Accelerator(cpu=True)
accelerator.wait_for_everyone()
accelerator.end_training()
sys.stdout.flush()
os._exit(0)  # torch 2.13 aborts now and then while its interpreter ends
