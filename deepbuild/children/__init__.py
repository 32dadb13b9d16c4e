"""Scripts that run in another interpreter and answer with JSON.

They may import torch or DeepSpeed, must run on any Python from 3.8 on, and import nothing of
deepbuild. An answer is one line of JSON after MARKER, since what they import prints too.
"""

MARKER = "@deepbuild-answer@"
