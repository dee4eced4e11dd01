"""The request with which docker-py creates an agent's container, recorded from the real library."""

from __future__ import annotations

import copy
from typing import Any

BODY: dict[str, Any] = {
    "Hostname": "andy",
    "User": "1000:1000",
    "Tty": False,
    "OpenStdin": True,
    "StdinOnce": True,
    "AttachStdin": True,
    "AttachStdout": True,
    "AttachStderr": True,
    "Env": ["TZ=UTC", "ANTHROPIC_BASE_URL=http://orchestrator:4000"],
    "Image": "andy-agent:latest",
    "NetworkDisabled": False,
    "Labels": {"andy.install": "0123456789ab", "andy.group": "family", "andy.run": "r1"},
    "StopSignal": "SIGTERM",
    "HostConfig": {
        "Memory": 2147483648,
        "MemorySwap": 2147483648,
        "ReadonlyRootfs": True,
        "NetworkMode": "andy-0123456789ab.family",
        "CapDrop": ["ALL"],
        "Dns": ["127.0.0.1"],
        "SecurityOpt": ["no-new-privileges"],
        "LogConfig": {"Type": "json-file", "Config": {"max-size": "16m", "max-file": "4"}},
        "Tmpfs": {
            "/tmp": "rw,exec,nosuid,nodev,size=256m,mode=1777",
            "/home/andy": "rw,exec,nosuid,nodev,size=256m,mode=0755,uid=1000,gid=1000",
        },
        "PidsLimit": 512,
        "Init": True,
        "NanoCpus": 2000000000,
        "Mounts": [
            {
                "Target": "/workspace/group",
                "Source": "/srv/andy/groups/family",
                "Type": "bind",
                "ReadOnly": False,
                "BindOptions": {"Propagation": "private"},
            },
        ],
    },
}


def agent_body(**changes: Any) -> dict[str, Any]:
    """`BODY` with keys of it, or of its `HostConfig` (`HostConfig__Memory=…`), changed."""
    body = copy.deepcopy(BODY)
    for name, value in changes.items():
        outer, _, inner = name.partition("__")
        if inner:
            body[outer][inner] = value
        else:
            body[outer] = value
    return body


def a_bind(source: str, **changes: Any) -> dict[str, Any]:
    return {**copy.deepcopy(BODY["HostConfig"]["Mounts"][0]), "Source": source, **changes}
