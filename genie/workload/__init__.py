"""Traffic of named training jobs, made as Chakra traces without owning one.

`spec` says what a job is, `layout` who talks to whom, `job` generates one rank at a time.
"""
