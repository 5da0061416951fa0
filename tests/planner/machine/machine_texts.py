"""Machines that the tests of machine files read."""

YAML = """\
name: mixed
devices:
  big: v100-32
  small: {preset: p100-16, memory: 12 GB}
  own:
    flops:
      matmul: {float32: 100 GFLOP/s, float16: {peak: 125 TFLOP/s, fraction: 66%}}
    bandwidth: {peak: 900 GB/s, fraction: 0.9}
    memory: none
    launch_overhead: 5 us
    threads: 4
    shared_by: all
    source: measured by hand
links:
  fast: nvlink2
  slow: {preset: pcie3, shared_by: 4}
  net: {latency: 15 us, bandwidth: 50 Gbit/s, shared_by: all, source: {latency: ping}}
nodes:
  - devices: 8*big
    links: [{link: fast, every: 4}, slow]
  - {devices: [2*small, 2*own], links: [{link: fast, groups: [[0, 2], [1, 3]]}, slow], count: 3}
  - 2x8*v100-32
network: net
"""
