"""Publishes the environment's resource, then another one."""

import otelctx
from truth import show, wait

show()
wait()
otelctx.publish({"service.name": "given", "ports": [80, 443], "ratio": 0.5, "on": True})
show()
wait()
